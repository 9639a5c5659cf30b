"""The registry of objectives is this folder: an objective of kind `lm` is engine/objective/lm.py."""

import importlib
from typing import Any

from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.registry import kinds


def terms_of(kind: str) -> Any:
    """An objective's module: `token_loss`, and `token_gradient` if it has a closed form. Raises ConfigError
    for an unknown kind.
    """
    known = kinds("objective")
    if kind not in known:
        near = nearest(kind, known)
        hint = f"did you mean {near}? " if near else ""
        raise ConfigError("objective.kind", f"no objective {kind!r}", f"{hint}there are: {', '.join(known)}")
    return importlib.import_module(f"atelier.engine.objective.{kind}")
