"""Find the module of a kind of rows: rows of kind `mlm` are engine/data/datasets/mlm.py."""

from pathlib import Path
from typing import Protocol, cast

from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.kind_files import kind_module, kinds_in_roots
from atelier.engine.config.mixture import Stream
from atelier.engine.config.registry import ObjectiveSpec
from atelier.engine.data.blend import Dataset
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput


class RowsModule(Protocol):
    """A module of this folder. `open_rows` opens a data set of a split, whose rows are a pure function of
    (seed, index, epoch).

    `spec`: the objective whose fields define the rows; `tokens`: the artifact that the kind reads (tokens,
    attributes, triples or imitations).
    """

    def open_rows(
        self,
        spec: ObjectiveSpec | None,
        tokens: ArtifactInput,
        vocabulary: Vocabulary,
        scratch: Path,
        *,
        split: str,
        sequence: int,
        seed: int,
    ) -> Dataset: ...


def open_stream(
    stream: Stream,
    source: ArtifactInput,
    vocabulary: Vocabulary,
    scratch: Path,
    *,
    split: str,
    sequence: int,
    seed: int,
) -> Dataset:
    """The rows of a stream that are neither windows nor examples, in a training of `sequence` tokens."""
    return rows_of(stream.kind).open_rows(
        stream.rows,
        source,
        vocabulary,
        scratch,
        split=split,
        sequence=sequence if stream.rows is None else stream.rows.row_tokens(sequence),
        seed=seed,
    )


def kinds() -> list[str]:
    """The kinds of rows besides windows and examples, sorted."""
    own = (p.stem for p in Path(__file__).parent.glob("*.py") if p.stem not in ("__init__", "load"))
    return sorted({*own, *kinds_in_roots("data/datasets")})


def rows_of(kind: str) -> RowsModule:
    """The module of a kind of rows. Raises ConfigError for an unknown kind."""
    if kind not in kinds():
        near = nearest(kind, kinds())
        hint = f"did you mean {near}? " if near else ""
        raise ConfigError("rows.kind", f"no rows {kind!r}", f"{hint}there are: {', '.join(kinds())}")
    return cast(RowsModule, kind_module("data/datasets", kind, "open_rows"))
