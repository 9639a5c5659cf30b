"""The ledger of a sweep in the store: `{root}/sweeps/<id>/` has a file for the sweep and one for each point,
with number, state and runs. The same command resumes the sweep from it.
"""

import dataclasses
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict, cast

from atelier.engine.config.base import Json, fingerprint
from atelier.engine.config.error import ConfigError, DamageError
from atelier.engine.io.storage import join, names, read_object, write_bytes
from atelier.infra.store.conditional_create import create_exclusive
from atelier.infra.store.lease import Holder, Renewal, take
from atelier.infra.store.run_manifest import Row
from atelier.infra.store.store import Store

FOLDER = "sweeps"
ID = re.compile(r"[0-9a-f]{12}")
OF_EARLIER_VERSIONS = {"looks"}  # fields of a point's file that are no longer read
OPEN, DONE, FAILED, STOPPED, PRUNED = "open", "done", "failed", "stopped", "pruned"


@dataclass
class PointEntry:
    """Ledger entry of a point. `runs` are ids of Prefect runs, the newest last."""

    number: int
    fingerprint: str
    words: list[str]
    state: str = OPEN
    value: float | None = None
    error: str = ""
    runs: list[str] = field(default_factory=list)
    companions: dict[str, Json] = field(default_factory=dict)  # roles as they are configured
    made: list[dict[str, str]] = field(default_factory=list)  # as in a run's manifest, once it is done
    facts: dict[str, float] = field(default_factory=dict)  # of the model that is compared
    metric: str = ""  # the metric of `value`
    direction: str = ""  # whether higher or lower values are better; '' = written by an earlier version
    started: float = 0.0
    ended: float = 0.0
    run: str = ""  # id of the point's run in a job array, and its job in the batch system
    job: str = ""

    @property
    def rows(self) -> list[Row]:
        """The artifacts of the point."""
        return [Row.model_validate(one) for one in self.made]


@dataclass(frozen=True)
class SweepInfo:
    """Identity of a sweep: the flow, the overrides that all points share, the varied keys and the sweeper.
    Other values of the same keys are more points of the same sweep.
    """

    flow: str
    fixed: tuple[str, ...]
    keys: tuple[str, ...]
    sweeper: str

    @property
    def id(self) -> str:
        return fingerprint({k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()})[:12]


class SweepFile(TypedDict):
    """sweep.json: a SweepInfo, and when the sweep began."""

    flow: str
    fixed: list[str]
    keys: list[str]
    sweeper: str
    began: float


class PointEnd(TypedDict, total=False):
    """How a run of a point ended on another machine."""

    state: str
    error: str
    has_moved: bool  # its training made progress


class Ledger:
    """The points of one sweep. With `is_dry` nothing is written to the store."""

    def __init__(self, store: Store, sweep: str, *, is_dry: bool = False) -> None:
        self.store, self.id, self.is_dry = store, sweep, is_dry
        self._entered: dict[int, PointEntry] = {}  # when `is_dry`
        self._numbers: dict[str, int] = {}  # of points by fingerprint; filled when they are read
        self.folder = join(store.root, FOLDER, sweep)

    @staticmethod
    def begin(store: Store, about: SweepInfo) -> "Ledger":
        """Open the ledger of a sweep, or create it."""
        ledger = Ledger(store, about.id)
        document = asdict(about) | {"began": time.time()}
        create_exclusive(join(ledger.folder, "sweep.json"), _text(document))
        return ledger

    def about(self) -> SweepInfo:
        """The identity of the sweep. Raises ConfigError if there is no such sweep, DamageError if its file
        belongs to another sweep.
        """
        try:
            place = join(self.folder, "sweep.json")
            document = cast(SweepFile, read_object(place, "a sweep"))
        except FileNotFoundError:
            raise ConfigError(
                "sweep",
                f"there is no sweep {self.id} in {self.store.root}",
                f"there are: {_known(self.store)}",
            ) from None
        try:
            fixed, keys = (tuple(str(one) for one in document[name]) for name in ("fixed", "keys"))
            found = SweepInfo(str(document["flow"]), fixed, keys, str(document["sweeper"]))
        except (KeyError, TypeError):
            found = None
        if found is None or found.id != self.id:
            way_out = "move it away and run the sweep again: its results are found again"
            raise DamageError(f"{place}: not this sweep", way_out)
        return found

    @contextmanager
    def held(self, command: str) -> Iterator[None]:
        """Hold the sweep's lease. Raises ConfigError if another process runs this sweep."""

        def refuse(message: str) -> None:
            holder = message.partition(" is being written by ")[2].partition(";")[0]
            raise ConfigError(
                "sweep",
                f"{self.id} is being run by {holder}",
                "wait for it, or stop it; this command can then continue",
            )

        lease = take(join(self.folder, "lease"), Holder.me(command), on_wait=refuse)
        assert lease is not None  # nothing is published under this lease
        renewal = Renewal([lease])
        try:
            yield
        finally:
            renewal.stop()
            lease.let_go()

    def entries(self) -> list[PointEntry]:
        """All points, by number."""
        found = [self._read(name) for name in names(join(self.folder, "points")) if name.endswith(".json")]
        by_number = {entry.number: entry for entry in found} | self._entered
        return [by_number[number] for number in sorted(by_number)]

    def _read(self, name: str) -> PointEntry:
        place = join(self.folder, "points", name)
        try:
            document = cast(dict[str, Any], read_object(place, "a point of a sweep"))
            document = {key: value for key, value in document.items() if key not in OF_EARLIER_VERSIONS}
            entry = PointEntry(**document)  # types are checked below
            for one in dataclasses.fields(PointEntry):
                default = getattr(PointEntry(0, "", []), one.name)
                types = (float, int, type(None)) if one.name == "value" else _types_of(default)
                if not isinstance(getattr(entry, one.name), types):
                    raise TypeError(f"{one.name} is a {type(getattr(entry, one.name)).__name__}")
            return entry
        except (DamageError, TypeError) as error:
            text = (
                str(error) if isinstance(error, DamageError) else f"{place}: not a point of a sweep ({error})"
            )
            way_out = "move it away and run the sweep again: its results are found again"
            raise DamageError(text, way_out) from None

    def entry(self, number: int) -> PointEntry:
        """The entry of this point. Raises ConfigError for an unknown number."""
        if number in self._entered:
            return self._entered[number]
        try:
            return self._read(f"{number:06d}.json")
        except FileNotFoundError:
            raise ConfigError("sweep", f"{self.id} has no point {number}") from None

    def enter(self, point: str, words: Sequence[str]) -> PointEntry:
        """The entry of the point with this fingerprint; a new one gets the next number."""
        if not self._numbers:
            self._numbers = {entry.fingerprint: entry.number for entry in self.entries()}
        if point in self._numbers:
            return self.entry(self._numbers[point])
        number = max(self._numbers.values(), default=-1) + 1
        entry = PointEntry(number=number, fingerprint=point, words=list(words))
        self.write(entry)
        self._numbers[point] = number
        return entry

    def write(self, entry: PointEntry) -> None:
        if self.is_dry:
            self._entered[entry.number] = entry
            return
        write_bytes(join(self.folder, "points", f"{entry.number:06d}.json"), _text(asdict(entry)))

    # endings that runs on other machines report

    def tell_end(self, run: str, how: PointEnd) -> None:
        write_bytes(join(self.folder, "ends", f"{run}.json"), _text(cast(Json, how)))

    def end_of(self, run: str) -> PointEnd | None:
        """How the run ended; None if it has not, or could not write its ending."""
        try:
            return cast(PointEnd, read_object(join(self.folder, "ends", f"{run}.json"), "the end of a run"))
        except FileNotFoundError:
            return None


def _types_of(default: Json) -> tuple[type, ...]:
    return (float, int) if isinstance(default, float) else (type(default),)


def _text(document: Json) -> bytes:
    return json.dumps(document, sort_keys=True, indent=1).encode()


def _known(store: Store) -> str:
    return ", ".join(sorted(name for name in names(join(store.root, FOLDER)) if ID.fullmatch(name))) or "none"
