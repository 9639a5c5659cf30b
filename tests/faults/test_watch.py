"""A watcher beside a training: each kept checkpoint is examined once, whatever is killed, while the training
goes on.
"""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.faults.command import OWN_SERVER, TRAIN, Command, CommandStore

STEPS, EVERY = 6000, 600
LONG = (*TRAIN, f"train.steps={STEPS}", f"train.checkpoint_every={EVERY}", "train.keep=20")
SHORT = (*TRAIN, "train.steps=40", "train.checkpoint_every=10", "train.keep=20")


@pytest.fixture
def questions(tmp_path: Path) -> str:
    place = tmp_path / "q.jsonl"
    rows = [
        {
            "id": str(n),
            "question": f"What comes after {n}?",
            "options": [str(n + 1), str(n + 7)],
            "answer": "A",
        }
        for n in range(12)
    ]
    place.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(place)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def steps(told: list[dict[str, Any]], state: str = "examined") -> list[int]:
    return [line["step"] for line in told if line.get("state") == state]


def published(store: CommandStore) -> Counter[int]:
    """How often an exam of each step was published."""
    found: Counter[int] = Counter()
    for path in store.root.glob("exam/*/log/*.json"):
        entry = json.loads(path.read_text())
        if entry["act"] == "publish":
            found[entry["record"]["identity"]["step"]] += 1
    return found


def killed(command: Command) -> None:
    with suppress(ProcessLookupError):
        os.killpg(command.process.pid, signal.SIGKILL)
    command.process.wait()


@pytest.mark.slow
def test_each_checkpoint_is_examined_once_though_watchers_are_killed(
    command_store: CommandStore, start: Callable[..., Command], questions: str
) -> None:
    training = start(*LONG)
    training.until(lambda: len(command_store.steps()) >= 1, "a checkpoint")
    words = ("watch", "model", questions, "tracker=none", "--json")
    for number in (1, 3):
        watcher = start(*words)
        watcher.until(lambda number=number: len(published(command_store)) >= number, f"{number} exams")
        assert training.process.poll() is None, "the training was over too early"
        killed(watcher)
    two = [start(*words), start(*words)]
    assert [each.wait() for each in two] == [0, 0], two[0].text + two[1].text
    assert training.wait() == 0
    every = command_store.steps()
    assert len(every) == STEPS // EVERY + 1, "all are kept, and that where the decay begins"
    for each in two:
        told = lines(each.text)
        assert steps(told) == every
        assert told[-1]["ended"] == {"model": f"its model is finished, at step {STEPS}"}
        assert Path(told[-1]["report"]).with_name("exams.png").exists()
    assert published(command_store) == dict.fromkeys(every, 1)


@pytest.mark.slow
def test_a_killed_training_is_watched_on_when_it_goes_on(
    command_store: CommandStore, start: Callable[..., Command], questions: str
) -> None:
    words = ("watch", "model", questions, "tracker=none", "--json", "--every", "2")
    training = start(*LONG)
    training.until(lambda: len(command_store.steps()) >= 3, "three checkpoints")
    watcher = start(*words)
    for pid in [*command_store.processes("atelier.engine.train"), training.process.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    training.process.wait()
    assert watcher.wait() == 0, watcher.text
    first = steps(lines(watcher.text))
    assert first and first[0] == 2 * EVERY
    again = start(*LONG)
    again.until(lambda: "train" in again.text, "its start")
    second = start(*words)
    assert again.wait() == 0, again.text
    assert second.wait() == 0, second.text
    told = steps(lines(second.text))
    assert told[: len(first)] == first and told[-1] == STEPS
    assert set(published(command_store).values()) == {1}


@pytest.mark.slow
def test_killed_servers_of_prefect_change_nothing(
    command_store: CommandStore, start: Callable[..., Command], questions: str
) -> None:
    training = start(*LONG, env=OWN_SERVER)
    training.until(lambda: len(command_store.steps()) >= 1, "a checkpoint")
    watcher = start("watch", "model", questions, "tracker=none", "--json", env=OWN_SERVER)
    ended = 0
    for number in (1, 4):
        watcher.until(lambda number=number: len(published(command_store)) >= number, f"{number} exams")
        for pid in command_store.processes("atelier.flows.run.embedded_server"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                ended += 1
    assert (watcher.wait(), training.wait()) == (0, 0), watcher.text + training.text
    assert ended >= 2
    every = command_store.steps()
    assert steps(lines(watcher.text)) == every and published(command_store) == dict.fromkeys(every, 1)


@pytest.mark.slow
def test_a_finished_training_is_examined_and_a_damaged_checkpoint_is_named(
    command_store: CommandStore, questions: str
) -> None:
    code, _, err = command_store.finish(*SHORT)
    assert code == 0, err
    damaged, removed = (
        next(command_store.root.glob(f"trajectory/*/checkpoints/step-{step:08d}")) for step in (20, 30)
    )
    file = next(damaged.glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    code, out, err = command_store.finish(
        "watch", "model", questions, "tracker=none", "--every", "3", "--json"
    )
    assert code == 0, err
    assert steps(lines(out)) == [30, 40]
    (removed / "manifest.json").unlink()
    code, out, err = command_store.finish("watch", "model", questions, "tracker=none", "--once")
    assert code == 0, err
    *told, curve = out.splitlines()
    assert [line.split(":")[0] for line in told] == ["step 30", "step 40", "step 10", "step 20"]
    assert told[0].startswith("step 30: q accuracy ") and "%, bits/byte " in told[0]
    assert told[-1].startswith("step 20: damaged: ") and file.name in told[-1]
    assert curve.startswith("curve    ")
    code, out, _ = command_store.finish("examine", "model", f"evals=[{questions}]", "tracker=none")
    assert code == 0
    [model] = [one for one in command_store.records("exam") if "model" in one["parents"]]
    [last] = [one for one in command_store.records("exam") if one["identity"].get("step") == 40]
    assert model["summary"]["accuracy"] == last["summary"]["accuracy"]
    assert model["summary"]["bits_per_byte"] == pytest.approx(last["summary"]["bits_per_byte"], rel=1e-5)


def test_a_word_that_is_no_training_is_refused(command_store: CommandStore, questions: str) -> None:
    for words, said in {
        ("nobody", questions): "no run, role, trajectory or model",
        ("nobody",): "required: set",
        ("nobody", questions, "--every", "0"): "--every",
    }.items():
        code, _, err = command_store.finish("watch", *words)
        assert code == 2 and said in err, err
