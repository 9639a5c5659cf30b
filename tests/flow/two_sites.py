"""The same command at sites with a store each, as a person types it at each; and one command over two sites,
each with a store, keys and an agent of its own, on loopback.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from atelier.infra.sites.keys import Keys
from tests.checkout import TOP
from tests.faults.command import CommandStore
from tests.flow.kills import weights_of


def started(folder: Path, site: str, words: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """`atelier <words>` with the store of a site; what it says is in `<site>.log`."""
    env = os.environ | {"ATELIER_ROOT": str(folder / site)}
    with (folder / f"{site}.log").open("ab") as log:
        command = [sys.executable, "-m", "atelier", *words]
        return subprocess.Popen(command, cwd=TOP, env=env, stdout=log, stderr=log, start_new_session=True)


def at(folder: Path, site: str) -> tuple[str, ...]:
    """The words that say which site it is, and where messages lie."""
    return f"train.link.site={site}", f"train.link.mailbox={folder / 'mail'}"


def wait(folder: Path, runs: dict[str, subprocess.Popen[bytes]]) -> None:
    """Until all have ended well; where one has not, the others, which wait for it, are ended."""
    try:
        for site, run in runs.items():
            assert run.wait(300) == 0, (folder / f"{site}.log").read_text()[-3000:]
    finally:
        for run in runs.values():
            if run.poll() is None:
                run.terminate()
                run.wait(60)


VICTIMS = ("home", "site\0serve", "site\0work")  # the command, an agent, what an agent runs


class TwoSites:
    """The stores of both sites of a run on loopback."""

    def __init__(self, root: Path) -> None:
        self.home = CommandStore(root)
        self.other = CommandStore(root / "sites" / "b" / "store")
        self.keys = Keys(root / "sites" / "b" / "keys")

    def models(self) -> list[dict[str, list[str]]]:
        return [weights_of(self.home), weights_of(self.other)]

    def rounds(self) -> int:
        """Of which site b has sent its contribution."""
        return len(list(self.keys.mailbox.glob("*/round-*/b/message.json")))

    def replies(self) -> Iterator[dict]:
        for path in self.keys.mailbox.glob("orders/*/reply.json"):
            yield json.loads(path.read_text())


def ran(folder: Path, words: tuple[str, ...]) -> TwoSites:
    """Both sites after a command over them."""
    sites = TwoSites(folder)
    command = sites.home.start(*words)
    assert command.wait() == 0, command.text
    return sites


def killed(
    sites: TwoSites, whole: TwoSites, words: tuple[str, ...], victim: str, is_reached: Callable[[], bool]
) -> None:
    """The command with the data of `whole`, whose processes are killed when something `is_reached`. What has
    a parent left is started again by it; after home's end the same command goes on.
    """
    sites.home.copy_data(whole.home)
    sites.other.root.mkdir(parents=True)
    sites.other.copy_data(whole.other)
    command = sites.home.start(*words)
    command.until(is_reached, "what is waited for")
    hit = [*sites.home.processes(f"atelier\0{words[0]}" if victim == "home" else victim)]
    assert hit
    for process in hit:
        os.kill(process, signal.SIGKILL)
    code = command.wait()
    if victim == "home":
        sites.home.wait_for_quiet()
        command = sites.home.start(*words)
        code = command.wait()
    assert code == 0, command.text
    sites.home.wait_for_quiet()
