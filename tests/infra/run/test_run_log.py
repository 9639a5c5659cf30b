"""The log of a run has what a person wants to read of each task, and nothing can stop the run by it."""

import json
from pathlib import Path

from atelier.engine.config.message import Message
from atelier.infra.run.run_log import FILE, RunLog


def lines_of(folder: Path, *messages: Message, seconds: float = 1.0) -> list[tuple[str, str]]:
    """Level and text of the lines for messages about `train` that come `seconds` apart."""
    moments = iter(range(1000))
    log = RunLog(folder, lambda node, message: None, clock=lambda: next(moments) * seconds)
    for message in messages:
        log("train", message)
    found = [json.loads(line) for line in (folder / FILE).read_text().splitlines()]
    assert {line["task"] for line in found} == {"train"}
    return [(line["level"], line["text"]) for line in found]


def test_each_kind_of_message_is_a_line_of_its_level(tmp_path: Path) -> None:
    assert lines_of(
        tmp_path,
        {"state": "running"},
        {"waiting": "waits for 2 cores"},
        {"resumed": 16, "damages": ["step 20"]},
        {"pids": [1, 2], "guard": 3},
        {"warning": "a spike"},
        {"progress": 4, "total": 8, "unit": "steps", "rate": 2.0, "loss": {"model": 3.0}},
        {"stopped": 5},
        {"error": "first\nsecond"},
        {"state": "failed", "detail": "nano 1234"},
    ) == [
        ("info", "running"),
        ("info", "waits for 2 cores"),
        ("info", "continues from step 16"),
        ("warning", "skipped as damaged: step 20"),
        ("warning", "a spike"),
        ("info", "4/8 steps, 2/s, 2 s left  model 3.000"),
        ("info", "stopped at step 5, with a checkpoint"),
        ("error", "first"),
        ("error", "second"),
        ("info", "failed  nano 1234"),
    ]


def test_progress_is_a_line_every_five_seconds_and_at_the_end(tmp_path: Path) -> None:
    steps: list[Message] = [{"progress": step, "total": 13, "unit": "steps"} for step in range(1, 14)]
    found = [text.split("/")[0] for _, text in lines_of(tmp_path, *steps)]
    assert found == ["1", "6", "11", "13"]


def test_an_error_that_a_rank_and_its_task_both_tell_is_one_line(tmp_path: Path) -> None:
    assert lines_of(tmp_path, {"error": "lost"}, {"state": "failed"}, {"error": "lost"}) == [
        ("error", "lost"),
        ("info", "failed"),
    ]


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    heard = list[Message]()
    log = RunLog(tmp_path, lambda node, message: heard.append(message))
    (tmp_path / FILE).mkdir()
    log("train", {"state": "running"})
    assert heard == [{"state": "running"}]
