"""Find the file that computes an objective: kind `lm` is engine/objective/lm.py, unless its spec names
another file as its `term`.

A file has `token_loss` (and `token_gradient`, if it has a closed form): a loss of each scored token's logits,
computed in chunks (chunked.py). Or it has `terms`: sums over this rank's tokens from the model's other
outputs (terms.py), and optionally

    LOGGED          suffixes of the sums that it reports; default ("",)
    READS_RELATIONS whether it needs the attention of its teacher's last layer
    add_modules     adds modules to a student before its weights exist
"""

from collections.abc import Iterable
from types import ModuleType

from torch import nn

from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.kind_files import kind_module
from atelier.engine.config.registry import ObjectiveSpec, kinds

# suffixes of an objective's name: rows or tokens that it gets right, and tokens replaced
RIGHT, SHARE = ".right", ".share"


def module_of(spec: ObjectiveSpec) -> ModuleType:
    """The file that computes an objective. Raises ConfigError for an unknown kind."""
    known = kinds("objective")
    if spec.kind not in known:
        near = nearest(spec.kind, known)
        hint = f"did you mean {near}? " if near else ""
        raise ConfigError(
            "objective.kind", f"no objective {spec.kind!r}", f"{hint}there are: {', '.join(known)}"
        )
    return kind_module("objective", type(spec).term or spec.kind)


def is_of_tokens(spec: ObjectiveSpec) -> bool:
    """Whether it is a loss of each token's logits."""
    return hasattr(module_of(spec), "token_loss")


def logged(name: str, spec: ObjectiveSpec) -> list[str]:
    """The names of the sums that a step reports for the objective `name`."""
    return [name + suffix for suffix in getattr(module_of(spec), "LOGGED", ("",))]


def reads_teacher_logits(specs: Iterable[ObjectiveSpec]) -> bool:
    """Whether one of these objectives compares token distributions with the teacher's."""
    return any(type(spec).needs_teacher and is_of_tokens(spec) for spec in specs)


def reads_relations(specs: Iterable[ObjectiveSpec]) -> bool:
    """Whether one of these objectives compares attention with the teacher's."""
    return any(getattr(module_of(spec), "READS_RELATIONS", False) for spec in specs)


def add_modules(model: nn.Module, specs: Iterable[ObjectiveSpec], *, teacher_hidden: int) -> None:
    """Add the modules that these objectives need to a student's plain model, in place."""
    for spec in specs:
        add = getattr(module_of(spec), "add_modules", None)
        if add is not None:
            add(model, spec, teacher_hidden=teacher_hidden)
