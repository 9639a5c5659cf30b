"""Explain why a document is, or is not, in a curated corpus, by the verdicts of its stages."""

import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.record import Record
from atelier.engine.io.artifact import ArtifactInput, open_input
from atelier.engine.io.shards import SHARDS, shard_lines, shard_names
from atelier.infra.store.store import Store

STAGES = {"filter_documents": "verdicts", "deduplicate": "copies", "decontaminate": "overlaps"}
Line = dict[str, Json]
CUT = {"overlap.cut", "overlap.short_piece"}  # reasons of documents that are kept in pieces
MOST = 20  # documents found by a piece of text
SHOWN = 240  # characters of a text


@dataclass(frozen=True)
class Explanation:
    """Of one document: the stage and verdict that removed it, or the lines that the corpus has of it."""

    source: str
    id: str
    text: str
    stage: str = ""  # that removed it; '' = it is kept
    verdict: Line | None = None  # of that stage; of a kept document: of the last stage that says something
    splits: tuple[str, ...] = ()  # of its lines in the corpus

    def words(self) -> list[str]:
        """Lines for a terminal."""
        verdict = self.verdict or {}
        if not self.stage:
            lines = [
                f"{self.source}/{self.id}: kept, {' and '.join(dict.fromkeys(self.splits)) or 'as one line'}"
            ]
        else:
            lines = [f"{self.source}/{self.id}: removed by {self.stage}: {verdict['reason']}"]
        numbers = cast(dict[str, float], verdict.get("numbers", {}))
        if numbers:
            lines.append("  " + ", ".join(f"{name} {value:g}" for name, value in numbers.items()))
        if "kept" in verdict:
            lines.append(f"  kept in its place: {verdict['kept']}")
        for step in cast(list[str], verdict.get("chain", [])):
            lines.append(f"  connected by {step}")
        if "cluster" in verdict:
            lines.append(f"  cluster of {verdict['size']} documents around {verdict['cluster']}")
        if "pieces" in verdict:
            pieces = cast(list[list[int]], verdict["pieces"])
            lines.append("  characters kept: " + ", ".join(f"{begin}-{end}" for begin, end in pieces))
        for question in cast(list[str], verdict.get("overlaps", [])):
            lines.append(f"  overlaps with {question}")
        text = " ".join(self.text.split())
        return [*lines, f"  text: {text[:SHOWN]}{'...' if len(text) > SHOWN else ''}"]


class Curated:
    """A curated corpus with the artifacts of its stages. Raises ConfigError if it was not curated."""

    def __init__(self, store: Store, record: Record) -> None:
        found = {role: store.address(_kind(role), fp) for role, fp in record.parents.items()}
        role = next((role for role in found if role.startswith("documents.")), "")
        if not role:
            raise ConfigError(
                "corpus",
                f"{record.name} {record.fingerprint[:8]} was not curated",
                "give one of data.curation",
            )
        self.source, self.documents = role.partition(".")[2], open_input(found[role])
        self.corpus = open_input(store.address("corpus", record.fingerprint))
        self.stages: list[tuple[str, ArtifactInput, str]] = []
        for stage, kind in STAGES.items():
            if (name := f"{kind}.{self.source}") in found:
                self.stages.append((stage, open_input(found[name]), SHARDS))
            if kind in found:
                judged = open_input(found[kind])
                place = cast(list[str], judged.record.identity["sources"]).index(self.source)
                self.stages.append((stage, judged, f"{kind}/{place}"))
        self._scratch = tempfile.TemporaryDirectory()
        self.scratch = Path(self._scratch.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._scratch.cleanup()

    def documents_of(self, shard: str) -> Iterator[tuple[int, Line]]:
        return enumerate(shard_lines(self.documents, shard, self.scratch))

    def verdicts_of(self, shard: str) -> dict[int, list[tuple[str, Line]]]:
        """By row: the stages' verdicts, in their order."""
        result: dict[int, list[tuple[str, Line]]] = {}
        for stage, artifact, folder in self.stages:
            for line in shard_lines(artifact, f"{folder}/{shard.rsplit('/', 1)[-1]}", self.scratch):
                result.setdefault(cast(int, line["row"]), []).append((stage, line))
        return result

    def explanation(
        self, row: int, document: Line, verdicts: dict[int, list[tuple[str, Line]]]
    ) -> Explanation:
        own = verdicts.get(row, [])
        stage, verdict = next(((s, v) for s, v in own if v["reason"]), ("", own[-1][1] if own else None))
        name, text = str(document["id"]), str(document["text"])
        splits = () if stage else tuple(self._splits(name))
        return Explanation(self.source, name, text, stage, verdict, splits)

    def _splits(self, name: str) -> Iterator[str]:
        for shard in shard_names(self.corpus):
            for line in shard_lines(self.corpus, shard, self.scratch):
                if line["id"] == name or str(line["id"]).startswith((f"{name}#", f"{name}/")):
                    yield str(line["split"])


def explain(store: Store, corpus: str, document: str) -> list[Explanation]:
    """The documents with this id, or `<source>/<id>`; else those that contain this text, at most MOST. Raises
    ConfigError if there is none.
    """
    with Curated(store, store.resolve(corpus, "corpus")) as curated:
        wanted = document.removeprefix(f"{curated.source}/")
        ids: list[str] = []
        by_text: list[Explanation] = []
        for shard in shard_names(curated.documents):
            verdicts: dict[int, list[tuple[str, Line]]] | None = None
            for row, line in curated.documents_of(shard):
                ids.append(str(line["id"]))
                is_it = line["id"] in (wanted, document)
                if is_it or (len(by_text) < MOST and document in str(line["text"])):
                    verdicts = curated.verdicts_of(shard) if verdicts is None else verdicts
                    found = curated.explanation(row, line, verdicts)
                    if is_it:
                        return [found]
                    by_text.append(found)
    if not by_text:
        near = nearest(wanted, ids)
        way_out = f"did you mean {near}?" if near else "give an id or a piece of its text"
        raise ConfigError("document", f"{corpus} has read no document {document!r}", way_out)
    return by_text


def sample(store: Store, corpus: str, count: int, reason: str, seed: int = 0) -> list[Explanation]:
    """`count` documents that were removed or cut for a reason that contains `reason`, drawn by `seed`, in
    order. Raises ConfigError if there is none, with the reasons that occur.
    """
    with Curated(store, store.resolve(corpus, "corpus")) as curated:
        places: list[tuple[str, int]] = []
        reasons: set[str] = set()
        for shard in shard_names(curated.documents):
            for row, own in curated.verdicts_of(shard).items():
                mine = {str(verdict["reason"]) for _, verdict in own if verdict["reason"]}
                mine |= CUT if any("pieces" in verdict for _, verdict in own) else set()
                reasons |= mine
                if any(reason in each for each in mine):
                    places.append((shard, row))
        if not places:
            there = ", ".join(sorted(reasons)) or "none: every document is kept"
            raise ConfigError(
                "--reason", f"no document was removed for {reason!r}", f"reasons there: {there}"
            )
        chosen = set(random.Random(seed).sample(sorted(places), min(count, len(places))))
        result: list[Explanation] = []
        for shard in sorted({shard for shard, _ in chosen}):
            verdicts = curated.verdicts_of(shard)
            result += [
                curated.explanation(row, line, verdicts)
                for row, line in curated.documents_of(shard)
                if (shard, row) in chosen
            ]
        return result


def _kind(role: str) -> str:
    return role.partition(".")[0]
