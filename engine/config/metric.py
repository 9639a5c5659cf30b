"""Read metric segments: files `metrics-<attempt>-<number>.jsonl`, one JSON object per line. Torch-free.

A line is {"step", "role", "tokens", "values": {}, "timing": {}, "device"}; only `values` is deterministic. A
later attempt resumes from a checkpoint and supersedes earlier attempts' lines from its first step on.
"""

import re
from collections.abc import Iterable
from typing import NotRequired, TypedDict, cast

from pydantic import ConfigDict, Field

from atelier.engine.config.base import Spec
from atelier.engine.config.document import check_as, parse_lines
from atelier.engine.config.error import DamageError

FOLDER = "metrics"
SEGMENT = re.compile(r"metrics-\d{1,9}-\d{1,9}\.jsonl")
WAY_OUT = "move the file away; its steps are then missing from the curve"


class MetricLine(Spec):
    step: int
    role: str
    tokens: int
    values: dict[str, float]
    timing: dict[str, float] = {}
    device: str = Field(default="cpu", description="device of the step: cpu, or the driver's name of a GPU")


class CurveLine(TypedDict):
    """A line as stored in a segment."""

    step: int
    role: NotRequired[str]
    tokens: NotRequired[int]
    values: NotRequired[dict[str, float | None]]
    timing: NotRequired[dict[str, float]]
    device: NotRequired[str]


class StoredLine(Spec):
    """The fields that are read from a stored line."""

    model_config = ConfigDict(extra="allow")

    step: int
    values: dict[str, float | None] = {}
    timing: dict[str, float | None] = {}
    device: str = "cpu"


def segment_name(attempt: int, number: int) -> str:
    return f"metrics-{attempt:06d}-{number:06d}.jsonl"


def is_segment(name: str) -> bool:
    """Whether a file of a trajectory's metrics folder is a segment."""
    return SEGMENT.fullmatch(name) is not None


def time_spent(segments: Iterable[tuple[str, str]]) -> tuple[float, float]:
    """Seconds of one trajectory, from its segments (name, text): of the steps that were kept, and of its
    gangs from start to last step. The difference is repeated steps, startup, evaluation and checkpoints.

    Raises DamageError for a line that is not a metric line.
    """
    files = sorted(segments)
    attempts: dict[str, list[dict[str, float]]] = {}
    for name, text in files:
        timings = [line.get("timing", {}) for line in _lines(name, text)]
        attempts.setdefault(name.rsplit("/", 1)[-1].split("-")[1], []).extend(timings)
    total = sum(
        timings[-1]["time"] - timings[0]["time"] + timings[0]["step_s"] + timings[0].get("startup_s", 0.0)
        for timings in attempts.values()
        if timings and "step_s" in timings[0]
    )
    return sum(line.get("timing", {}).get("step_s", 0.0) for line in merge(files)), total


def effective(spent: Iterable[tuple[float, float]]) -> float | None:
    """Effective training time of a chain of trajectories: time of kept steps / time of its gangs; None before
    the first step.
    """
    kept, total = (sum(column) for column in zip(*spent, strict=True))
    return min(1.0, kept / total) if total > 0 else None


def merge(segments: Iterable[tuple[str, str]]) -> list[CurveLine]:
    """Merge all segments (name, text) of a trajectory into one curve: each step once, from the latest
    attempt.

    Raises DamageError for a line that is not a metric line.
    """
    by_step: dict[int, CurveLine] = {}
    attempt_of = ""
    for name, text in sorted(segments):
        lines = _lines(name, text)
        attempt = name.rsplit("/", 1)[-1].split("-")[1]
        if lines and attempt != attempt_of:
            attempt_of, first = attempt, lines[0]["step"]
            by_step = {step: line for step, line in by_step.items() if step < first}
        for line in lines:
            by_step[line["step"]] = line
    return [by_step[step] for step in sorted(by_step)]


def _lines(name: str, text: str) -> list[CurveLine]:
    """The lines of a segment. Raises DamageError for one that is not a metric line."""
    try:
        lines = parse_lines(text, name)
        for number, line in enumerate(lines, start=1):
            check_as(StoredLine, line, f"{name}, line {number}", "a metric line")
    except DamageError as damage:
        raise DamageError(str(damage), WAY_OUT) from None
    return cast(list[CurveLine], lines)
