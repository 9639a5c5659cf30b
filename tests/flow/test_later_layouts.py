"""A training that goes on with other ranks from a step on: nodes are added and taken away."""

import json
from pathlib import Path

import pytest

from tests.faults.command import CommandStore
from tests.flow.command import Atelier
from tests.flow.kills import killed_and_finished, weights_of

PLAIN = ("pretrain", "experiment=tiny", "model=gpt_nano", "tracker=none", "train.precision=fp64")
ARGUMENTS = (*PLAIN, "parallel.later={8: {shard: 2}, 16: {tensor: 2}}")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("later")


def losses_of(store: CommandStore) -> list[float]:
    files = sorted(store.root.glob("trajectory/*/metrics/*.jsonl"))
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    by_step = {line["step"]: line["values"]["loss"] for line in lines if "loss" in line["values"]}
    return [by_step[step] for step in sorted(by_step)]


@pytest.mark.slow
def test_it_learns_what_it_learns_on_one_layout_and_says_so(
    atelier: Atelier, root: Path, tmp_path: Path
) -> None:
    said = atelier(*ARGUMENTS)
    assert said.code == 0, said.err
    told = said.out + said.err
    assert "continues from step 8" in told and "continues from step 16" in told
    again = atelier(*ARGUMENTS)
    assert again.code == 0 and "nothing to do" in again.out
    assert "nothing to do" in atelier(*PLAIN).out  # a layout is no part of a model's identity
    other = CommandStore(tmp_path)
    code, _, err = other.finish(*PLAIN)
    assert code == 0, err
    mine, theirs = losses_of(CommandStore(root)), losses_of(other)
    assert len(mine) == len(theirs) == 24
    assert max(abs(one - two) for one, two in zip(mine, theirs, strict=True)) < 1e-9


@pytest.mark.slow
def test_a_killed_one_goes_on_in_the_layout_of_its_step_with_equal_bits(root: Path, tmp_path: Path) -> None:
    store = CommandStore(tmp_path)
    killed_and_finished(store, ARGUMENTS, ["model"])
    assert weights_of(store) == weights_of(CommandStore(root))


def test_the_plan_prices_each_layout_and_refuses_what_does_not_fit(atelier: Atelier) -> None:
    words = ("plan", *PLAIN, "train.seed=5")
    planned = json.loads(atelier(*words, "parallel.later={8: {shard: 2}, 16: {}}", "--json").out)
    [row] = [row for row in planned["tasks"] if row["task"] == "train"]
    assert [(span["step"], span["ranks"]) for span in row["later"]] == [(8, 2), (16, 1)]
    assert 0 < sum(span["device_hours"] for span in row["later"]) < row["device_hours"]
    for later, words_of_it in {
        "{8: {shard: 64}}": "parallel.later.8: does not fit: parallel: replicate 1 x",
        "{8: {tensor: 3}}": "parallel.later.8: does not fit: parallel.tensor",
        "{24: {shard: 2}}": "parallel.later.24: a training ends at step 24",
        "{8: {chard: 2}}": "did you mean shard?",
    }.items():
        refused = atelier(*words, f"parallel.later={later}")
        assert refused.code == 2 and refused.err.count("\n") == 1, refused.err
        assert words_of_it in refused.err


@pytest.mark.slow
def test_a_finished_teacher_that_is_replayed_for_a_student_passes_each_layout(
    atelier: Atelier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    words = (
        "distill",
        "experiment=tiny",
        "tracker=none",
        "roles.student_a.attach=replay",
        "roles.student_a.start=0",
    )
    assert atelier(*words).code == 0
    again = (*words, "roles.student_a.optim.lr=2e-3", "parallel.later={5: {shard: 2}, 11: {}}")
    said = atelier(*again)
    assert said.code == 0, said.err
    assert (said.out + said.err).count("> train\n") == 3  # a gang for each layout
    assert "nothing to do" in atelier(*again).out
