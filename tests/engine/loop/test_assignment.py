"""Samples assigned by cost: the same means as one process, no rank idle, and a log that replays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atelier.engine.config.error import StoppedError
from atelier.engine.config.experts import Experts
from atelier.engine.config.model.ernie import Ernie, Net
from atelier.engine.config.objective.distance import Distance
from atelier.engine.config.objective.document import DocumentLM
from atelier.engine.config.objective.logits import Logits
from atelier.engine.config.objective.mlm import MLM
from atelier.engine.config.objective.reorder import Reorder
from atelier.engine.config.run_file import Training
from atelier.engine.loop.pace import EVERY, Pace
from atelier.engine.plan.assignment import Workload, costs_of, idle_share, micro_batches
from tests.engine.row_inputs import VOCAB, harbour
from tests.engine.trainings import ONE, AfterSteps, TrainingSetup, role, train

STEPS = 4

Curves = dict[str, list[dict[str, float]]]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return harbour(tmp_path_factory.mktemp("harbour"))


def workloads(training_setup: TrainingSetup, **how: Any) -> Training:
    """Rows of 64, 32 and 16 to 24 tokens for a mixture of experts with dropout, and a student of it."""
    net = Net(num_layers=1, hidden=16, num_heads=2)
    shape = Ernie(
        num_layers=2, hidden=32, num_heads=2, vocab=VOCAB, nlu=net, nlg=net, dropout=0.1,
        classes={"reorder": 9, "distance": 3}, num_experts=4, experts=Experts(shared=1),
    )  # fmt: skip
    rows = {
        "document": DocumentLM(),
        "mlm": MLM(sequence=32),
        "reorder": Reorder(weight=0.1, rows=0.5, sequence=24),
        "distance": Distance(weight=0.1, rows=0.5),
    }
    small = shape.model_copy(update={"num_layers": 1, "num_experts": 0, "experts": Experts(), "dropout": 0.0})
    roles = {
        "model": role(shape=shape, objective=rows, lr=1e-2),
        "student": role(
            shape=small, objective={"mlm": rows["mlm"], "kd": Logits()}, teacher="model", lr=1e-2
        ),
    }
    sizes = {"global_batch": 16, "micro_batch": 2, "sequence": 64, "precision": "fp64", "eval_sequences": 4}
    return training_setup.training(roles, train(STEPS, **(sizes | how)))


def curves(training_setup: TrainingSetup) -> Curves:
    return {name: [line["values"] for line in training_setup.curve(name)] for name in ("model", "student")}


def assert_equal(found: Curves, expected: Curves) -> None:
    for name, lines in expected.items():
        for line, beside in zip(lines, found[name], strict=True):
            assert beside == pytest.approx(line, rel=1e-10, abs=1e-12), name


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, str]) -> Curves:
    """Of one process, every row padded to train.sequence."""
    one = TrainingSetup(tmp_path_factory.mktemp("one"), inputs)
    one.train(workloads(one))
    return curves(one)


def gang(training_setup: TrainingSetup, training: Training, **layout: Any) -> None:
    training_setup.folder.mkdir(exist_ok=True)
    place = ONE.model_copy(update=layout)
    ranks = training_setup.processes(training_setup.run_file(training, layout=place), world=place.ranks)
    said = [rank.communicate(timeout=300) for rank in ranks]
    assert not any(rank.returncode for rank in ranks), said


@pytest.mark.parametrize(
    "layout",
    [
        {"shard": 2, "zero": 1},
        {"shard": 2, "zero": 3, "recompute": "full"},
        {"replicate": 2, "speed_log": ((0, 3.0, 1.0), (2, 0.2, 1.0))},
        {"expert": 2, "zero": 1},
        {"tensor": 2},
        {"context": 2, "zero": 2},
    ],
    ids=str,
)
def test_any_assignment_means_the_same(
    tmp_path: Path, inputs: dict[str, str], expected: Curves, layout: dict[str, Any]
) -> None:
    other = TrainingSetup(tmp_path / "other", inputs)
    gang(other, workloads(other), assignment="static", **layout)
    assert_equal(curves(other), expected)


def test_one_process_pads_to_the_longest_of_a_micro_batch(
    tmp_path: Path, inputs: dict[str, str], expected: Curves
) -> None:
    other = TrainingSetup(tmp_path, inputs)
    other.train(workloads(other), layout=ONE.model_copy(update={"assignment": "static"}))
    assert_equal(curves(other), expected)


def test_static_is_bit_identical_killed_or_not(tmp_path: Path, inputs: dict[str, str]) -> None:
    layout = ONE.model_copy(update={"assignment": "static"})
    whole, cut = TrainingSetup(tmp_path / "whole", inputs), TrainingSetup(tmp_path / "cut", inputs)
    whole.train(workloads(whole, precision="fp32", checkpoint_every=2), layout=layout)
    with pytest.raises(StoppedError):
        cut.train(
            workloads(cut, precision="fp32", checkpoint_every=2), layout=layout, stop=AfterSteps(tmp_path, 3)
        )
    cut.train(workloads(cut, precision="fp32", checkpoint_every=2), layout=layout)
    assert whole.weights("model") == cut.weights("model")
    assert whole.weights("student") == cut.weights("student")


def test_a_measured_log_is_kept_and_replays_to_the_bit(tmp_path: Path, inputs: dict[str, str]) -> None:
    steps = 2 * EVERY + 6
    first, again = TrainingSetup(tmp_path / "first", inputs), TrainingSetup(tmp_path / "again", inputs)
    how = {"steps": steps, "precision": "fp32", "checkpoint_every": steps - 2}
    gang(first, _for(first, **how), shard=2, zero=1, assignment="measured", speed_log=((0, 4.0, 1.0),))
    log = tuple(map(tuple, first.summary("model")["speed_log"]))
    assert len(log) > 1 and log[0] == (0, 4.0, 1.0)
    assert log[-1][1] / log[-1][2] < 3.0
    gang(again, _for(again, **how), shard=2, zero=1, assignment="static", speed_log=log)
    assert first.weights("model") == again.weights("model")
    even = TrainingSetup(tmp_path / "even", inputs)
    gang(even, _for(even, **how), shard=2, zero=1, assignment="static")
    assert first.weights("model") != even.weights("model")


def _for(training_setup: TrainingSetup, *, steps: int, **how: Any) -> Training:
    """The model alone, wide enough that its steps take as long as their samples cost."""
    whole = workloads(training_setup, **how, global_batch=32, micro_batch=4)
    alone = whole.members["model"].role
    wide = alone.model.model_copy(update={"hidden": 192})
    return training_setup.training(
        {"model": alone.model_copy(update={"model": wide})}, whole.train.model_copy(update={"steps": steps})
    )


def test_a_log_goes_on_from_a_checkpoint_and_forgets_what_was_rolled_back() -> None:
    pace = Pace((), 2, is_measured=True)
    for step in range(1, 3 * EVERY + 1):
        pace.hear(step, [2.0, 1.0], [1.0, 1.0])
    log = pace.state()
    assert [entry[0] for entry in log] == [0, EVERY + 2, 2 * EVERY + 2, 3 * EVERY + 2]
    again = Pace((), 2, is_measured=True)
    again.restore(log, 2 * EVERY + 1)
    assert again.state() == log[:3]
    assert again.at(EVERY + 1) == [1.0, 1.0] and again.at(EVERY + 2) == log[1][1:]


def test_speeds_come_to_rest_where_all_take_equally_long() -> None:
    """Rank 1 is three times slower than rank 0, and rows cost twice what was predicted on both."""
    pace, speeds = Pace((), 2, is_measured=True), (3.0, 1.0)
    for step in range(1, 12 * EVERY):
        share = pace.at(step)
        costs = [100 * each / sum(share) for each in share]
        pace.hear(step, costs, [1.0 + 2 * cost / speed for cost, speed in zip(costs, speeds, strict=True)])
    share = pace.at(12 * EVERY)
    assert share[0] / share[1] == pytest.approx(3.0, rel=0.03)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=80),
    st.integers(1, 5),
    st.lists(st.sampled_from((16.0, 40.0, 7.0, 100.0)), min_size=4, max_size=4),
    st.integers(1, 6),
)
def test_every_sample_is_assigned_once_in_micro_batches_of_one_kind(
    sets: list[int], ranks: int, costs: list[float], most: int
) -> None:
    kinds = [Workload(cost, most + number) for number, cost in enumerate(costs)]
    found = micro_batches(np.array(sets), kinds, [1.0] * ranks)
    assert len({len(mine) for mine in found}) == 1
    rows = np.concatenate([rows for mine in found for rows in mine])
    assert sorted(rows.tolist()) == list(range(len(sets)))
    for batch in (rows for mine in found for rows in mine if len(rows)):
        (kind,) = set(np.array(sets)[batch].tolist())
        assert len(batch) <= kinds[kind].most
    times = costs_of(found, np.array(sets), kinds)
    assert max(times) <= sum(times) / ranks + max(costs)


@pytest.mark.parametrize(
    ("devices", "naive", "elastic"), [(2, 1 / 3, 0.0), (4, 0.5, 0.0), (8, 0.5, 0.0)], ids=str
)
def test_the_papers_four_tasks(devices: int, naive: float, elastic: float) -> None:
    """512, 256, 128 and 128 samples: one task a device (or two, or as many of each), and by cost."""
    sets = np.repeat([0, 1, 2, 3], (512, 256, 128, 128))
    kinds = [Workload(1.0, 512)] * 4
    own = {2: (768, 256), 4: (512, 256, 128, 128), 8: (256, 256, 128, 128, 64, 64, 64, 64)}[devices]
    assert idle_share(own) == pytest.approx(naive)
    times = costs_of(micro_batches(sets, kinds, [1.0] * devices), sets, kinds)
    assert idle_share(times) == elastic
