"""The task `deduplicate`: find exact copies and near-copies over all sources, and decide which are removed.

Pass 1, by all ranks: keys, MinHash bands and shingles of every document. Pass 2, by rank 0: the decision.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import numpy as np

from atelier.engine.config.base import Json, parse
from atelier.engine.config.curation import Deduplicate
from atelier.engine.config.error import DataError
from atelier.engine.config.run_file import RunFile
from atelier.engine.config.task.curation import DeduplicateConfig
from atelier.engine.data.copies import normalised
from atelier.engine.data.curation.duplicates import Duplicates, decide
from atelier.engine.data.curation.minhash import MinHash, bands, share_found, shingles
from atelier.engine.data.curation.sources import SourceShards, places_of, source_shards
from atelier.engine.data.curation.spool import Ranks, Spool, added
from atelier.engine.data.curation.verdicts import Verdict, line_of
from atelier.engine.io.artifact import ArtifactOutput
from atelier.engine.io.process import Progress, output_of
from atelier.engine.io.shards import ArrayFile, Counts, ShardWriter, UnitFile, lines_of, size_of

EXAMPLES = 3
OPEN = 256  # files of shingles mapped at once
EXACT, NEAR = "exact_copy", "near_copy"


def deduplicate(
    run: RunFile, progress: Progress, ranks: Ranks
) -> tuple[ArtifactOutput, dict[str, Json]] | None:
    """Write verdicts for copies, and for kept documents of a cluster: copies/<place of the source>/NNNNN.
    Returns None on other ranks than the first.

    Raises DataError if a source loses too many documents as near-copies.
    """
    config = parse(DeduplicateConfig, run.config, "config")
    found = source_shards(run, places_of(config.sources))
    spool = Spool(run, "copies", [found.digest, config.deduplicate.as_identity()], ranks, progress)
    spool.each(found.units, lambda unit: _signatures(found, unit, config.deduplicate, spool.scratch))
    if not ranks.is_first:
        return spool.leave()
    signed = _Signed(spool, found, config.deduplicate.bands)
    decision = signed.decided(config.deduplicate)
    _check_losses(signed, decision, config.deduplicate.most_removed)
    output, named = output_of(run, "copies"), _Named(signed, decision)
    counts: Counts = {}
    for place, source in enumerate(config.sources):
        units = [f"v{unit}" for unit in found.of(place)]
        for unit in found.of(place):
            if spool.unit(f"v{unit}") is None:
                spool.finish(f"v{unit}", [named.verdicts(unit, spool.scratch)])
        counts[source] = spool.publish(units, output, f"copies/{place}")
    if not_compared := decision.not_compared + decision.not_listed:
        progress.warn(
            f"{not_compared} candidate pairs were not compared: their documents share bands with"
            f" more than data.curation.deduplicate.compared={config.deduplicate.compared} kept ones"
        )
    rows, threshold = config.deduplicate.rows, config.deduplicate.threshold
    return output, {
        **added(*counts.values()),
        "sources": counts,
        "clusters": int((decision.sizes_C > 1).sum()),
        "comparisons": decision.comparisons,
        "not_compared": not_compared,
        "share_found_at_threshold": round(share_found(threshold, config.deduplicate.bands, rows), 4),
    }


def _signatures(found: SourceShards, unit: str, spec: Deduplicate, scratch: Path) -> Iterable[UnitFile]:
    """Of the documents left in a shard: their rows, ids and sizes; keys and bands; shingles."""
    ids, minhash = ShardWriter(scratch / "ids.zst"), MinHash(bands=spec.bands, rows=spec.rows)
    rows: list[tuple[int, int, bytes, np.ndarray, int]] = []
    sets: list[np.ndarray] = [np.empty(0, dtype=np.uint64)]
    for row, document, _ in found.left(unit, scratch):
        text = document["text"]
        ids.write({"row": row, "id": document["id"], "bytes": size_of(text)})
        sets.append(shingles(text if text.isascii() else normalised(text)))  # equal for exact copies
        key = bytes.fromhex(document["key"])[:16]
        rows.append((row, len(text), key, bands(sets[-1], minhash), len(sets[-1])))
    table = np.array(rows, dtype=_row(spec.bands))
    return [
        ids,
        ArrayFile(scratch / "table.npy", table),
        ArrayFile(scratch / "sets.npy", np.concatenate(sets)),
    ]


def _row(num_bands: int) -> np.dtype:
    return np.dtype(
        [
            ("row", "<i8"),
            ("length", "<i8"),
            ("key", "V16"),
            ("bands", "<u8", (num_bands,)),
            ("shingles", "<i8"),
        ]
    )


class _Signed:
    """The documents of all sources, numbered in the order of their units."""

    def __init__(self, spool: Spool, found: SourceShards, num_bands: int) -> None:
        self._spool, self.found = spool, found
        tables = [np.load(spool.local(unit, 1), allow_pickle=False) for unit in found.units]
        self.first = dict(zip(found.units, np.cumsum([0, *map(len, tables)]).tolist(), strict=False))
        self._count = dict(zip(found.units, map(len, tables), strict=True))
        self.table = np.concatenate([np.empty(0, dtype=_row(num_bands)), *tables])
        self.sources_N = np.repeat(
            [found.place(unit) for unit in found.units] or [0], list(map(len, tables)) or [0]
        )
        self._sets: OrderedDict[str, np.ndarray] = OrderedDict()
        self._ends_N = np.concatenate(
            [np.cumsum(each["shingles"]) for each in tables] or [np.empty(0, "<i8")]
        )
        self._starts = np.array([*self.first.values()], dtype=np.int64)

    def decided(self, spec: Deduplicate) -> Duplicates:
        """Which documents are removed: sources by priority, in a source longer documents first."""
        order_N = np.lexsort((np.arange(len(self.table)), -self.table["length"], self.sources_N))
        return decide(
            np.ascontiguousarray(self.table["bands"]),
            np.ascontiguousarray(self.table["key"]).view("<u8").reshape(-1, 2),
            order_N,
            self.shingles_of,
            threshold=spec.threshold,
            keep=spec.keep,
            compared=spec.compared,
        )

    def shingles_of(self, number: int) -> np.ndarray:
        """The shingles of a document, from disk."""
        unit = self.unit_of(number)
        if unit not in self._sets:
            self._sets[unit] = np.load(self._spool.local(unit, 2), mmap_mode="r", allow_pickle=False)
            if len(self._sets) > OPEN:
                self._sets.popitem(last=False)
        end = int(self._ends_N[number])
        return self._sets[unit][end - int(self.table["shingles"][number]) : end]

    def rows(self, unit: str) -> list[int]:
        """The rows of a unit's documents in its shard."""
        first = self.first[unit]
        return self.table["row"][first : first + self._count[unit]].tolist()

    def is_exact_N(self, decision: Duplicates) -> np.ndarray:
        """Whether each document has the key of the document kept in its place."""
        keys_N = np.ascontiguousarray(self.table["key"]).view("<u8").reshape(-1, 2)
        return (keys_N == keys_N[decision.kept_N]).all(axis=1)

    def unit_of(self, number: int) -> str:
        return self.found.units[int(np.searchsorted(self._starts, number, side="right")) - 1]

    def ids(self, unit: str) -> Iterator[tuple[int, str, int]]:
        """(number, id, bytes) of the documents of a unit."""
        for number, line in enumerate(lines_of(self._spool.local(unit, 0)), start=self.first[unit]):
            yield number, str(line["id"]), cast(int, line["bytes"])

    def names(self, wanted: set[int]) -> dict[int, str]:
        """<source>/<id> of these documents."""
        result: dict[int, str] = {}
        for unit in sorted({self.unit_of(number) for number in wanted}):
            source = self.found.sources[self.found.place(unit)]
            result |= {number: f"{source}/{name}" for number, name, _ in self.ids(unit) if number in wanted}
        return result


def _check_losses(signed: _Signed, decision: Duplicates, most: float) -> None:
    is_near_N = (decision.kept_N != np.arange(len(decision.kept_N))) & ~signed.is_exact_N(decision)
    for place, source in enumerate(signed.found.sources):
        of_it_N = signed.sources_N == place
        lost = np.flatnonzero(of_it_N & is_near_N)
        if len(lost) <= most * max(1, int(of_it_N.sum())):
            continue
        shown = lost[:EXAMPLES].tolist()
        names = signed.names({*shown, *decision.kept_N[shown].tolist()})
        pairs = "; ".join(
            f"{names[n]} like {names[int(decision.kept_N[n])]} ({decision.jaccard_N[n]:.2f})" for n in shown
        )
        raise DataError(
            f"data.curation.deduplicate: {len(lost)} of {int(of_it_N.sum())} documents of the source {source}"
            f" are near-copies, more than most_removed={most:g}: {pairs}; raise"
            " data.curation.deduplicate.most_removed, or filter the source first"
        )


class _Named:
    """A decision with the names of the documents that verdicts mention."""

    def __init__(self, signed: _Signed, decision: Duplicates) -> None:
        self.signed, self.decision = signed, decision
        self._is_exact_N = signed.is_exact_N(decision)
        is_kept_N = decision.kept_N == np.arange(len(decision.kept_N))
        shared = np.flatnonzero(is_kept_N & (decision.sizes_C[decision.cluster_N] > 1))
        clusters, places = np.unique(decision.cluster_N[shared], return_index=True)
        self._first = dict(zip(clusters.tolist(), shared[places].tolist(), strict=True))
        mentioned = [decision.kept_N[~is_kept_N], decision.parent_N[~is_kept_N], shared[places]]
        self._names = signed.names({*np.concatenate(mentioned).tolist()})

    def verdicts(self, unit: str, scratch: Path) -> ShardWriter:
        """The verdicts of a unit: removed documents, and kept ones of a cluster."""
        writer, found = ShardWriter(scratch / "verdicts.zst"), self.decision
        rows = self.signed.rows(unit)
        for (number, name, size), row in zip(self.signed.ids(unit), rows, strict=True):
            verdict: Verdict = {"row": row, "id": name, "bytes": size, "reason": ""}
            cluster, kept = int(found.cluster_N[number]), int(found.kept_N[number])
            if kept != number:
                verdict["reason"] = EXACT if self._is_exact_N[number] else NEAR
                verdict["kept"] = self._names[kept]
                verdict["numbers"] = {"jaccard": round(float(found.jaccard_N[number]), 4)}
                if len(chain := found.chain(number)) > 1:
                    verdict["chain"] = [f"{self._names[n]} (Jaccard {j:.2f})" for n, j in chain]
                writer.count_document(size, "removed", verdict["reason"])
            else:
                writer.count_document(size, "kept")
            if int(found.sizes_C[cluster]) > 1:
                verdict["cluster"] = self._names[self._first[cluster]]
                verdict["size"] = int(found.sizes_C[cluster])
            if verdict["reason"] or "cluster" in verdict:
                writer.write(line_of(verdict))
        return writer
