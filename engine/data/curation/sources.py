"""Iterate the shards of all sources in one curation task, without documents that earlier stages removed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atelier.engine.config.run_file import RunFile
from atelier.engine.data.curation.verdicts import DocumentLine, Verdict, left, number_of_shard
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.io.process import input_of
from atelier.engine.io.shards import ENDING, SHARDS, shard_names


@dataclass(frozen=True)
class SourceShards:
    """Units `<place of the source>-<number of the shard>`, in order. `verdicts`: of each source, artifacts
    with the folder of its shards there.
    """

    sources: tuple[str, ...]
    documents: tuple[ArtifactInput, ...]
    verdicts: tuple[tuple[tuple[ArtifactInput, str], ...], ...]
    units: list[str]

    @property
    def digest(self) -> list[str]:
        """Digests of everything that is read."""
        judged = (artifact for own in self.verdicts for artifact, _ in own)
        return [each.record.digest for each in (*self.documents, *judged)]

    def place(self, unit: str) -> int:
        return int(unit.partition("-")[0])

    def of(self, place: int) -> list[str]:
        """The units of one source."""
        return [unit for unit in self.units if self.place(unit) == place]

    def left(self, unit: str, scratch: Path) -> Iterator[tuple[int, DocumentLine, list[Verdict]]]:
        """The documents of a unit that no earlier stage removed, each with its row and verdicts."""
        place, shard = self.place(unit), f"{unit.partition('-')[2]}{ENDING}"
        verdicts = [(artifact, f"{folder}/{shard}") for artifact, folder in self.verdicts[place]]
        return left(self.documents[place], f"{SHARDS}/{shard}", verdicts, scratch)


def source_shards(run: RunFile, places: Mapping[str, int]) -> SourceShards:
    """The shards of sources, each with its place in the tasks of all sources: inputs documents.<source>, and
    where given verdicts.<source>, copies and overlaps.
    """
    documents = {source: input_of(run, f"documents.{source}") for source in places}
    verdicts: list[tuple[tuple[ArtifactInput, str], ...]] = []
    for source, place in places.items():
        wanted = {
            f"verdicts.{source}": SHARDS,
            **{stage: f"{stage}/{place}" for stage in ("copies", "overlaps")},
        }
        verdicts.append(
            tuple((input_of(run, name), folder) for name, folder in wanted.items() if name in run.inputs)
        )
    units = [
        f"{number:03d}-{number_of_shard(name)}"
        for number, each in enumerate(documents.values())
        for name in shard_names(each)
    ]
    return SourceShards(tuple(places), tuple(documents.values()), tuple(verdicts), units)


def places_of(sources: Sequence[str]) -> dict[str, int]:
    """The place of each source in a task of all of them."""
    return {source: place for place, source in enumerate(sources)}
