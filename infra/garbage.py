"""What nothing needs any more, and why. A kill at any moment of its removal leaves no half artifact.

Needed is what a run's manifest or an alias names, what a running flow has made, and all that these came
from. While a run goes on, what it may be about to read is not known: then only scratch and stray attempts go.
"""

import os
import stat
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.spec.error import DamageError, StoppedError
from engine.spec.record import KINDS, Record
from engine.storage import TEMPORARY, exists, is_local, join, local_path, names, remove, size_below
from infra.alias import aliases
from infra.exclusive import unlist
from infra.lease import LOG, Holder, Log, take
from infra.lineage import read_birth
from infra.manifests import FOLDER, manifests
from infra.store import RECORD, SHORT, Store
from infra.trajectory import checkpoint_steps

PAYLOAD = "payload-"
UNKNOWN_S = (
    24 * 3600.0
)  # a run without a manifest may still be going on: it is left alone until its files are this old
LETTERS_S = 30 * 24 * 3600.0  # a gang's job may wait so long in a queue
ATTEMPT_S = 3600.0  # an unfinished write without a lease is left alone for this long


@dataclass(frozen=True)
class Waste:
    """One thing that may go, why, and its size. `address` is the artifact to lock meanwhile."""

    url: str
    what: str
    why: str
    bytes: int
    address: str = ""
    is_damage: bool = False


@dataclass(frozen=True)
class Finding:
    """`waste` may go; `left` says in words what was left alone although nothing names it."""

    waste: list[Waste]
    left: list[str]


class Collector:
    """One look at a store. `forget` are ids of runs that count as if they had never been."""

    def __init__(self, store: Store, forget: Iterable[str] = (), now: float | None = None) -> None:
        self.store = store
        self.forget = set(forget)
        self.now = time.time() if now is None else now
        self.manifests = {m["id"]: m for m in manifests(store) if "id" in m}
        self.left: list[str] = []
        self.damaged: dict[str, DamageError] = {}
        self.records = dict(self._records())
        self.births = dict(self._births())
        self.living = self._living_runs()
        self.needed = self._needed()

    def find(self, *, damaged: bool = False) -> Finding:
        """Everything that may go; with `damaged` also what differs from its digest (reads every byte)."""
        if self.living:
            runs = ", ".join(sorted(self.living))
            self.left.append(f"artifacts and checkpoints, because a run goes on that may read them ({runs})")
        waste = [
            *self._artifacts(),
            *self._trajectories(),
            *self._scratch(),
            *self._letters(),
            *self._forgotten(),
        ]
        if damaged:
            known = {one.url for one in waste}
            waste += [one for one in self._damages() if one.url not in known]
        return Finding(waste=waste, left=self.left)

    # what there is

    def _records(self) -> Iterator[tuple[str, Record]]:
        for kind in KINDS:
            for short in self._folders(kind):
                address = join(self.store.root, kind, short)
                try:
                    record = self.store.find(kind, short)
                except DamageError as damage:
                    self.damaged[address] = damage
                    continue
                if record is not None:
                    yield address, record

    def _births(self) -> Iterator[tuple[str, Record]]:
        for short in self._folders("trajectory"):
            birth = read_birth(self.store, short)
            if birth is not None:
                yield join(self.store.root, "trajectory", short), birth

    def _folders(self, kind: str) -> list[str]:
        return [name for name in names(join(self.store.root, kind)) if len(name) == SHORT]

    def _living_runs(self) -> set[str]:
        """Runs that go on: their process lives, or nobody can tell and their files are young."""
        living = set()
        for run, manifest in self.manifests.items():
            if manifest.get("status") == "running" and not _is_gone(manifest.get("holder")):
                living.add(run)
        for run in names(join(self.store.root, "scratch")):
            if run not in self.manifests and self._age(join(self.store.root, "scratch", run)) < UNKNOWN_S:
                living.add(run)
        return living

    # what is needed

    def _needed(self) -> set[str]:
        """Fingerprints of artifacts and trajectories that runs name, with everything they came from."""
        kept_runs = (set(self.manifests) - self.forget) | self.living
        first = {
            task["fingerprint"]
            for run in kept_runs & set(self.manifests)
            for task in self.manifests[run].get("tasks", [])
        }
        everything = [*self.records.values(), *self.births.values()]
        first |= {one.fingerprint for one in aliases(self.store.root)}
        first |= {one.fingerprint for one in everything if one.provenance.get("run") in self.living}
        finished = {r.parents.get("trajectory") for r in self.records.values() if r.kind == "model"}
        unfinished = [birth for birth in self.births.values() if birth.fingerprint not in finished]
        first |= {birth.fingerprint for birth in unfinished if birth.provenance.get("run") in kept_runs}
        parents: dict[str, list[str]] = {}
        for one in everything:
            parents.setdefault(one.fingerprint, []).extend(one.parents.values())
        for run in kept_runs & set(
            self.manifests
        ):  # what a run names may be unfinished: then its manifest knows the parents
            for task in self.manifests[run].get("tasks", []):
                parents.setdefault(task["fingerprint"], []).extend(task.get("parents", {}).values())
        needed, waiting = set(first), list(first)
        while waiting:
            for parent in parents.get(waiting.pop(), []):
                if parent not in needed:
                    needed.add(parent)
                    waiting.append(parent)
        return needed

    # what is not

    def _artifacts(self) -> Iterator[Waste]:
        for kind in KINDS:
            for short in self._folders(kind) if kind != "trajectory" else ():
                address = join(self.store.root, kind, short)
                record = self.records.get(address)
                if address in self.damaged or self._is_held(address, f"{kind} {short[:8]}"):
                    continue
                if record is None:
                    if self._age(address) > ATTEMPT_S:
                        yield self._waste(
                            address, f"{kind} {short[:8]}", "an attempt that was cut off", address
                        )
                elif record.fingerprint not in self.needed and not self.living:
                    yield self._waste(
                        address,
                        f"{kind} {record.name} {short[:8]}",
                        "no run names it, and nothing came of it",
                        address,
                    )
                else:
                    yield from self._payloads(address, record)

    def _payloads(self, address: str, record: Record) -> Iterator[Waste]:
        listed = {entry.path.split("/", 1)[0] for entry in record.files}
        for name in names(address):
            if name.startswith(PAYLOAD) and name not in listed:
                what = f"{record.kind} {record.name} {record.fingerprint[:8]}/{name}"
                yield self._waste(
                    join(address, name), what, "files of an attempt that its record does not list"
                )

    def _trajectories(self) -> Iterator[Waste]:
        models = [record for record in self.records.values() if record.kind == "model"]
        ends = {
            record.parents.get("trajectory", ""): int(record.identity.get("step", 0)) for record in models
        }
        trunks = {birth.parents["trunk"] for birth in self.births.values() if "trunk" in birth.parents}
        for short in self._folders("trajectory"):
            address = join(self.store.root, "trajectory", short)
            birth = self.births.get(address)
            what = f"trajectory {birth.name if birth else ''} {short[:8]}".replace("  ", " ")
            if self._is_held(address, what):
                continue
            if birth is None and self._age(address) < ATTEMPT_S:
                continue
            if self.living:
                continue
            if birth is None or birth.fingerprint not in self.needed:
                yield self._waste(address, what, "no run's training, and no model came of it", address)
            elif birth.fingerprint in ends or birth.fingerprint in trunks:
                yield from self._checkpoints(address, what)

    def _checkpoints(self, address: str, what: str) -> Iterator[Waste]:
        """Older checkpoints of a training that is over: the newest, those at branch points and those that it
        was asked to keep stay.
        """
        steps = checkpoint_steps(address)
        kept = {
            int(name)
            for marker in ("kept", "best")  # see engine/loop/retention.py
            for name in names(join(address, marker))
            if name.isdigit()
        }
        fingerprint = self.births[address].fingerprint
        kept |= {
            int(b.identity.get("trunk_step", 0))
            for b in self.births.values()
            if b.parents.get("trunk") == fingerprint
        }
        for step in steps[:-1]:
            if step not in kept:
                url = join(address, "checkpoints", f"step-{step:08d}")
                yield self._waste(
                    url,
                    f"{what}, step {step}",
                    "its model is finished; the newest, branch points and what was asked for stay",
                    address,
                )

    def _scratch(self) -> Iterator[Waste]:
        for run in names(join(self.store.root, "scratch")):
            if run not in self.living:
                status = self.manifests.get(run, {}).get("status", "was cut off")
                yield self._waste(
                    join(self.store.root, "scratch", run),
                    f"scratch of run {run}",
                    f"the run has ended ({status})",
                )
        if is_local(self.store.root):
            for path in sorted(local_path(self.store.root).glob(f"*/{TEMPORARY}*")):
                with suppress(FileNotFoundError):  # another's removal, and it is over
                    if self.now - path.stat().st_mtime > ATTEMPT_S:
                        what = f"{path.parent.name}/{path.name}"
                        yield self._waste(str(path), what, "a write or a removal that was cut off")

    def _letters(self) -> Iterator[Waste]:
        """Orders and messages of gangs on other machines, left by whoever asked for them and died."""
        for gang in names(join(self.store.root, "gangs")):
            url = join(self.store.root, "gangs", gang)
            if self._age(url) > LETTERS_S:
                yield self._waste(url, f"letters of gang {gang}", "nothing came or went for a month")

    def _forgotten(self) -> Iterator[Waste]:
        for run in sorted(self.forget & set(self.manifests) - self.living):
            yield self._waste(join(self.store.root, FOLDER, f"{run}.json"), f"run {run}", "to be forgotten")

    def _damages(self) -> Iterator[Waste]:
        found = {address: str(damage) for address, damage in self.damaged.items()}
        for address, record in self.records.items():
            damages = self.store.check(record)
            if damages:
                found[address] = damages[0] + (f" and {len(damages) - 1} more" if len(damages) > 1 else "")
        for address, damage in sorted(found.items()):
            record = self.records.get(address)
            kind, short = address.rsplit("/", 2)[-2:]
            what = f"{kind} {record.name} {short[:8]}" if record else f"{kind} {short[:8]}"
            if not self._is_held(address, what):
                why = f"DAMAGED: {damage.removeprefix(address).lstrip('/')}; the next run makes it again"
                yield self._waste(address, what, why, address, is_damage=True)

    def _waste(self, url: str, what: str, why: str, address: str = "", *, is_damage: bool = False) -> Waste:
        return Waste(url=url, what=what, why=why, bytes=size_of(url), address=address, is_damage=is_damage)

    def _is_held(self, address: str, what: str) -> bool:
        holder = holder_of(address)
        if holder is not None:
            self.left.append(f"{what} is being written by {holder}")
        return holder is not None

    def _age(self, url: str) -> float:
        """Seconds since anything below `url` changed; a store that does not tell makes it young."""
        if not is_local(url):
            return 0.0
        times = [each.st_mtime for each in _below(local_path(url))]
        return self.now - max(times, default=0.0)


def holder_of(address: str) -> Holder | None:
    """Who holds the lease of an address and may be alive; None when nobody does."""
    last = Log(address).last()
    if last is None or last.act != "take":
        return None
    holder = Holder(**last.holder)
    return None if holder.is_gone() else holder


def discard(waste: Waste) -> bool:
    """Remove it by one rename; False when somebody has taken it up meanwhile."""
    if not waste.address:
        remove(waste.url)
        return True
    last = Log(waste.address).last()
    if last is None and not exists(waste.address):
        return True  # somebody else's removal was faster
    is_published = last is not None and last.act == "publish"
    if not is_published:
        at_once = threading.Event()
        at_once.set()
        with suppress(StoppedError):
            lease = take(waste.address, Holder.me("gc"), stopped=at_once)
            if lease is not None:
                _vanish(waste.url)
                if waste.url != waste.address:
                    lease.release()
                return True
        return False
    _vanish(waste.url)
    return True


def _vanish(url: str) -> None:
    if not is_local(url):
        unlist(url)
        for each in (join(url, LOG), join(url, RECORD), url):  # or a reader would write its record anew
            remove(each)
        return
    path = local_path(url)
    aside = path.parent / f"{TEMPORARY}gc-{uuid.uuid4().hex[:8]}"
    with suppress(FileNotFoundError):
        path.rename(aside)
        remove(str(aside))


def size_of(url: str) -> int:
    """Bytes of a file or of all files below a folder."""
    if is_local(url):
        return sum(each.st_size for each in _below(local_path(url)) if stat.S_ISREG(each.st_mode))
    return size_below(url)


def _below(path: Path) -> Iterator[os.stat_result]:
    """What the system says of a file, or of a folder and all below it; of what vanishes meanwhile nothing."""
    paths = [str(path)]
    if not path.is_symlink():
        paths += [
            os.path.join(root, name) for root, *names in os.walk(path) for name in (*names[0], *names[1])
        ]
    for each in paths:
        with suppress(FileNotFoundError):
            yield os.stat(each)


def _is_gone(holder: dict[str, Any] | None) -> bool:
    return holder is not None and Holder(**holder).is_gone()
