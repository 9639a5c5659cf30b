"""A library that reads a hostile file is bounded: one answer, or one line of error."""

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from atelier.engine.config.error import AtelierError, ConfigError, DataError
from atelier.engine.io.limited_process import LimitedProcess, LimitError, Limits

MODULE = "tests.engine.io.limited_child"


@pytest.fixture(scope="module")
def process() -> Iterator[LimitedProcess]:
    made = LimitedProcess(MODULE, Limits(256 << 20, 0.2), silence_s=5)
    yield made
    made.close()


def test_an_answer_is_what_was_made_of_the_request(process: LimitedProcess) -> None:
    for given in (None, 3, "ü\ud800", {"a": [1.5, True]}, "x" * (1 << 22)):
        assert process.ask(["echo", given]) == given


REFUSED = {
    "config": (["a place", "is wrong", "mend it"], ConfigError, "a place: is wrong; mend it"),
    "data": (["a file: is wrong"], DataError, "a file: is wrong"),
    "panic": (["index\nout of bounds"], DataError, "Panic: index out of bounds"),
    "deep": ([], DataError, "RecursionError"),
    "memory": (1 << 32, DataError, "takes more than 256 MiB of memory"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_whatever_a_library_raises_is_one_line_and_the_process_goes_on(
    process: LimitedProcess, what: str
) -> None:
    given, kind, says = REFUSED[what]
    with pytest.raises(kind) as caught:
        process.ask([what, given])
    assert str(caught.value) == says
    assert process.is_running and process.ask(["echo", 1]) == 1


ENDED: dict[str, tuple[Any, str]] = {
    "loop": (0, "takes more than 0.2 seconds of processor time"),
    "one operation": (99999, "takes more than 0.2 seconds of processor time"),
    "signal": (signal.SIGABRT, "ended with signal 6 (it has 256 MiB of memory)"),
}


@pytest.mark.parametrize("what", ENDED)
def test_a_process_that_ends_is_one_line_and_the_next_request_starts_another(
    process: LimitedProcess, what: str
) -> None:
    given, says = ENDED[what]
    with pytest.raises(LimitError) as caught:
        process.ask([what, given])
    assert str(caught.value) == says and isinstance(caught.value, AtelierError)
    assert process.ask(["echo", 1]) == 1


def test_a_process_without_an_answer_is_ended() -> None:
    silent = LimitedProcess(MODULE, Limits(256 << 20), silence_s=0.5)
    with pytest.raises(LimitError, match="gives no answer"):
        silent.ask(["wait", 0])
    assert not silent.is_running


def test_requests_have_their_processor_time_each() -> None:
    process = LimitedProcess(MODULE, Limits(256 << 20, 0.3))
    for _ in range(4):
        assert len(str(process.ask(["echo", "x" * (1 << 22)]))) == 1 << 22
    process.close()


def test_a_process_nobody_holds_any_more_is_ended() -> None:
    process = LimitedProcess(MODULE, Limits(256 << 20))
    process.ask(["echo", 1])
    child = process._process
    assert child is not None
    del process
    gc.collect()
    assert child.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
