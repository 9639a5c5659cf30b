"""The units of a task over shards: the ranks of a gang make them, and keep finished ones in a folder beside
the output, so that a killed run makes only those that are missing.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

from atelier.engine.config.base import Json, canonical
from atelier.engine.config.error import AtelierError
from atelier.engine.config.message import from_line, to_line
from atelier.engine.config.record import FileEntry
from atelier.engine.config.run_file import RunFile
from atelier.engine.io.artifact import BODY, ArtifactOutput
from atelier.engine.io.process import Progress
from atelier.engine.io.shards import ENDING, SHARDS, Counts, UnitFile
from atelier.engine.io.storage import (
    exists,
    fetch,
    is_local,
    join,
    local_path,
    names,
    put_file,
    read_bytes,
    remove,
    write_bytes,
)

POLL_S = 0.05


class UnitPart(TypedDict):
    """One file of a unit: its entry in the output, and counts of its documents."""

    file: dict[str, Json]
    counts: Counts
    notes: list[str]
    extra: Json


def added(*counts: Mapping[str, Any]) -> Counts:
    """The sums of equal names, at every depth."""
    result: Counts = {}
    for each in counts:
        for name, value in each.items():
            before = result.get(name)
            if isinstance(value, Mapping):
                result[name] = added(before or {}, cast(Counts, value))
            else:
                result[name] = (before or 0) + value
    return result


@dataclass(frozen=True)
class Ranks:
    """This process among the gang's: rank 0 waits for the others and publishes."""

    rank: int = 0
    world: int = 1

    @staticmethod
    def here() -> "Ranks":
        """The rank that the supervisor gave this process."""
        return Ranks(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))

    @property
    def is_first(self) -> bool:
        return self.rank == 0


class Spool:
    """The folder of finished units beside an output: `<unit>.json` lists a unit's files, and is written after
    them. `key`: everything that the units' content depends on besides the artifact's identity and the code.
    """

    def __init__(self, run: RunFile, output: str, key: Json, ranks: Ranks, progress: Progress) -> None:
        folder, _, _ = run.outputs[output].rstrip("/").rpartition("/")
        mark = hashlib.sha256(canonical([run.task, run.version, key, run.sources])).hexdigest()[:8]
        self._body = join(run.outputs[output], BODY)
        self.url = join(folder, f"payload-spool-{mark}")
        self.ranks, self.scratch = ranks, Path(run.scratch) / f"work{ranks.rank}"
        self._gang = hashlib.sha256(run.scratch.encode()).hexdigest()[:8]  # other gangs may have left marks
        self._progress = progress

    def unit(self, name: str) -> list[UnitPart] | None:
        """The files of a finished unit; None if it is not finished."""
        try:
            return json.loads(read_bytes(self._entry(name)))
        except (FileNotFoundError, ValueError):
            return None

    def finish(self, name: str, files: Iterable[UnitFile]) -> None:
        """Store the files of a unit, then its entry."""
        parts: list[UnitPart] = []
        for number, writer in enumerate(files):
            writer.close()
            entry = put_file(writer.path, join(self.url, f"{name}.{number}{writer.ending}"))
            writer.path.unlink()
            about: UnitPart = {
                "file": entry.model_dump(), "counts": writer.counts, "notes": writer.notes,
                "extra": writer.extra,
            }  # fmt: skip
            parts.append(about)
        write_bytes(self._entry(name), json.dumps(parts).encode())

    def each(self, units: list[str], make: Callable[[str], Iterable[UnitFile]]) -> None:
        """Make this rank's missing units; then wait until all ranks have made theirs. Raises the error of any
        rank.
        """
        self._progress.start(len(units), "shards")
        done = 0
        for name in units[self.ranks.rank :: self.ranks.world]:
            self._raise_others()
            if self.unit(name) is None:
                self._or_tell(lambda name=name: self.finish(name, make(name)))
            done = self._advance(units, done)
        while (done := self._advance(units, done)) < len(units):
            self._raise_others()
            time.sleep(POLL_S)

    def once(self, name: str, make: Callable[[], bytes]) -> bytes:
        """The result of `make`, which rank 0 calls and all ranks get."""
        place = join(self.url, name)
        while True:
            if exists(place):
                return read_bytes(place)
            if self.ranks.is_first:
                self._or_tell(lambda: write_bytes(place, make()))
                continue
            self._raise_others()
            time.sleep(POLL_S)

    def publish(self, units: list[str], output: ArtifactOutput, folder: str = SHARDS) -> Counts:
        """Add all files of these units to the output, numbered in order, and warn of their notes. Returns the
        sum of their counts.
        """
        counts, number = [Counts()], 0
        output.when_closed(self.clear)
        for name in units:
            for part in self.unit(name) or ():
                entry = FileEntry.model_validate(part["file"])
                url = join(self.url, entry.path)
                output.link(f"{folder}/{number:05d}{ENDING}", url, entry)
                counts.append(part["counts"])
                number += 1
                for note in part["notes"]:
                    self._progress.warn(note)
        return added(*counts)

    def extra(self, name: str) -> list[Any]:
        """The extra lists of a finished unit's files, one after another."""
        return [each for part in self.unit(name) or () for each in cast(list[Any], part["extra"] or [])]

    def documents(self, name: str) -> tuple[int, int]:
        """Documents and bytes that a finished unit counted at the top."""
        counts = added(*(part["counts"] for part in self.unit(name) or ()))
        return counts.get("documents", 0), counts.get("bytes", 0)

    def local(self, name: str, place: int) -> Path:
        """A local path of a file of a finished unit: in place for a local store, otherwise a copy."""
        parts = self.unit(name)
        assert parts is not None
        url = join(self.url, FileEntry.model_validate(parts[place]["file"]).path)
        if is_local(url):
            return local_path(url)
        target = self.scratch / url.rsplit("/", 1)[-1]
        if not target.exists():
            fetch(url, target)
        return target

    def leave(self) -> None:
        """Called by other ranks than the first when they need the folder no longer."""
        write_bytes(self._mark("left", self.ranks.rank), b"")

    def clear(self) -> None:
        """Remove the folder when all ranks have left."""
        while not all(exists(self._mark("left", rank)) for rank in range(1, self.ranks.world)):
            self._raise_others()
            time.sleep(POLL_S)
        remove(self.url)

    def _entry(self, name: str) -> str:
        return join(self.url, f"{name}.json")

    def _advance(self, units: list[str], before: int) -> int:
        there = {name.rsplit("/", 1)[-1] for name in names(self.url)} if exists(self.url) else set[str]()
        done = sum(f"{name}.json" in there for name in units)
        self._progress.advance(done - before)
        return done

    def _or_tell(self, act: Callable[[], None]) -> None:
        """Rank 0 raises the errors of all ranks here: its messages are the ones that are read."""
        try:
            act()
        except AtelierError as error:
            write_bytes(self._mark("fault", self.ranks.rank), json.dumps(to_line(error)).encode())
            while not exists(self._mark("fault", 0)):  # rank 0 reports it, or its end ends this rank
                time.sleep(POLL_S)
            raise

    def _raise_others(self) -> None:
        if not self.ranks.is_first and (exists(self._body) or exists(self._mark("fault", 0))):
            self.leave()
            raise SystemExit(0)  # rank 0 has all it needs, or reports its error
        for rank in range(1, self.ranks.world if self.ranks.is_first else 0):
            if exists(place := self._mark("fault", rank)):
                write_bytes(self._mark("fault", 0), line := read_bytes(place))
                raise from_line(json.loads(line))

    def _mark(self, name: str, rank: int) -> str:
        return join(self.url, f"{name}-{rank}-{self._gang}")
