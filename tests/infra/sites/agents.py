"""Helper: sites with keys, a mailbox and an agent each, over mutual TLS on loopback or through a bucket,
which is a folder here.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import grpc

from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.infra.sites.agent import Agent
from atelier.infra.sites.audit import Chain, read_lines
from atelier.infra.sites.keys import AUDIT, TLS_NAME, Keys
from atelier.infra.sites.refusals import RetrySchedule
from atelier.infra.sites.transfer import SERVICE
from tests.checkout import TOP
from tests.ports import free_port

Carrier = Literal["grpc", "bucket"]
TRAJECTORY = "ab" * 32
PATIENCE_S = 60


def until(is_so: Callable[[], bool], what: str, *sites: "Site") -> None:
    """Wait until it is; what is not, and what the agents of `sites` have said, where that lasts too long."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, "\n".join([what, *(site.log() for site in sites)])
        time.sleep(0.01)


def check(log: Path) -> str:
    """The digest of the last line of an audit log. Raises DamageError naming the first line that does not
    follow from the one before.
    """
    chain = Chain()
    for _ in read_lines(log, chain):
        pass
    return chain.digest


class Site:
    """A site with its keys and its mailbox; its agent as a process, or in this one."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        is_reachable: bool = True,
        carrier: Carrier = "grpc",
        url: str = "",
    ) -> None:
        self.name, self.folder, self.mail = name, folder / name, str(folder / name / "mail")
        self.port, self.bucket = free_port(), folder / "bucket"
        address = f"127.0.0.1:{self.port}"
        if carrier == "bucket":
            self.bucket.mkdir(exist_ok=True, parents=True)
            address = url or f"file://{self.bucket}"
        self.keys = Keys.create(self.folder / "keys", name, address if is_reachable else "")
        self.box = Mailbox(self.mail, TRAJECTORY)

    def trust(self, other: "Site") -> None:
        self.keys.accept(other.keys.card.text, "card", replace=True)

    def begin(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "atelier", "site", "serve", "--mailbox", self.mail]
        env = os.environ | {"ATELIER_SITE": str(self.keys.folder)}
        if not self.keys.card.is_in_bucket:
            command += ["--listen", f"127.0.0.1:{self.port}"]
        with (self.folder / "agent.log").open("ab") as log:
            began = log.tell()
            process = subprocess.Popen(command, cwd=TOP, env=env, stdout=log, stderr=log)
        until(lambda: self._answers(began) or process.poll() is not None, "the agent does not answer")
        assert process.poll() is None, self.log()
        return process

    def _answers(self, began: int) -> bool:
        """Whether the agent whose log begins at this byte does."""
        if self.keys.card.is_in_bucket:
            return " answers in " in self.log()[began:]
        with socket.socket() as found:
            return found.connect_ex(("127.0.0.1", self.port)) == 0

    def log(self) -> str:
        return (self.folder / "agent.log").read_text()

    @contextmanager
    def served(self) -> Iterator[Agent]:
        """Its agent in this process, that asks nothing by itself."""
        agent = Agent(self.keys, self.mail)
        if self.keys.card.is_in_bucket:
            agent.serve_in(self.keys.card.address)
        else:
            agent.serve(f"127.0.0.1:{self.port}")
        try:
            yield agent
        finally:
            agent.stop()

    def audited(self) -> list[dict[str, Any]]:
        """The lines of its audit log."""
        path = self.keys.folder / AUDIT
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def send(self, number: int, data: bytes) -> None:
        self.box.send(number, self.name, [data], {}, 0, codec=Codec())


def make_due(later: RetrySchedule[Any]) -> None:
    """What waits is tried again at the next look."""
    later._known = {what: (0.0, seconds) for what, (_, seconds) in later._known.items()}


def friends(
    folder: Path, names: Iterable[str] = "ab", silent: str = "", carrier: Carrier = "grpc", url: str = ""
) -> dict[str, Site]:
    """Sites that trust each other; those whose names are in `silent` cannot be called. `url`: a bucket."""
    sites = {
        name: Site(folder, name, is_reachable=name not in silent, carrier=carrier, url=url) for name in names
    }
    for site in sites.values():
        for other in sites.values():
            if other is not site:
                site.trust(other)
    return sites


def with_agents(sites: Iterable[Site], work: Callable[[], None]) -> None:
    """Do something while the sites' agents run in this process."""
    stop, said = threading.Event(), list[str]()
    with ExitStack() as stack:
        agents = [stack.enter_context(site.served()) for site in sites]
        threads = [threading.Thread(target=agent.run, args=(stop, said.append)) for agent in agents]
        for thread in threads:
            thread.start()
        try:
            work()
        finally:
            stop.set()
            for thread in threads:
                thread.join(PATIENCE_S)


class Agents:
    """Agents as processes; called with a site's name, that one is killed and begun again."""

    def __init__(self, sites: Iterable[Site]) -> None:
        self._sites = {site.name: site for site in sites}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.killed = 0

    def begin(self) -> None:
        for name, site in self._sites.items():
            self._processes[name] = site.begin()

    def __call__(self, name: str) -> None:
        self.killed += 1
        self._processes[name].send_signal(signal.SIGKILL)
        self._processes[name].wait()
        self._processes[name] = self._sites[name].begin()

    def send(self, name: str, number: signal.Signals) -> None:
        self._processes[name].send_signal(number)

    def end(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._processes.values():
            process.wait()


@contextmanager
def running(sites: Iterable[Site]) -> Iterator[Agents]:
    """The agents of the sites as processes, ended at the end."""
    agents = Agents(sites)
    try:
        agents.begin()
        yield agents
    finally:
        agents.end()


def asked(kind: str = "message", head: object = None, offset: int = 0) -> bytes:
    """A request of the exchange; by default for a list of messages."""
    return json.dumps({"kind": kind, "head": head or {}, "offset": offset}).encode()


def say(site: Site, keys: Keys, call: str, request: bytes, *blocks: bytes, service: str = SERVICE) -> str:
    """What an agent says to a call with these keys; '' when it takes it."""
    try:
        with connected(site, keys) as channel:
            for _ in channel.stream_stream(f"/{service}/{call}")(iter((request, *blocks)), timeout=20):
                pass
    except grpc.RpcError as error:
        assert isinstance(error, grpc.Call)
        return f"{error.code().name}: {error.details()}"
    return ""


def answered(agent: Agent, call: str, request: bytes, peer: str, *blocks: bytes) -> bytes:
    """What an agent answers to a call of a peer, without a transport."""
    return b"".join(agent._exchange.answer(call, iter((request, *blocks)), peer))


@contextmanager
def connected(to: Site, keys: Keys) -> Iterator[grpc.Channel]:
    """A connection with these keys, that says what it likes."""
    own, name = keys.card.certificate.encode(), ("grpc.ssl_target_name_override", TLS_NAME)
    credentials = grpc.ssl_channel_credentials(to.keys.card.certificate.encode(), keys.key, own)
    with grpc.secure_channel(f"127.0.0.1:{to.port}", credentials, [name]) as channel:
        yield channel


@contextmanager
def asking(agent: Agent) -> Iterator[list[str]]:
    """An agent at work in this process; what it says."""
    stop, said = threading.Event(), list[str]()
    thread = threading.Thread(target=agent.run, args=(stop, said.append), daemon=True)
    thread.start()
    try:
        yield said
    finally:
        stop.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
