"""The same command twice at once: one process makes each artifact, the other waits and reuses it."""

import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.command import DATA, TRAIN, Command, CommandStore


def test_two_runs_of_one_command_train_once_and_both_succeed(
    command_store: CommandStore, start: Callable[..., Command]
) -> None:
    for kind in DATA:  # from nothing at all: every task is raced for
        shutil.rmtree(command_store.root / kind)
    other = start()
    other.until(lambda: "> curate" in other.text, "its first task")
    code, out, err = command_store.finish()
    assert code == 0, out + err
    assert other.wait() == 0, other.text
    command_store.wait_for_quiet()
    said = [out + err, other.text]
    for kind, count in {
        "corpus": 1,
        "tokenizer": 1,
        "tokens": 1,
        "model": 1,
        "scores": 1,
        "report": 1,
    }.items():
        assert len(command_store.records(kind)) == count, kind
    assert all(count == 1 for count in gangs(command_store.root).values()), gangs(command_store.root)
    waits = [match for text in said for match in re.findall(r"is being written by process (\d+) on", text)]
    assert waits, said
    assert [run["status"] for run in command_store.runs()] == ["finished", "finished"]
    tables = [re.findall(r"^model +model .*$", text, re.MULTILINE) for text in said]
    assert tables[0] and tables[0] == tables[1]


@pytest.mark.slow
def test_a_run_beside_a_training_names_the_writer_waits_and_reuses(
    command_store: CommandStore, start: Callable[..., Command]
) -> None:
    words = (*TRAIN, "train.steps=2400")
    first = start(*words)  # still trains when the other has started
    first.until_training()
    [guard] = command_store.processes("atelier.infra.launch.supervisor")
    second = start(*words)
    second.until(lambda: f"is being written by process {guard} on" in second.text, "word of the writer")
    assert first.wait() == 0, first.text
    assert second.wait() == 0, second.text
    assert gangs(command_store.root)["train"] == 1 and len(command_store.records("model")) == 1


def gangs(root: Path) -> Counter[str]:
    """How many gangs were started, by task."""
    return Counter(path.parent.name.split("-", 1)[1] for path in root.glob("scratch/*/*/guard.json"))
