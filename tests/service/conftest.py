"""One stack for a module's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root: Path = tmp_path_factory.mktemp("served") / "store"
    stack = Served(root)
    stack.up()
    try:
        yield stack
    finally:
        stack.down()
