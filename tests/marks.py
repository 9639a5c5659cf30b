"""Mark the values of a test that `make test` runs; the others are for `make verify`."""

from collections.abc import Iterable
from typing import Any

import pytest


def quick(values: Iterable[Any], number: int = 1) -> list[Any]:
    """Values of parametrize: the first `number` as they are, the others marked slow."""
    return [
        value if place < number else pytest.param(value, marks=pytest.mark.slow)
        for place, value in enumerate(values)
    ]
