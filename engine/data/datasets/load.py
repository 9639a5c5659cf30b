"""The registry of kinds of rows is this folder: rows of kind `mlm` are engine/data/datasets/mlm.py."""

import importlib
from pathlib import Path
from typing import Any

from atelier.engine.config.error import ConfigError, nearest


def kinds() -> list[str]:
    """The kinds of rows besides windows and examples, sorted."""
    return sorted(p.stem for p in Path(__file__).parent.glob("*.py") if p.stem not in ("__init__", "load"))


def rows_of(kind: str) -> Any:
    """A kind's module: its `open_rows(spec, tokens, vocabulary, scratch, *, split, sequence, seed)` opens a
    data set of a split, whose rows are a pure function of (seed, index, epoch).

    `tokens` is the artifact that the kind reads: tokens, attributes, triples or imitations. Raises
    ConfigError for an unknown kind.
    """
    if kind not in kinds():
        near = nearest(kind, kinds())
        hint = f"did you mean {near}? " if near else ""
        raise ConfigError("rows.kind", f"no rows {kind!r}", f"{hint}there are: {', '.join(kinds())}")
    return importlib.import_module(f"atelier.engine.data.datasets.{kind}")
