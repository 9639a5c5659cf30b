"""Make sites on this machine for the time of a run, to try a run over several sites with one command. Each
has its own store, keys, mailbox and agent, on loopback.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from atelier import IMPORT_ROOT
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.config.sites import Sites
from atelier.engine.io.storage import is_local, local_path, write_bytes
from atelier.flows.run.embedded_server import others_environment
from atelier.flows.run.over_sites import LOOPBACK
from atelier.infra.sites.keys import Keys
from atelier.infra.sites.policy import EVERYTHING, Policies, SitePolicy
from atelier.infra.store.file_lock import file_lock

LISTENS, LOG, LOCK = "listens at ", "agent.log", "lock"
LOOK_EVERY = 0.2  # seconds


@contextmanager
def loopback(sites: Sites, root: str) -> Iterator[None]:
    """Run agents of all sites while the block runs; the first is this site, with the store `root`. Raises
    ConfigError if another run has these sites, AtelierError for a remote store or an agent that does not
    start.
    """
    if not is_local(root):
        raise AtelierError(f"sites.loopback: the store {root} is not a folder of this machine")
    folders = {name: local_path(root) / LOOPBACK / name for name in sites.names}
    home = sites.names[0]
    with ExitStack() as stack:
        stack.callback(_alone(local_path(root) / LOOPBACK).close)
        keys = {name: _keys(folder / "keys", name) for name, folder in folders.items()}
        for name in reversed(sites.names):  # home calls the others: it needs their addresses
            for peer in sites.names:
                if peer != name:
                    keys[name].accept(keys[peer].card.text, f"the card of {peer}")
            policies, everything = Policies(keys[name].folder), (EVERYTHING,)
            for peer in sites.names if name != home else ():
                if peer != name and not policies.has(peer):
                    policies.set(SitePolicy(site=peer, tasks=everything, sends=everything, tracker="none"))
            store = root if name == home else str(folders[name] / "store")
            agent = _Agent(keys[name], store, folders[name] / LOG, sites.trial_mbps)
            stack.callback(agent.end)
            card = keys[name].card.model_copy(update={"address": "" if name == home else agent.address})
            write_bytes(str(keys[name].card_path), card.text)
        yield


def _alone(folder: Path) -> IO[str]:
    """Lock these sites until the returned file is closed. Raises ConfigError while another run has them."""
    folder.mkdir(parents=True, exist_ok=True)
    file = file_lock(folder / LOCK)
    if file is None:
        raise ConfigError("sites.loopback", f"another run uses the sites in {folder}", "wait for its end")
    return file


def _keys(folder: Path, name: str) -> Keys:
    return Keys(folder) if Keys(folder).card_path.exists() else Keys.create(folder, name)


class _Agent:
    """A site's agent, which is restarted when it dies and ends with this process."""

    def __init__(self, keys: Keys, store: str, log: Path, mbps: float) -> None:
        self._keys, self._store, self._log, self._mbps = keys, store, log, mbps
        self._ended = threading.Event()
        keys.mailbox.mkdir(parents=True, exist_ok=True)
        self.address = "127.0.0.1:0"
        self._start()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()

    def _start(self) -> None:
        """Raises AtelierError if it does not listen."""
        command = [sys.executable, "-m", "atelier", "site", "serve", "--with-parent"]
        command += ["--keys", str(self._keys.folder), "--listen", self.address]
        command += ["--mbps", str(self._mbps)] if self._mbps else []
        env = others_environment() | {"ATELIER_ROOT": self._store, "PYTHONPATH": str(IMPORT_ROOT)}
        with self._log.open("ab") as file:
            self._process = subprocess.Popen(
                command, cwd=self._keys.mailbox, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=file, start_new_session=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        first = self._process.stdout.readline().decode()
        if LISTENS not in first:
            last = (self._log.read_text(errors="replace").strip().splitlines() or [""])[-1]
            raise AtelierError(f"the agent of site {self._keys.card.site} did not start: {last or self._log}")
        self.address = first.strip().rpartition(LISTENS)[2]

    def _keep(self) -> None:
        while not self._ended.is_set():
            self._process.wait()
            if not self._ended.is_set():
                self._close()
                with suppress(AtelierError):  # its port is taken: it is retried
                    self._start()
            self._ended.wait(LOOK_EVERY)

    def _close(self) -> None:
        """Close the pipes of the process that has ended."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def end(self) -> None:
        self._ended.set()
        self._process.terminate()
        self._process.wait()
        self._keeper.join()
        self._close()
