"""Samples assigned by cost: the same means as one process, no rank idle, and a log that replays."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atelier.engine.checkpoint.folder import address
from atelier.engine.checkpoint.manifest import MANIFEST
from atelier.engine.config.experts import Experts
from atelier.engine.config.model.ernie import Ernie, Net
from atelier.engine.config.objective.distance import Distance
from atelier.engine.config.objective.document import DocumentLM
from atelier.engine.config.objective.logits import Logits
from atelier.engine.config.objective.mlm import MLM
from atelier.engine.config.objective.reorder import Reorder
from atelier.engine.config.parallel import Axes
from atelier.engine.config.run_file import Training
from atelier.engine.data.blend import Blend
from atelier.engine.extensions.assignment import hook as hook_module
from atelier.engine.extensions.assignment.hook import EVERY, Assigner, Pace, Workload, assign, costs_of
from atelier.engine.loop.straggler import idle_share
from atelier.engine.parallel.grid import Grid
from tests.engine.row_inputs import VOCAB, harbour
from tests.engine.trainings import TrainingSetup, laid_out, role, train

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
    place = laid_out(**layout)
    ranks = training_setup.processes(training_setup.run_file(training, layout=place), world=place.ranks)
    said = [rank.communicate(timeout=300) for rank in ranks]
    assert not any(rank.returncode for rank in ranks), said


@pytest.mark.parametrize(
    "layout",
    [
        {"shard": 2, "zero": 1},
        pytest.param({"shard": 2, "zero": 3, "recompute": "full"}, marks=pytest.mark.slow),
        {"replicate": 2, "speed_log": ((0, 3.0, 1.0), (2, 0.2, 1.0))},
        {"expert": 2, "zero": 1},
        pytest.param({"tensor": 2}, marks=pytest.mark.slow),
        pytest.param({"context": 2, "zero": 2}, marks=pytest.mark.slow),
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
    other.train(workloads(other), layout=laid_out(assignment="static"))
    assert_equal(curves(other), expected)


@pytest.mark.slow
def test_static_is_bit_identical_when_both_ranks_are_killed(tmp_path: Path, inputs: dict[str, str]) -> None:
    layout = {"shard": 2, "zero": 1, "assignment": "static"}
    setups = [TrainingSetup(tmp_path / name, inputs) for name in ("whole", "cut", "rows")]
    whole, cut, rows = setups
    how = {"precision": "fp32", "checkpoint_every": 2}
    gang(whole, workloads(whole, **how), **layout)
    place = laid_out(**layout)
    cut.folder.mkdir()
    ranks = cut.processes(cut.run_file(workloads(cut, **how), layout=place), world=2)
    committed = Path(address(str(cut.folder / "trajectory" / "model" / "checkpoints"), 2)) / MANIFEST
    while not committed.exists():
        assert all(rank.poll() is None for rank in ranks)
        time.sleep(0.01)
    for rank in ranks:
        rank.kill()
        rank.communicate(timeout=60)
    gang(cut, workloads(cut, **how), **layout)
    gang(rows, workloads(rows, **how), **layout | {"assignment": "rows"})
    for name in ("model", "student"):
        assert whole.weights(name) == cut.weights(name)
        assert whole.weights(name) != rows.weights(name)  # the same training, in other bits
    assert whole.summary("model")["speed_log"] == cut.summary("model")["speed_log"] == [[0, 1.0, 1.0]]


@pytest.mark.slow
def test_a_measured_log_is_kept_and_replays_to_the_bit(tmp_path: Path, inputs: dict[str, str]) -> None:
    steps = 2 * EVERY + 6
    first, again = TrainingSetup(tmp_path / "first", inputs), TrainingSetup(tmp_path / "again", inputs)
    how = {"steps": steps, "precision": "fp32", "checkpoint_every": steps - 2}
    gang(first, _for(first, **how), shard=2, zero=1, assignment="measured", speed_log=((0, 4.0, 1.0),))
    log = tuple(map(tuple, first.summary("model")["speed_log"]))
    assert len(log) > 1 and log[0] == (0, 4.0, 1.0)
    assert log[-1][1] / log[-1][2] < 4.0  # nearer to the truth; how near depends on what else the cores do
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


def measured(first: int, last: int, pace: Pace, speeds: tuple[float, ...] = (2.0, 1.0)) -> Pace:
    """Steps of a gang whose ranks have these speeds; rows cost twice what was predicted."""
    for step in range(first, last):
        share = pace.at(step)
        costs = [100 * each / sum(share) for each in share]
        pace.hear(step, costs, [1.0 + 2 * cost / speed for cost, speed in zip(costs, speeds, strict=True)])
    return pace


def test_a_log_goes_on_from_a_checkpoint_and_forgets_what_was_rolled_back() -> None:
    log = measured(1, 3 * EVERY + 1, Pace((), 2, is_measured=True)).state()
    assert [entry[0] for entry in log] == [0, EVERY + 2, 2 * EVERY + 2, 3 * EVERY + 2]
    again = Pace((), 2, is_measured=True)
    again.restore(log, 2 * EVERY + 1)
    assert again.state() == log[:3]
    assert again.at(EVERY + 1) == [1.0, 1.0]
    assert again.at(EVERY + 2) == pytest.approx(log[1][1:], abs=1e-4)


def test_roles_that_are_behind_repeat_the_log_of_the_one_ahead() -> None:
    log = measured(1, 3 * EVERY + 1, Pace((), 2, is_measured=True)).state()
    for steps in ((3 * EVERY, EVERY), (EVERY, 3 * EVERY)):
        again = Pace((), 2, is_measured=True)
        for step in steps:
            again.restore(log, step)
        assert again.state() == log[:3]
        more = measured(EVERY, 6 * EVERY, again, (1.0, 9.0)).state()
        assert more[:3] == log[:3] and len(more) > 3
        assert [entry[0] for entry in more] == sorted({entry[0] for entry in more})


def test_a_log_of_other_ranks_or_of_another_assignment_ends() -> None:
    log = [[0, 3.0, 1.0], [30, 2.0, 1.0]]
    for ranks in (1, 4):
        again = Pace((), ranks, is_measured=True)
        again.restore(log, 40)
        assert again.state() == [[40, *[1.0] * ranks]]
    alike = Pace((), 2, is_measured=False)
    alike.restore(log, 40)
    assert alike.state() == [*log, [40, 1.0, 1.0]]
    same = Pace(((0, 2.0, 1.0), (50, 1.0, 1.0)), 2, is_measured=False)
    same.restore(log, 40)
    assert same.state() == [*log, [50, 1.0, 1.0]]


def test_speeds_come_to_rest_where_all_take_equally_long() -> None:
    share = measured(1, 12 * EVERY, Pace((), 2, is_measured=True), (3.0, 1.0)).at(12 * EVERY)
    assert share[0] / share[1] == pytest.approx(3.0, rel=0.03)


def test_a_rank_that_was_slow_gets_rows_again() -> None:
    """Eight rows for four ranks: one is six times slower for a while, keeps a row, and recovers."""
    pace, kinds = Pace((), 4, is_measured=True), np.zeros(8, dtype=np.int64)
    for step in range(1, 60 * EVERY):
        costs = costs_of(assign(kinds, [Workload(1, 1.0, 8)], pace.at(step)), kinds, [Workload(1, 1.0, 8)])
        slow = 6.0 if step < 10 * EVERY else 1.0
        pace.hear(step, costs, [0.1 + cost * (slow if rank == 3 else 1.0) for rank, cost in enumerate(costs)])
    assert costs == [2.0, 2.0, 2.0, 2.0]
    assert all(min(entry[1:]) > 0 for entry in pace.state())


class Rows:
    """A data set of rows with room for `length` tokens, of which `used` are no padding."""

    def __init__(self, length: int, used: int) -> None:
        self.length, self.used = length, used

    def __len__(self) -> int:
        return 100

    def batch(self, indices: Any, epochs: Any = None) -> dict[str, np.ndarray]:
        tokens = np.broadcast_to(np.arange(self.length), (len(indices), self.length))
        return {"tokens_BT": tokens.copy(), "documents_BT": np.where(tokens < self.used, 0, -1)}


def test_micro_batches_have_the_tokens_of_their_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 64 tokens, of 64 that are short, of 32, and of 32 from another source."""
    monkeypatch.setattr(hook_module, "LEAST", 0)
    blend = Blend([(Rows(64, 64), 1), (Rows(64, 10), 1), (Rows(32, 32), 1), (Rows(32, 30), 1)], seed=1)
    grid = cast(Grid, SimpleNamespace(axes=Axes(replicate=2), data_index=0))
    assigner = Assigner(grid, Pace((), 2, is_measured=False), lambda tokens: float(tokens))
    places = np.arange(64)
    every = []
    for rank in range(2):
        cast(Any, grid).data_index = rank
        every.append(list(assigner.batches(blend, places, 4, step=0)))
    batches = [batch for mine in every for batch in mine if (batch["documents_BT"] >= 0).any()]
    assert sorted(np.concatenate([batch["samples_B"] for batch in batches])) == list(places)
    shapes = {batch["tokens_BT"].shape for batch in batches}
    assert {length for _, length in shapes} == {16, 32, 64}
    assert max(rows for rows, length in shapes if length == 32) == 8  # as many tokens as four of 64
    assert max(rows for rows, length in shapes if length == 16) == 4  # which may be longer
    assert assigner.costs(0)[0] == pytest.approx(assigner.costs(0)[1], rel=0.05)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=80),
    st.integers(1, 5),
    st.lists(st.sampled_from((16.0, 40.0, 7.0, 100.0)), min_size=4, max_size=4),
    st.integers(1, 6),
    st.sampled_from((0, 60, 1000)),
)
def test_every_sample_is_assigned_once_in_micro_batches_of_one_kind_as_a_rule(
    sets: list[int], ranks: int, costs: list[float], most: int, least: int
) -> None:
    kinds = [Workload(int(cost), cost, most + number) for number, cost in enumerate(costs)]
    found = assign(np.array(sets), kinds, [1.0] * ranks, least=least)
    assert len({len(mine) for mine in found}) == 1
    rows = np.concatenate([rows for mine in found for rows in mine])
    assert sorted(rows.tolist()) == list(range(len(sets)))
    for batch in (rows for mine in found for rows in mine if len(rows)):
        found_kinds = {kinds[number] for number in np.array(sets)[batch]}
        longest = max(found_kinds, key=lambda kind: kind.cost)
        assert len(batch) <= longest.most
        for other in (kind for kind in found_kinds if kind.cost < longest.cost):
            assert sum(kinds[number] == other for number in np.array(sets)[batch]) * other.tokens < least
    if not least:
        times = costs_of(found, np.array(sets), kinds)
        assert max(times) <= sum(times) / ranks + max(costs) + (max(costs) if len(sets) < 2 * ranks else 0)


@pytest.mark.parametrize(
    ("devices", "naive", "elastic"), [(2, 1 / 3, 0.0), (4, 0.5, 0.0), (8, 0.5, 0.0)], ids=str
)
def test_the_papers_four_tasks(devices: int, naive: float, elastic: float) -> None:
    """512, 256, 128 and 128 samples: one task a device (or two, or as many of each), and by cost."""
    sets = np.repeat([0, 1, 2, 3], (512, 256, 128, 128))
    kinds = [Workload(1, 1.0, 512)] * 4
    own = {2: (768, 256), 4: (512, 256, 128, 128), 8: (256, 256, 128, 128, 64, 64, 64, 64)}[devices]
    assert idle_share(own) == pytest.approx(naive)
    times = costs_of(assign(sets, kinds, [1.0] * devices), sets, kinds)
    assert idle_share(times) == elastic
