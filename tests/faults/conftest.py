"""One uninterrupted training to compare with; a fresh store with its data for each test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.command import TRAIN, Command, CommandStore, Curve


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> CommandStore:
    """A store in which training ran through."""
    command_store = CommandStore(tmp_path_factory.mktemp("whole"))
    code, out, err = command_store.finish(*TRAIN)
    assert code == 0, out + err
    return command_store


@pytest.fixture(scope="session")
def expected(whole: CommandStore) -> Curve:
    return whole.curve()


@pytest.fixture
def command_store(tmp_path: Path, whole: CommandStore, monkeypatch: pytest.MonkeyPatch) -> CommandStore:
    """A store with corpus, tokenizer and tokens; PREFECT_HOME and the server are this process's."""
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path / "store"))
    return CommandStore(tmp_path / "store").copy_data(whole)


@pytest.fixture
def start(command_store: CommandStore) -> Iterator[Callable[..., Command]]:
    """`start(*arguments, env={})` a command over `command_store`; its processes end with the test."""
    started: list[Command] = []

    def begin(*arguments: str, env: dict[str, str] | None = None) -> Command:
        started.append(command_store.start(*arguments, env=env))
        return started[-1]

    yield begin
    for command in started:
        command.end()
