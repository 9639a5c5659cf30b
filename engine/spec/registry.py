"""The folder is the registry: `kind: gpt` of group `model` is engine/spec/model/gpt.py, and a name can only
pick a file of that folder.
"""

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny

from atelier.engine.spec.base import Spec, nearest
from atelier.engine.spec.kinds import ModelSpec, ObjectiveSpec, OptimSpec

FOLDER = Path(__file__).parent


def kinds(group: str) -> list[str]:
    """The names that `kind:` may have in a group, sorted."""
    return sorted(path.stem for path in (FOLDER / group).glob("*.py") if path.stem != "__init__")


def spec_class(group: str, kind: str) -> type[Any]:
    """The one Spec class that engine/spec/<group>/<kind>.py defines."""
    if kind not in kinds(group):
        near = nearest(kind, kinds(group))
        hint = f"did you mean {near}? " if near else ""
        raise ValueError(f"no {group} of kind {kind!r}; {hint}there are: {', '.join(kinds(group))}")
    module = importlib.import_module(f"atelier.engine.spec.{group}.{kind}")
    found = [
        v
        for v in vars(module).values()
        if isinstance(v, type) and issubclass(v, Spec) and v.__module__ == module.__name__
    ]
    return next(v for v in found if "kind" in v.model_fields)


def _chooser(group: str) -> Callable[[Any], Any]:
    def choose(value: Any) -> Any:
        if isinstance(value, Spec) or not isinstance(value, dict):
            return value
        return spec_class(group, str(value.get("kind", ""))).model_validate(value)

    choose.group = group  # type: ignore[attr-defined]
    return choose


def group_of(metadata: Iterable[Any]) -> str:
    """The group whose kinds a field of type Model, Objective or Optim chooses from, by the field's metadata;
    '' for others.
    """
    return next((item.func.group for item in metadata if hasattr(getattr(item, "func", None), "group")), "")


Model = Annotated[SerializeAsAny[ModelSpec], BeforeValidator(_chooser("model"))]
Objective = Annotated[SerializeAsAny[ObjectiveSpec], BeforeValidator(_chooser("objective"))]
Optim = Annotated[SerializeAsAny[OptimSpec], BeforeValidator(_chooser("optim"))]
