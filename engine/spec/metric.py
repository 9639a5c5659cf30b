"""Metric segments: sealed files `metrics-<attempt>-<number>.jsonl`, a JSON object a line. Torch-free.

A line is {"step", "role", "tokens", "values": {}, "timing": {}}; `values` is deterministic, `timing` is not.
A later attempt starts from a checkpoint: whatever earlier attempts wrote at or after its first step is
superseded.
"""

import json
from collections.abc import Iterable
from typing import Any

from engine.spec.base import Spec

FOLDER = "metrics"


class MetricLine(Spec):
    step: int
    role: str
    tokens: int
    values: dict[str, float]
    timing: dict[str, float] = {}


def segment_name(attempt: int, number: int) -> str:
    return f"metrics-{attempt:06d}-{number:06d}.jsonl"


def time_spent(segments: Iterable[tuple[str, str]]) -> tuple[float, float]:
    """Seconds of one trajectory's segments (name, text): of the steps that were kept, and of its gangs from
    their starts to their last steps. Steps computed twice, starts, looks and checkpoints are the difference;
    what was trained is a share of both sums over all trajectories of a chain (`effective`).
    """
    files = sorted(segments)
    attempts: dict[str, list[dict[str, float]]] = {}
    for name, text in files:
        timings = [json.loads(line).get("timing", {}) for line in text.splitlines() if line.strip()]
        attempts.setdefault(name.rsplit("/", 1)[-1].split("-")[1], []).extend(timings)
    total = sum(
        timings[-1]["time"] - timings[0]["time"] + timings[0]["step_s"] + timings[0].get("startup_s", 0.0)
        for timings in attempts.values()
        if timings and "step_s" in timings[0]
    )
    return sum(line.get("timing", {}).get("step_s", 0.0) for line in merge(files)), total


def effective(spent: Iterable[tuple[float, float]]) -> float | None:
    """Effective training time: the share of its gangs' time in which a chain of trajectories was trained;
    None before the first step.
    """
    kept, total = (sum(column) for column in zip(*spent, strict=True))
    return min(1.0, kept / total) if total > 0 else None


def merge(segments: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Lines of all segments (name, text) of one trajectory as one curve: a step once, the latest
    attempt's.
    """
    by_step: dict[int, dict[str, Any]] = {}
    attempt_of = ""
    for name, text in sorted(segments):
        lines = [json.loads(line) for line in text.splitlines() if line.strip()]
        attempt = name.rsplit("/", 1)[-1].split("-")[1]
        if lines and attempt != attempt_of:
            attempt_of, first = attempt, lines[0]["step"]
            by_step = {step: line for step, line in by_step.items() if step < first}
        for line in lines:
            by_step[line["step"]] = line
    return [by_step[step] for step in sorted(by_step)]
