"""One uninterrupted training that all others are compared with; a fresh store with its data for each test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.command import TRAIN, Command, Curve, House


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> House:
    """A store in which training ran through."""
    house = House(tmp_path_factory.mktemp("whole"))
    code, out, err = house.finish(*TRAIN)
    assert code == 0, out + err
    return house


@pytest.fixture(scope="session")
def expected(whole: House) -> Curve:
    return whole.curve()


@pytest.fixture
def house(tmp_path: Path, whole: House, monkeypatch: pytest.MonkeyPatch) -> House:
    """A store with corpus, tokenizer and tokens; PREFECT_HOME and the server are this process's."""
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path / "store"))
    return House(tmp_path / "store").copy_data(whole)


@pytest.fixture
def start(house: House) -> Iterator[Callable[..., Command]]:
    """`start(*arguments, env={})` a command over `house`; what is left of it ends with the test."""
    started: list[Command] = []

    def begin(*arguments: str, env: dict[str, str] | None = None) -> Command:
        started.append(house.start(*arguments, env=env))
        return started[-1]

    yield begin
    for command in started:
        command.end()
