"""Shapes stay bounded for any numbers in a model's configuration."""

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError

from atelier.engine.config.base import FieldPlace
from atelier.engine.config.error import ConfigError
from atelier.engine.config.registry import ModelSpec, kinds, spec_class

HUGE = 10**12
SMALL = {"num_layers": 2, "hidden": 32, "num_heads": 4, "vocab": 64}


@pytest.fixture
def little_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def numbers(place: FieldPlace, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for each in place.below():
        path = (*above, each.name.rpartition(".")[2])
        if each.spec is not None:
            yield from numbers(each, path)
        elif "int" in each.type_text():
            yield path


@pytest.mark.parametrize("kind", kinds("model"))
@pytest.mark.usefixtures("little_memory")
def test_a_huge_number_is_refused_or_costs_no_memory(kind: str) -> None:
    spec = cast(type[ModelSpec], spec_class("model", kind))
    for path in numbers(FieldPlace(kind, spec, {})):
        document: dict[str, Any] = {"kind": kind, **SMALL, "num_experts": 4}
        place = document
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = HUGE
        try:
            model = spec.model_validate(document)
        except (ValidationError, ConfigError):
            continue
        model.num_params()
        model.shapes()
