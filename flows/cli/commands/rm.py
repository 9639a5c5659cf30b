"""`atelier rm <model>`: remove a model and what goes with it, after asking."""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator

from atelier.engine.config.error import ConfigError, printable
from atelier.engine.config.record import Record
from atelier.flows.run.store_check import check_root, open_store
from atelier.flows.run.table import amount, print_table
from atelier.infra.store.alias import places, read_alias
from atelier.infra.store.gc import Collector
from atelier.infra.store.removal import Waste, discard, holder_of, removing, size_of
from atelier.infra.store.store import Store

ABOUT = ("scores", "evaluation", "exam", "audit", "report", "registration")  # kinds that say something of it
MOST = 4


def run(options: Namespace) -> int:
    """List what goes, ask, and remove it. Returns the exit code. Raises ConfigError if others descend from
    the model, or a run may need it.
    """
    if options.json and not (options.yes or options.dry_run):
        raise ConfigError("rm --json", "does not ask", "add --yes or --dry-run")
    store = open_store()
    model = store.resolve(options.model, "model")
    removal = ModelRemoval(store, model)
    removal.check()
    waste = removal.waste()
    if not options.json:
        rows = [(f"{amount(one.bytes)}B", one.what, one.why) for one in waste]
        print_table(("size", "what", "why"), rows, right=("size",), flexible="why")
        if runs := manifests_of(removal):
            print(printable(f"run again, these make it again: {', '.join(runs[-3:])}", 0))
    is_agreed = not options.dry_run and (options.yes or _agreed(waste))
    gone = _removed(store, options.model, waste) if is_agreed else []
    if options.json:
        goes = [{"what": one.what, "why": one.why, "bytes": one.bytes} for one in waste]
        about = {"model": model.fingerprint, "goes": goes, "removed": [one.what for one in gone]}
        print(json.dumps(about, indent=1))
    elif not options.dry_run:
        total = amount(sum(one.bytes for one in gone))
        print(f"removed {len(gone)} things, {total}B" if gone else "nothing was removed")
    return 0 if options.dry_run or not is_agreed or len(gone) == len(waste) else 1


def _removed(store: Store, word: str, waste: list[Waste]) -> list[Waste]:
    """Remove what was shown, the model last, if it may still go: a run may have begun meanwhile. No run can
    start to use anything during the removal.
    """
    check_root(will_write=True)
    with removing(store.root, lambda text: print(printable(text, 0), file=sys.stderr)) as lease:
        now = ModelRemoval(store, store.resolve(word, "model"))
        now.check()
        still = {one.url for one in now.waste()}
        if {one.url for one in waste} != still:
            raise ConfigError("rm", "the store has changed since it was listed", "start the command again")
        gone: list[Waste] = []
        for one in waste:
            if not lease.is_mine() or not discard(one):
                print(printable(f"kept: {one.what}, because it is in use again", 0), file=sys.stderr)
                break
            gone.append(one)
        return gone


def _agreed(waste: list[Waste]) -> bool:
    """Ask on the terminal; end of input counts as no."""
    print(f"remove these {len(waste)} things? [y/N] ", end="", flush=True)
    answer = sys.stdin.readline()
    if not answer:
        print()
    return answer.strip().lower() in ("y", "yes")


class ModelRemoval:
    """A snapshot of the store, to remove one model from."""

    def __init__(self, store: Store, model: Record) -> None:
        self.store, self.model = store, model
        self.collector = Collector(store)
        self.records = list(self.collector.records.values())
        self.trainings = {one.fingerprint: one for one in self.collector.trajectory_records.values()}

    def check(self) -> None:
        """Raises ConfigError if others descend from the model, or a run may need it."""
        heirs = [f"{one.kind} {one.name} {one.fingerprint[:8]}" for one in self._heirs()]
        name = f"{self.model.name} {self.model.fingerprint[:8]}"
        if heirs:
            more = f" and {len(heirs) - MOST} more" if len(heirs) > MOST else ""
            problem = f"{', '.join(heirs[:MOST])}{more} descend from {name}"
            raise ConfigError("rm", problem, "remove those first; `atelier lineage` shows them")
        if self.collector.unknown:
            problem = f"{name} may be needed: {self.collector.unknown[0]}"
            raise ConfigError("rm", problem, "try again when no run is active and nothing is damaged")
        for training in self._trainings():
            if holder := holder_of(self.store.address("trajectory", training.fingerprint)):
                raise ConfigError("rm", f"its training is being written by {holder}", "stop it first")

    def waste(self) -> list[Waste]:
        """Everything that goes: what says something of the model, its aliases, its training, the model."""
        found = [self._artifact(one, "it is about the model") for one in self._about()]
        gone = {self.model.fingerprint, *(one.fingerprint for one in self._about())}
        for place in places(self.store.root):
            alias = read_alias(place)
            if alias is not None and alias.fingerprint in gone:
                found.append(Waste(place, f"alias {alias}", "it names the model", size_of(place)))
        for training in self._trainings():
            address = self.store.address("trajectory", training.fingerprint)
            what = f"trajectory {training.name} {training.fingerprint[:8]}"
            why = "its training, with checkpoints and metrics; no other model has it"
            found.append(Waste(address, what, why, size_of(address), address))
        return [*found, self._artifact(self.model, "the model")]

    def _artifact(self, record: Record, why: str) -> Waste:
        address = self.store.address(record.kind, record.fingerprint)
        what = f"{record.kind} {record.name} {record.fingerprint[:8]}"
        return Waste(address, what, why, size_of(address), address, is_finished=True)

    def _about(self) -> list[Record]:
        """Records of the kinds ABOUT that descend from the model."""
        gone, found = {self.model.fingerprint}, list[Record]()
        while new := [
            one
            for one in self.records
            if one.kind in ABOUT and one.fingerprint not in gone and not gone.isdisjoint(one.parents.values())
        ]:
            found += new
            gone |= {one.fingerprint for one in new}
        return found[::-1]

    def _heirs(self) -> list[Record]:
        """The artifacts made from the model: students, models that started from its weights, and models that
        continued its training.
        """
        own = {self.model.fingerprint, *(one.fingerprint for one in self._about())}
        training = self.model.parents.get("trajectory", "")
        found = [one for one in self.records if self._descends(one, own, training)]
        ended = {one.parents.get("trajectory") for one in self.records}
        found += [
            one
            for one in self.trainings.values()
            if one.fingerprint not in ended and self._descends(one, own, training)
        ]
        return found

    def _descends(self, one: Record, own: set[str], training: str) -> bool:
        if one.fingerprint in own:
            return False
        through = [fp for role, fp in one.parents.items() if role != "trajectory"]
        trained = self.trainings.get(one.parents.get("trajectory", ""))
        if one.kind == "model" and trained is not None:
            through += trained.parents.values()  # also a branch of its training, or of its teacher's
        return not own.isdisjoint(through) or (bool(training) and training in through)

    def _trainings(self) -> list[Record]:
        """The model's training and its trunks, those that nothing else needs, the newest first."""
        found, gone = list[Record](), {self.model.fingerprint}
        fingerprint = self.model.parents.get("trajectory", "")
        while (training := self.trainings.get(fingerprint)) is not None:
            if any(fingerprint in one.parents.values() for one in self._others(gone)):
                break
            found.append(training)
            gone.add(fingerprint)
            fingerprint = training.parents.get("trunk", "")
        return found

    def _others(self, gone: set[str]) -> Iterator[Record]:
        for one in (*self.records, *self.trainings.values()):
            if one.fingerprint not in gone:
                yield one


def manifests_of(removal: ModelRemoval) -> list[str]:
    """The runs that name the model: they would make it again."""
    return [
        run
        for run, manifest in removal.collector.manifests.items()
        if any(row.fingerprint == removal.model.fingerprint for row in manifest.tasks)
    ]
