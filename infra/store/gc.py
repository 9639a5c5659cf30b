"""Garbage collection of a store: find what is no longer needed, and why.

Needed are the artifacts named by runs' manifests and aliases, the results of running flows, and all
ancestors. While a run is active, its next reads are unknown: then only scratch and stray attempts are
removed. The same holds if a manifest, record or alias is unreadable: damage never causes a removal.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from atelier.engine.config.document import whole_of
from atelier.engine.config.error import DamageError
from atelier.engine.config.record import KINDS, Record
from atelier.engine.io.storage import TEMPORARY, is_local, join, local_path, names
from atelier.infra.store.alias import Alias, places, read_alias
from atelier.infra.store.lease import LeaseLog
from atelier.infra.store.removal import Waste, below, holder_of, size_of
from atelier.infra.store.run_manifest import FOLDER, is_alive, read_manifests
from atelier.infra.store.store import SHORT, Store
from atelier.infra.store.trajectory import BIRTH, checkpoint_damage, checkpoint_steps, read_trajectory

PAYLOAD, RUNNING = "payload-", "running"
UNKNOWN_S = (
    24 * 3600.0
)  # a run without a manifest may still be running: it is kept until its files are this old
JOB_FOLDER_TTL_S = 30 * 24 * 3600.0  # a batch job may wait this long in a queue
ATTEMPT_S = 3600.0  # an unfinished write without a lease is left alone for this long


@dataclass(frozen=True)
class Finding:
    """`waste` may be removed; `left`: text about unnamed data that is kept."""

    waste: list[Waste]
    left: list[str]


class Collector:
    """Snapshot of a store to collect garbage from, as if runs with ids in `forget` did not exist."""

    def __init__(self, store: Store, forget: Iterable[str] = (), now: float | None = None) -> None:
        self.store = store
        self.forget = set(forget)
        self.now = time.time() if now is None else now
        found, self.unread = read_manifests(store)
        self.manifests = {manifest.id: manifest for manifest in found}
        self.left: list[str] = []
        self.damaged: dict[str, DamageError] = {}  # of records and aliases, by address or file
        self.records = dict(self._records())
        self.trajectory_records = dict(self._read_trajectories())
        self.aliases = list(self._aliases())
        self.elsewhere = {run for run, m in self.manifests.items() if is_alive(m) is None} - self.forget
        self.living = self._living_runs()
        self.unknown = [*self._unknown()]
        self.needed = self._needed()

    def find(self, *, damaged: bool = False, among: set[str] | None = None) -> Finding:
        """Everything that may be removed; with `damaged` also files that differ from their digest (reads
        every byte). `among`: only these urls, found by an earlier call.
        """
        self.among = among
        self.left += [f"artifacts and checkpoints, because {why}" for why in self.unknown]
        waste = [
            *self._artifacts(),
            *self._trajectories(),
            *self._scratch(),
            *self._job_folders(),
            *self._forgotten(),
        ]
        if damaged:
            known = {one.url for one in waste}
            waste += [one for one in self._damages() if one.url not in known]
        return Finding(waste=[one for one in waste if among is None or one.url in among], left=self.left)

    # contents of the store

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

    def _read_trajectories(self) -> Iterator[tuple[str, Record]]:
        for short in self._folders("trajectory"):
            address = join(self.store.root, "trajectory", short)
            try:
                yield address, read_trajectory(self.store, short)
            except FileNotFoundError:
                continue
            except DamageError as damage:
                self.damaged[join(address, BIRTH)] = damage

    def _aliases(self) -> Iterator[Alias]:
        for place in places(self.store.root):
            try:
                if (alias := read_alias(place)) is not None:
                    yield alias
            except DamageError as damage:
                self.damaged[place] = damage

    def _folders(self, kind: str) -> list[str]:
        return [name for name in names(join(self.store.root, kind)) if len(name) == SHORT]

    def _living_runs(self) -> set[str]:
        """Active runs: their process is alive or unknown, or their manifest is missing or unreadable and
        their files are young.
        """
        living = self.elsewhere | {run for run, manifest in self.manifests.items() if is_alive(manifest)}
        for run in names(join(self.store.root, "scratch")):
            is_known = run in self.manifests or run in self.forget
            if not is_known and self._age(join(self.store.root, "scratch", run)) < UNKNOWN_S:
                living.add(run)
        return living

    def _unknown(self) -> Iterator[str]:
        """Reasons why the needed artifacts are unknown, with ways out."""
        here = sorted(self.living - self.elsewhere)
        if here:
            yield f"a run is active that may read them ({', '.join(here)})"
        for run in sorted(self.elsewhere):
            yield (
                f"run {run} of another machine may be active; when it is over, `atelier gc --forget {run}`"
                " removes what only it needs"
            )
        for run, damage in sorted(self.unread.items()):
            if run not in self.forget:
                yield f"the needs of run {run} cannot be read: {damage}; {damage.way_out}"
        for damage in self.damaged.values():
            yield f"its needs cannot be read: {damage}; {damage.way_out}"

    # what is needed

    def _needed(self) -> set[str]:
        """Fingerprints of needed artifacts and trajectories, with all their ancestors."""
        kept_runs = (set(self.manifests) - self.forget) | self.living
        first = {
            row.fingerprint for run in kept_runs & set(self.manifests) for row in self.manifests[run].tasks
        }
        everything = [*self.records.values(), *self.trajectory_records.values()]
        first |= {
            kept
            for run in kept_runs & set(self.manifests)
            for row in self.manifests[run].tasks
            for kept in row.keeps
        }
        first |= {one.fingerprint for one in self.aliases}
        first |= {one.fingerprint for one in everything if one.provenance.get("run") in self.living}
        finished = {r.parents.get("trajectory") for r in self.records.values() if r.kind == "model"}
        unfinished = [
            trajectory_record
            for trajectory_record in self.trajectory_records.values()
            if trajectory_record.fingerprint not in finished
        ]
        first |= {
            trajectory_record.fingerprint
            for trajectory_record in unfinished
            if trajectory_record.provenance.get("run") in kept_runs
        }
        parents: dict[str, list[str]] = {}
        for one in everything:
            parents.setdefault(one.fingerprint, []).extend(one.parents.values())
        for run in kept_runs & set(self.manifests):
            for row in self.manifests[run].tasks:  # only the manifest has the parents of unfinished products
                parents.setdefault(row.fingerprint, []).extend(row.parents.values())
        needed, waiting = set(first), list(first)
        while waiting:
            for parent in parents.get(waiting.pop(), []):
                if parent not in needed:
                    needed.add(parent)
                    waiting.append(parent)
        return needed

    # what is not needed

    def _artifacts(self) -> Iterator[Waste]:
        for kind in KINDS:
            for short in self._folders(kind) if kind != "trajectory" else ():
                address = join(self.store.root, kind, short)
                record = self.records.get(address)
                if address in self.damaged or (
                    record is None and self._is_held(address, f"{kind} {short[:8]}")
                ):
                    continue
                if record is None:
                    if self._age(address) > ATTEMPT_S:
                        yield self._waste(address, f"{kind} {short[:8]}", "an interrupted attempt", address)
                elif record.fingerprint not in self.needed and not self.unknown:
                    yield self._waste(
                        address,
                        f"{kind} {record.name} {short[:8]}",
                        "no run or descendant needs it",
                        address,
                        is_finished=True,
                    )
                else:
                    yield from self._payloads(address, record)

    def _payloads(self, address: str, record: Record) -> Iterator[Waste]:
        listed = {entry.path.split("/", 1)[0] for entry in record.files}
        for name in names(address):
            if name.startswith(PAYLOAD) and name not in listed:
                what = f"{record.kind} {record.name} {record.fingerprint[:8]}/{name}"
                yield self._waste(join(address, name), what, "files of an attempt, not in the record")

    def _trajectories(self) -> Iterator[Waste]:
        models = [record for record in self.records.values() if record.kind == "model"]
        ends = {
            record.parents.get("trajectory", ""): whole_of(record.identity.get("step")) for record in models
        }
        shorts = {fingerprint[:SHORT] for fingerprint in self.needed}
        trunks = {
            trajectory_record.parents["trunk"]
            for trajectory_record in self.trajectory_records.values()
            if "trunk" in trajectory_record.parents
        }
        for short in self._folders("trajectory"):
            address = join(self.store.root, "trajectory", short)
            trajectory_record = self.trajectory_records.get(address)
            what = f"trajectory {trajectory_record.name if trajectory_record else ''} {short[:8]}".replace(
                "  ", " "
            )
            if self._is_held(address, what):
                continue
            if trajectory_record is None and self._age(address) < ATTEMPT_S:
                continue
            if self.unknown:
                continue
            if short not in shorts:
                yield self._waste(address, what, "no run or model needs this training", address)
            elif trajectory_record is not None and (
                trajectory_record.fingerprint in ends or trajectory_record.fingerprint in trunks
            ):
                yield from self._checkpoints(address, what)

    def _checkpoints(self, address: str, what: str) -> Iterator[Waste]:
        """Older checkpoints of a finished training. The newest, branch points and checkpoints marked as kept
        stay.
        """
        steps = checkpoint_steps(address)
        kept = {
            int(name)
            for marker in ("kept", "best")  # see engine/loop/save.py
            for name in names(join(address, marker))
            if name.isascii() and name.isdecimal()
        }
        fingerprint = self.trajectory_records[address].fingerprint
        kept |= {
            whole_of(b.identity.get("trunk_step"))
            for b in self.trajectory_records.values()
            if b.parents.get("trunk") == fingerprint
        }
        for step in steps[:-1]:
            if step not in kept:
                url = join(address, "checkpoints", f"step-{step:08d}")
                yield self._waste(
                    url,
                    f"{what}, step {step}",
                    "its model is finished; the newest, branch points and marked ones stay",
                    address,
                )

    def _scratch(self) -> Iterator[Waste]:
        for run in names(join(self.store.root, "scratch")):
            if run not in self.living and (run not in self.unread or run in self.forget):
                status = self.manifests[run].status if run in self.manifests else RUNNING
                status = "killed" if status == RUNNING else status  # its process is gone
                yield self._waste(
                    join(self.store.root, "scratch", run),
                    f"scratch of run {run}",
                    f"the run has ended ({status})",
                )
        if is_local(self.store.root):
            for path in sorted(local_path(self.store.root).glob(f"*/{TEMPORARY}*")):
                with suppress(FileNotFoundError):  # removed meanwhile by another process
                    if self.now - path.stat().st_mtime > ATTEMPT_S:
                        what = f"{path.parent.name}/{path.name}"
                        yield self._waste(str(path), what, "an interrupted write or removal")

    def _job_folders(self) -> Iterator[Waste]:
        """Job folders of gangs (orders and messages), left when their submitter died."""
        for gang in names(join(self.store.root, "gangs")):
            url = join(self.store.root, "gangs", gang)
            if self._age(url) > JOB_FOLDER_TTL_S:
                yield self._waste(url, f"messages of gang {gang}", "nothing was written for a month")

    def _forgotten(self) -> Iterator[Waste]:
        for run in sorted(self.forget & {*self.manifests, *self.unread} - self.living):
            yield self._waste(join(self.store.root, FOLDER, f"{run}.json"), f"run {run}", "to be forgotten")

    def _damages(self) -> Iterator[Waste]:
        found = {address: str(damage) for address, damage in self.damaged.items()}
        for address, record in self.records.items():
            damages = self.store.check(record) if self.among is None or address in self.among else []
            if damages:
                found[address] = damages[0] + (f" and {len(damages) - 1} more" if len(damages) > 1 else "")
        for address, damage in sorted(found.items()):
            yield from self._damage(address, damage)
        for kind in KINDS:
            for short in self._folders(kind):
                address = join(self.store.root, kind, short)
                if address not in self.records and address not in self.damaged:
                    yield from self._damaged_log(address, f"{kind} {short[:8]}")
                    yield from self._damaged_checkpoints(address, f"{kind} {short[:8]}")

    def _damaged_checkpoints(self, address: str, what: str) -> Iterator[Waste]:
        for step in checkpoint_steps(address):
            url = join(address, "checkpoints", f"step-{step:08d}")
            is_asked = self.among is None or url in self.among
            damage = checkpoint_damage(address, step) if is_asked else ""
            if damage and not self._is_held(address, what):
                place = damage.removeprefix(address).lstrip("/")
                why = f"DAMAGED: {place}; a training that needs it computes it again"
                yield self._waste(url, f"{what}, step {step}", why, address, is_damage=True)

    def _damage(self, address: str, damage: str) -> Iterator[Waste]:
        """What to remove so that it can be made again; for trajectory records and aliases only that file."""
        record = self.records.get(address)
        kind, short = address.rsplit("/", 2)[-2:]
        why = f"DAMAGED: {damage.removeprefix(address).lstrip('/')}; "
        if short == BIRTH:
            what = f"trajectory {kind[:8]}/{BIRTH}"
            yield self._waste(
                address, what, f"{why}the command that trained it writes it again", is_damage=True
            )
        elif address in self.damaged and kind not in KINDS:
            yield self._waste(address, f"alias {short}", f"{why}`atelier pick` sets it again", is_damage=True)
        else:
            what = f"{kind} {record.name} {short[:8]}" if record else f"{kind} {short[:8]}"
            if record is not None or not self._is_held(address, what):
                why += "the next run makes it again"
                yield self._waste(address, what, why, address, is_damage=True, is_finished=record is not None)

    def _damaged_log(self, address: str, what: str) -> Iterator[Waste]:
        log = LeaseLog(address)
        last = log.last()
        if last is not None and last.damage:
            why = f"DAMAGED: {last.damage}; it is removed when no holder has renewed it for a minute"
            place = log.place(last.number)
            yield self._waste(place, f"lease of {what}", why, address, is_damage=True, is_log=True)

    def _waste(self, url: str, what: str, why: str, address: str = "", **how: bool) -> Waste:
        return Waste(url=url, what=what, why=why, bytes=size_of(url), address=address, **how)

    def _is_held(self, address: str, what: str) -> bool:
        holder = holder_of(address)
        if holder:
            self.left.append(f"{what} is being written by {holder}")
        return bool(holder)

    def _age(self, url: str) -> float:
        """Seconds since the last change below `url`; 0 on a remote store."""
        if not is_local(url):
            return 0.0
        times = [each.st_mtime for each in below(local_path(url))]
        return self.now - max(times, default=0.0)
