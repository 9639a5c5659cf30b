"""Metric segments: sealed, complete, and one curve for any number of attempts."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atelier.engine.config.metric import FOLDER, MetricLine, effective, merge, segment_name, time_spent
from atelier.engine.loop import report
from atelier.engine.loop.report import Segments, next_attempt


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def line(step: int, loss: float = 1.0) -> MetricLine:
    return MetricLine(step=step, role="model", tokens=step, values={"loss": loss})


def texts(folder: Path) -> list[tuple[str, str]]:
    return [(path.name, path.read_text()) for path in sorted((folder / FOLDER).glob("*.jsonl"))]


def test_effective_time_counts_what_was_computed_twice_and_every_start_as_lost() -> None:
    def attempt(number: int, first: int, last: int, begins: float) -> tuple[str, str]:
        lines = []
        for step in range(first, last + 1):
            timing = {"step_s": 1.0, "time": begins + step - first}
            timing |= {"startup_s": 4.0} if step == first else {}
            lines.append(line(step).model_copy(update={"timing": timing}).model_dump_json())
        return segment_name(number, 1), "\n".join(lines)

    once = attempt(1, 1, 20, 100.0)
    assert effective([time_spent([once])]) == pytest.approx(20 / 24)
    again = attempt(2, 11, 30, 1000.0)  # steps 11 to 20 were lost; the night between does not count
    assert effective([time_spent([once, again])]) == pytest.approx(30 / 48)
    branch = attempt(1, 21, 30, 120.0)[1].replace("startup_s", "other")  # the same gang goes on
    assert effective([time_spent([once]), time_spent([("metrics-000001-000001", branch)])]) == 30 / 34
    assert effective([time_spent([])]) is None


@pytest.mark.parametrize("pause", [0.01, 0.5, 4.0, 9.0, 30.0])
def test_at_a_steady_pace_no_line_waits_longer_than_ten_seconds_or_its_own_step(
    tmp_path: Path, pause: float
) -> None:
    clock = Clock()
    segments = Segments(str(tmp_path), 1, clock)
    waiting: dict[int, float] = {}
    for step in range(1, 60):
        segments.add(line(step))
        waiting[step] = clock.now
        for found in merge(texts(tmp_path)):
            waiting.pop(found["step"], None)
        clock.now += pause
        assert all(clock.now - since <= max(10.0, pause) for since in waiting.values())
    if pause < 1:
        assert len(texts(tmp_path)) < 59 * pause / 9 + 1, "lines are collected, not written one by one"


def test_a_later_attempt_supersedes_what_earlier_ones_wrote_from_its_first_step_on(tmp_path: Path) -> None:
    first = Segments(str(tmp_path), 1)
    for step in range(1, 8):
        first.add(line(step, loss=1.0))
    first.flush()
    second = Segments(str(tmp_path), 2)
    for step in range(5, 7):
        second.add(line(step, loss=2.0))
    second.flush()
    merged = merge(texts(tmp_path))
    assert [(found["step"], found["values"]["loss"]) for found in merged] == [
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 1),
        (5, 2),
        (6, 2),
    ]


def test_an_attempt_never_has_the_number_of_an_earlier_one(tmp_path: Path) -> None:
    numbers = []
    for asked in (1, 1, 7, 2):
        segments = Segments(str(tmp_path), asked)
        segments.add(line(1))
        segments.flush()
        numbers.append(segments.attempt)
    assert numbers == [1, 2, 7, 8]
    assert next_attempt(str(tmp_path), 3) == 9


def test_a_flush_of_nothing_writes_nothing(tmp_path: Path) -> None:
    Segments(str(tmp_path), 1).flush()
    assert not (tmp_path / FOLDER).exists()


@pytest.mark.parametrize("answer", ["late", "refused"])
def test_training_does_not_wait_for_a_store_that_hangs_and_every_line_is_sealed_once(
    monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    clock, there, first = Clock(), threading.Event(), threading.Event()
    sealed: list[tuple[str, str]] = []

    class File:
        def __init__(self, place: str) -> None:
            self.place = place

        def write(self, content: bytes) -> None:
            assert there.wait(60)
            if answer == "refused" and not first.is_set():
                first.set()
                raise OSError("no")
            sealed.append((self.place.rpartition("/")[2], content.decode()))

    @contextmanager
    def writing(place: str) -> Iterator[File]:
        yield File(place)

    monkeypatch.setattr(report, "writing", writing)
    segments = Segments("memory://store/hangs", 1, clock)
    for step in range(1, 41):
        segments.add(line(step))
        clock.now += 4.0
    assert not sealed, "the store has not answered, and all 40 lines were taken"
    there.set()
    segments.flush()
    steps = [found["step"] for found in merge(sealed)]
    assert steps == list(range(1, 41)) and sum(text.count("\n") for _, text in sealed) == 40
