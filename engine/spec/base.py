"""What every spec is: frozen, keyword-only, no unknown keys; and how it becomes identity. Torch-free."""

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from engine.spec.error import ConfigError

SpecType = TypeVar("SpecType", bound="Spec")


class Spec(BaseModel):
    """A frozen description. Fields marked `json_schema_extra={"layout": True}` move bits but not meaning."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    def as_identity(self) -> dict[str, Any]:
        """The fields that change the result: no layout, and no value equal to what the field's absence has always meant."""
        from engine.spec.absent import ABSENT  # here: absent.py is data about the classes that this module defines

        absent = ABSENT.get(type(self).__name__, {})
        result: dict[str, Any] = {}
        for name, field in type(self).model_fields.items():
            extra = field.json_schema_extra
            if isinstance(extra, Mapping) and extra.get("layout"):
                continue
            value = identity_of(getattr(self, name))
            if name in absent and value == absent[name]:
                continue
            result[name] = value
        return result


def identity_of(value: Any) -> Any:
    """`value` as plain JSON data, every spec in it reduced to its identity."""
    if isinstance(value, Spec):
        return value.as_identity()
    if isinstance(value, Mapping):
        return {str(k): identity_of(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [identity_of(v) for v in value]
    return value


def canonical(document: Any) -> bytes:
    """JSON with one spelling: sorted keys, no spaces, UTF-8; refuses NaN."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def fingerprint(document: Any) -> str:
    """64 hex digits: sha256 of the canonical JSON."""
    return hashlib.sha256(canonical(document)).hexdigest()


def nearest(word: str, known: Iterable[str]) -> str:
    """The known name most like `word`, or '' when none is near."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return found[0] if found else ""


def flatten(document: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys: {"a": {"b": 1}} -> {"a.b": 1}. Lists stay values."""
    if not isinstance(document, Mapping):
        return {prefix: document}
    if not document:
        return {prefix: {}} if prefix else {}
    result: dict[str, Any] = {}
    for key, value in document.items():
        result.update(flatten(value, f"{prefix}.{key}" if prefix else str(key)))
    return result


def parse(kind: type[SpecType], document: Any, place: str) -> SpecType:
    """Validate `document` as `kind`; the first fault becomes a ConfigError with place, value, what is allowed and the nearest name."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise explain(error, kind, place) from None


def explain(error: ValidationError, kind: type[BaseModel], place: str) -> ConfigError:
    """A pydantic error as one readable line; unknown keys first, because they often cause the others."""
    faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    fault = faults[0]
    where = ".".join([place, *(str(part) for part in fault["loc"])]).strip(".")
    if fault["type"] == "extra_forbidden":
        names = _fields_at(kind, fault["loc"][:-1])
        near = nearest(str(fault["loc"][-1]), names)
        advice = f"did you mean {near}? " if near else ""
        return ConfigError(where, "no such key", f"{advice}known here: {', '.join(sorted(names))}")
    if fault["type"] == "missing":
        return ConfigError(where, "a value is required", f"give {where}=<value>")
    message = fault["msg"].removeprefix("Value error, ")
    return ConfigError(where, f"{message[:1].lower()}{message[1:]} (given: {_short(fault['input'])})", _allowed(kind, fault))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _allowed(kind: type[BaseModel], fault: Any) -> str:
    loc = [part for part in fault["loc"] if isinstance(part, str)]
    if not loc:
        return ""
    owner = _model_at(kind, loc[:-1])
    field = owner.model_fields.get(loc[-1]) if owner else None
    return field.description or "" if field else ""


def _model_at(kind: type[BaseModel], loc: Iterable[Any]) -> type[BaseModel] | None:
    """The spec class reached from `kind` along `loc`, through unions and containers."""
    current: Any = kind
    for part in loc:
        current = _step(current, part)
        if current is None:
            return None
    return _first_model(current)


def _step(annotation: Any, part: Any) -> Any:
    models = _models_in(annotation)
    for model in models:
        if isinstance(part, str) and part in model.model_fields:
            return model.model_fields[part].annotation
    arguments = getattr(annotation, "__args__", None)
    if arguments:  # a dict's value, a list's item, or a union: the last argument that holds a model
        return arguments[-1] if not models or all(m not in arguments for m in models) else annotation
    return annotation if models else None


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for a in getattr(annotation, "__args__", ()) for m in _models_in(a)] if _is_union(annotation) else []


def _is_union(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) is not dict and getattr(annotation, "__origin__", None) is not list


def _first_model(annotation: Any) -> type[BaseModel] | None:
    models = _models_in(annotation)
    return models[0] if models else None


def _fields_at(kind: type[BaseModel], loc: Iterable[Any]) -> list[str]:
    model = _model_at(kind, loc)
    return list(model.model_fields) if model else []
