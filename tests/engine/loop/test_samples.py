"""Reports of the labelled examples that a training reads."""

import json
from pathlib import Path

import pytest

from atelier.engine.config.error import DataError
from atelier.engine.config.mixture import Stream
from atelier.engine.config.run_file import Training
from tests.engine.labelled import labelled_setup
from tests.engine.trainings import TrainingSetup, artifact, role, train


def tuning(setup: TrainingSetup, prompts: list[str]) -> Training:
    lines = [
        {"prompt": prompt, "completion": "xy"[n % 2], "options": ["x", "y"]}
        for n, prompt in enumerate(prompts)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    setup.inputs["labels"] = artifact(setup.folder / "long", "labels", {"train.jsonl": text})
    training = setup.training({"tuned": role()}, train(2, sequence=16))
    return training.model_copy(update={"streams": (Stream(input="labels", kind="examples"),)})


def test_how_many_prompts_are_cut_is_printed_and_in_the_model_s_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setup = labelled_setup(tmp_path)
    setup.train(tuning(setup, [*(f"{'abc' * 9}{'de'[n % 2]}" for n in range(6)), "d", "e"]))
    said = "labels: 6 of 8 train prompts have no room in sequence=16 tokens and lose their beginning"
    assert said in capsys.readouterr().out
    assert setup.summary("tuned")["cut_prompts"] == 6


def test_a_training_that_could_tell_no_answer_is_refused_before_its_first_step(tmp_path: Path) -> None:
    setup = labelled_setup(tmp_path)
    with pytest.raises(DataError, match=r"8 of 8 train prompts .* sequence=29 .* one with another answer"):
        setup.train(tuning(setup, [f"{'de'[n % 2]}{'abc' * 9}a" for n in range(8)]))
    assert not (setup.output("tuned") / "body.json").exists()
