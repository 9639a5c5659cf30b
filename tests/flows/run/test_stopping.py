"""Signals ask a run to stop; one request may come as several of them."""

import os
import signal
import threading

import pytest

from atelier.flows.run import execute
from atelier.flows.run.execute import stopping


class Left(BaseException):
    """The process would have ended."""


@pytest.fixture(autouse=True)
def ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(code: int) -> None:
        raise Left(code)

    monkeypatch.setattr(os, "_exit", leave)


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_signals_within_a_second_are_one_request_to_stop(second: signal.Signals) -> None:
    stop = threading.Event()
    with stopping(stop):
        for number in (signal.SIGTERM, second, signal.SIGINT):
            signal.raise_signal(number)
    assert stop.is_set()


def test_a_later_one_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "AGAIN_S", -1.0)
    with stopping(threading.Event()):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Left):
            signal.raise_signal(signal.SIGINT)


def test_the_first_signal_does_not_end_a_run_that_was_asked_to_stop_otherwise() -> None:
    """A cancellation on the page sets `stop`; the worker's signal comes after it."""
    stop = threading.Event()
    stop.set()
    with stopping(stop):
        signal.raise_signal(signal.SIGTERM)
