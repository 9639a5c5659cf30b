"""Rendezvous of the nodes of one gang: `{root}/gangs/<id>/` in the store that they share.

Every node announces itself; when all have, the first one writes the address of the c10d rendezvous. All nodes
start or none, and when one ends the others end. The c10d port is open to anyone who can reach it, so a gang's
nodes belong on a network of their own.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable

from pydantic import Field

from atelier.engine.config.base import Spec, SpecType
from atelier.engine.config.error import AtelierError, StoppedError
from atelier.engine.config.run_file import RunFile
from atelier.engine.io.storage import exists, join, read_as, write_bytes

PATIENCE_S = 120.0  # for a node to arrive, or for news from one that waits for slots
POLL_S = 0.5
SUBDOMAIN = "ATELIER_SUBDOMAIN"  # of pods, whose host names alone do not resolve
ADDRESS = "ATELIER_ADDRESS"  # this host's address for the other nodes; default: its name


class NodePlace(Spec):
    """One node of a gang: the `index`-th of those whose workers serve `pools`; a parameter of its run."""

    id: str
    index: int
    pools: tuple[str, ...]
    patience_s: float = PATIENCE_S

    @property
    def size(self) -> int:
        return len(self.pools)

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def share(self, ranks: int) -> int:
        """Ranks on each node."""
        return share_of(ranks, self.size)


class NodeHere(Spec):
    """node-<index>.json: this node is ready."""

    host: str
    machine: str
    pid: int


class NodeWaiting(Spec):
    """waiting-<index>.json: this node waits for slots; `beat` increases while it is alive."""

    for_: str = Field(alias="for")
    beat: int


class GangStart(Spec):
    """go.json: all nodes have arrived; the address where their ranks meet, and their run file."""

    rendezvous: str
    is_one_machine: bool
    run: RunFile

    @property
    def env(self) -> dict[str, str]:
        """Environment of the ranks."""
        own = {"GLOO_SOCKET_IFNAME": "lo"} if self.is_one_machine else {}
        return {"ATELIER_RENDEZVOUS": self.rendezvous, **own}


class GangStop(Spec):
    """end.json: why the gang ended, and which node ended first."""

    why: str
    by: int


def share_of(ranks: int, nodes: int) -> int:
    """Ranks on each node. Raises AtelierError when they do not divide evenly."""
    if ranks % nodes:
        raise AtelierError(
            f"parallel: {ranks} ranks do not divide over {nodes} nodes; {(ranks // nodes + 1) * nodes} would"
        )
    return ranks // nodes


class Rendezvous:
    """The gang's folder, from one node's side."""

    def __init__(self, root: str, place: NodePlace, stop: threading.Event) -> None:
        self.place, self._stop = place, stop
        self._folder = join(root, "gangs", place.id)
        self._waits_for, self._beats = "", 0

    def wait_for(self, what: str) -> None:
        """Announce, until it arrives, that this node waits for `what`."""
        self._waits_for = what

    def arrive(self) -> None:
        """Announce that this node is ready."""
        self._waits_for = ""
        host = os.environ.get(ADDRESS) or ".".join(
            filter(None, (socket.gethostname(), os.environ.get(SUBDOMAIN)))
        )
        here = NodeHere(host=host, machine=_machine(), pid=os.getpid())
        self._put(f"node-{self.place.index}", here)

    def gather(self, run: RunFile, say: Callable[[str], None]) -> dict[str, str]:
        """On the first node: wait for all nodes, then send `run` (the gang's run file) to the others; returns
        the environment for the ranks here. Raises AtelierError naming the nodes that did not arrive in time.
        """
        deadline = time.monotonic() + self.place.patience_s
        told, heard = "", {}
        while missing := [i for i in range(self.place.size) if self._get(f"node-{i}", NodeHere) is None]:
            words = {i: word for i in missing if (word := self._get(f"waiting-{i}", NodeWaiting)) is not None}
            if words != heard:  # a node that waits for slots is alive, and may wait for long
                deadline, heard = time.monotonic() + self.place.patience_s, words
            for_what = ", ".join(dict.fromkeys(word.for_ for word in words.values()))
            text = f"waits for {self._named(missing)}" + (f" (waits for {for_what})" if for_what else "")
            if text != told:
                told = text
                say(text)
            if time.monotonic() > deadline:
                pools = dict.fromkeys(self.place.pools[i] for i in missing if self.place.pools[i])
                text = f"{self._named(missing)} did not arrive within {self.place.patience_s:.0f} s"
                self.end(text)
                way_out = "; start a worker: " + ", ".join(f"atelier worker {p}" for p in pools)
                raise AtelierError(text + (way_out if pools else ""))
            self._pause()
        nodes = [node for i in range(self.place.size) if (node := self._get(f"node-{i}", NodeHere))]
        is_one_machine = len({node.machine for node in nodes}) == 1
        host = "127.0.0.1" if is_one_machine else nodes[0].host
        where = f"tcp://{host}:{_free_port(host)}"
        go = GangStart(rendezvous=where, is_one_machine=is_one_machine, run=run)
        self._put("go", go)
        return go.env

    def follow(self) -> tuple[RunFile, dict[str, str]]:
        """On another node: the run file and environment of its ranks, once all nodes have arrived."""
        while True:
            go = self._get("go", GangStart)
            if go is not None:
                return go.run, go.env
            self.check()
            self._pause()

    def check(self) -> None:
        """Raises StoppedError when the gang has ended."""
        end = self._get("end", GangStop)
        if end is not None:
            raise StoppedError(f"the gang has ended: {end.why}")

    def why(self) -> str:
        """Why the gang has ended, as written by the node that ended first; '' while it runs."""
        end = self._get("end", GangStop)
        return end.why if end else ""

    def end(self, why: str) -> None:
        """Announce that this node ends the gang."""
        if not exists(join(self._folder, "end.json")):
            self._put("end", GangStop(why=why, by=self.place.index))

    def watch(self, stop: threading.Event, ended: threading.Event) -> None:
        """Thread: set `stop` when another node has ended the gang, and announce the reason why this one
        waits, until `ended` is set.
        """
        while not ended.wait(POLL_S):
            if waits_for := self._waits_for:
                self._beats += 1
                letter = NodeWaiting.model_validate({"for": waits_for, "beat": self._beats})
                self._put(f"waiting-{self.place.index}", letter)
            end = self._get("end", GangStop)
            if end is not None and end.by != self.place.index:
                stop.set()
                return

    def _named(self, indices: list[int]) -> str:
        pools = [f" (pool {pool})" if pool else "" for pool in self.place.pools]
        return ", ".join(f"node {i} of {self.place.size}{pools[i]}" for i in indices)

    def _pause(self) -> None:
        if self._stop.wait(POLL_S):
            self.end("stopped")
            raise StoppedError("stopped while the gang was gathering")

    def _put(self, name: str, letter: Spec) -> None:
        document = letter.model_dump(mode="json", by_alias=True, exclude_unset=True)
        write_bytes(join(self._folder, f"{name}.json"), json.dumps(document).encode())

    def _get(self, name: str, kind: type[SpecType]) -> SpecType | None:
        try:
            return read_as(kind, join(self._folder, f"{name}.json"), "a message of a gang")
        except FileNotFoundError:
            return None


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1" if host == "127.0.0.1" else "", 0))
        return probe.getsockname()[1]
