"""Jinja's immutable sandbox with limits, for a separate process (engine/io/limited_process.py).

Templates come from others and are not trusted. They have no loaders, files or attributes that begin with an
underscore, and give the same text each time. A single operation of Python's C code may take hours; only
ending the process interrupts it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from atelier.engine.config.base import Json
from atelier.engine.config.error import DataError, printable
from atelier.engine.io.limited_process import fault

MOST = 1 << 26  # characters of rendered text
LARGEST_POWER = 1 << 16


class SandboxEnvironment(ImmutableSandboxedEnvironment):
    """Refuses large powers of whole numbers, whose computation cannot be interrupted."""

    intercepted_binops = frozenset(("**",))

    # as of jinja2's Environment, with arguments of any type
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.filters["tojson"] = _to_json
        del self.filters["random"], self.globals["lipsum"]  # their results differ each time
        self.globals |= {"dict": _Dict(), "namespace": _Names}

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: object, right: object
    ) -> object:
        if operator == "**" and not all(
            isinstance(one, int | float) and abs(one) < LARGEST_POWER for one in (left, right)
        ):
            raise jinja2.TemplateError("a power of large numbers")
        return super().call_binop(context, operator, left, right)


# variables of any type
def write(template: jinja2.Template, parts: list[str], variables: Mapping[str, Any]) -> None:
    """Render into `parts`. Raises DataError for too much text, and what the template raises."""
    length = 0
    for part in template.generate(variables):
        parts.append(part)
        length += len(part)
        if length > MOST:
            raise DataError(f"more than {MOST} characters")


def said(error: Exception) -> str:
    """A template's error on one line."""
    is_told = isinstance(error, jinja2.TemplateError | DataError)
    return printable(" ".join(str(error).split())) if is_told else fault(error)


class _Dict:
    """`dict` without the type's attributes."""

    def __call__(self, *items: object, **more: object) -> object:
        return dict(*items, **more)

    def fromkeys(self, keys: Sequence[object], value: object = None) -> dict[object, object]:
        return dict.fromkeys(keys, value)


class _Names(Namespace):
    """A namespace without names that begin with an underscore."""

    def __init__(*given: object, **more: object) -> None:
        self, *items = given
        names = dict(*items, **more)
        for name in names:
            _check_name(name)
        Namespace.__init__(cast(Namespace, self), names)

    def __setitem__(self, name: str, value: object) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace with the name {name!r}")


def _to_json(
    value: Json,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
