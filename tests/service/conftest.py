"""One stack for a module's tests."""

from collections.abc import Iterator

import pytest
from served import Served, running


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with running(tmp_path_factory.mktemp("served") / "store") as stack:
        yield stack
