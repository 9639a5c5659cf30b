"""A bad step is skipped, rolled back or ends the training, by `health`; nothing else changes."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from atelier.engine.config.error import AtelierError
from atelier.engine.config.train import Health, Train
from atelier.engine.io.heartbeat import PULSE, Heartbeat, heartbeat_file, unpack
from atelier.engine.loop.decisions import HealthDetector
from atelier.engine.loop.replica_check import digest
from atelier.engine.loop.resume import resume_point
from atelier.engine.loop.role_state import RoleState
from atelier.engine.loop.step import RoleStep
from atelier.engine.loop.straggler import StragglerDetector
from atelier.engine.parallel.gang import Gang
from tests.engine.trainings import TrainingSetup, model, role, student, train

NAN, SPIKE = float("nan"), 3.0
DROPPING = role(shape=model(32, dropout=0.1))


@pytest.fixture
def training_setup(tmp_path: Path) -> TrainingSetup:
    return TrainingSetup(tmp_path)


@pytest.fixture
def other(tmp_path: Path) -> TrainingSetup:
    return TrainingSetup(tmp_path / "other")


def name_of(member: RoleState) -> str:
    return member.name


def plant(
    monkeypatch: pytest.MonkeyPatch,
    faults: dict[tuple[str, int], float],
    of: Callable[[RoleState], str] = name_of,
) -> None:
    """Multiply loss and gradient of (role, step) by a factor, whenever that step is computed. `of`: what
    stands for the role there.
    """
    after = RoleStep.after

    def faulty(self: RoleStep, member: RoleState, index: int, total: Tensor) -> Tensor:
        factor = faults.get((of(member), member.step + 1))
        if factor is not None:
            results = self.works[member.name].results
            sums = {name: value * factor for name, value in results[index].sums.items()}
            results[index] = results[index]._replace(sums=sums)
            total = total * factor
        return after(self, member, index, total)

    monkeypatch.setattr(RoleStep, "after", faulty)


def how(steps: int = 16, *, every: int = 4, keep: int = 2, **health: Any) -> Train:
    settings: dict[str, Any] = {"spike_after": 4, "pass_over": 3} | health
    sizes: dict[str, Any] = {"micro_batch": 4, "eval_every": 8, "eval_sequences": 2}
    return train(steps, checkpoint_every=every, keep=keep, health=Health(**settings), **sizes)


def marked(training_setup: TrainingSetup, name: str, mark: str) -> list[int]:
    return [line["step"] for line in training_setup.curve(name) if mark in line["values"]]


def warnings(capsys: pytest.CaptureFixture[str]) -> list[str]:
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [line["warning"] for line in said if "warning" in line]


def assert_same(mine: TrainingSetup, its: TrainingSetup, *names: str) -> None:
    for name in names:
        assert mine.curve(name) == its.curve(name)
        assert mine.weights(name) == its.weights(name)
        assert mine.summary(name) == its.summary(name)


@pytest.mark.parametrize(("factor", "policy"), [(NAN, {}), (SPIKE, {"spike": "skip"})])
def test_a_planted_fault_is_skipped_told_and_recorded(
    training_setup: TrainingSetup, monkeypatch, capsys, factor: float, policy: dict[str, str]
) -> None:
    plant(monkeypatch, {("model", 9): factor})
    training_setup.train(training_setup.training({"model": role()}, how(**policy)))
    assert marked(training_setup, "model", "skipped") == [9]
    assert marked(training_setup, "model", "spike") == ([9] if policy else [])
    [warning] = warnings(capsys)
    assert warning.startswith("roles.model: step 9: loss") and warning.endswith("; skipped")
    assert training_setup.summary("model")["skipped"] == 1


@pytest.mark.parametrize(("factor", "policy"), [(NAN, {"nan": "stop"}), (SPIKE, {"spike": "stop"})])
def test_a_planted_fault_stops_a_training_that_says_so(
    training_setup: TrainingSetup, monkeypatch, factor: float, policy: dict[str, str]
) -> None:
    plant(monkeypatch, {("model", 11): factor})
    with pytest.raises(
        AtelierError, match=r"roles\.model: step 11: loss .*; stopped; train\.health\.(nan|spike)="
    ):
        training_setup.train(training_setup.training({"model": role()}, how(**policy)))
    assert training_setup.steps("model") == [4, 8]


@pytest.mark.parametrize(("factor", "policy"), [(NAN, {"nan": "rollback"}), (SPIKE, {"spike": "rollback"})])
def test_a_rolled_back_training_passes_over_the_steps_and_its_bits_do_not_depend_on_checkpoints(
    training_setup: TrainingSetup,
    other: TrainingSetup,
    monkeypatch,
    capsys,
    factor: float,
    policy: dict[str, str],
) -> None:
    plant(monkeypatch, {("model", 11): factor})
    training_setup.train(training_setup.training({"model": DROPPING}, how(**policy)))
    [warning] = warnings(capsys)
    assert warning.startswith("roles.model: step 11: loss")
    assert warning.endswith("rolled back, steps 9 to 11 are passed over (rollback 1 of 3)")
    assert marked(training_setup, "model", "passed_over") == [9, 10, 11]
    assert marked(training_setup, "model", "rolled_back") == [11]
    assert marked(training_setup, "model", "loss") == [*range(1, 9), *range(12, 17)]
    assert training_setup.summary("model")["rolled_back"] == [11]
    other.train(other.training({"model": DROPPING}, how(every=100, **policy)))
    assert other.steps("model") == [16], "it had nothing to go back to but the beginning"
    assert_same(training_setup, other, "model")
    monkeypatch.undo()
    third = TrainingSetup(training_setup.folder / "third")
    third.train(third.training({"model": DROPPING}, how(**policy)))
    assert training_setup.weights("model") != third.weights("model")


@pytest.mark.parametrize(
    "every", [pytest.param(1, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow), 5]
)
def test_stopped_again_and_again_around_rollbacks_it_ends_with_the_same_bits(
    training_setup: TrainingSetup, other: TrainingSetup, monkeypatch, every: int
) -> None:
    plant(monkeypatch, {("teacher", 10): SPIKE, ("teacher", 14): NAN, ("s", 6): NAN, ("s", 12): SPIKE})
    roles = {
        "teacher": DROPPING,
        "s": student(gate=0.02, shape=model(16, dropout=0.1)),
        "late": student(start=7),
    }
    settings = how(18, nan="rollback", spike="rollback")
    training_setup.train(training_setup.training(roles, settings))
    assert marked(training_setup, "teacher", "passed_over") == [8, 9, 10, 12, 13, 14]
    assert marked(training_setup, "s", "skipped") == [6], "step 12 was passed over with its teacher"
    assert other.train_in_pieces(other.training(roles, settings), every) > 2
    assert_same(training_setup, other, *roles)


def test_a_students_trouble_leaves_its_teachers_bits(tmp_path: Path, monkeypatch) -> None:
    plant(monkeypatch, {("s", 6): NAN, ("s", 11): SPIKE, ("s", 12): NAN})
    settings = how(nan="rollback", spike="rollback")
    alone, taught = TrainingSetup(tmp_path / "alone"), TrainingSetup(tmp_path / "taught")
    alone.train(alone.training({"teacher": DROPPING}, settings))
    taught.train(taught.training({"teacher": DROPPING, "s": student(), "t": student(24)}, settings))
    assert_same(alone, taught, "teacher")
    assert marked(taught, "s", "skipped") == [6, 11, 12] and marked(taught, "t", "skipped") == []


def test_a_student_of_a_replayed_teacher_that_rolled_back_learns_what_it_would_have(
    training_setup: TrainingSetup, other: TrainingSetup, monkeypatch
) -> None:
    plant(monkeypatch, {("teacher", 11): SPIKE})
    settings = how(keep=9, spike="rollback")
    roles = {"teacher": DROPPING, "s": student(start=4)}
    other.train(other.training(roles, settings))
    training_setup.train(training_setup.training({"teacher": DROPPING}, settings))
    digest_ = hashlib.sha256(training_setup.weights("teacher")).hexdigest()
    replayed = training_setup.member("teacher", DROPPING, 16, mode="replay", output=False, digest=digest_)
    again = training_setup.training({"teacher": replayed, "s": student(start=4)}, settings)
    assert training_setup.train_in_pieces(again, 5) > 1
    assert training_setup.weights("s") == other.weights("s")
    assert training_setup.curve("s") == other.curve("s")


def test_a_root_that_rolls_back_moves_no_bit_of_another_root(tmp_path: Path, monkeypatch) -> None:
    plant(monkeypatch, {("teacher", 11): SPIKE})
    control, settings = role(16, seed_name="s"), how(spike="rollback")
    alone, gang = TrainingSetup(tmp_path / "alone"), TrainingSetup(tmp_path / "gang")
    alone.train(alone.training({"control": control}, settings))
    gang.train(gang.training({"teacher": DROPPING, "s": student(), "control": control}, settings))
    assert_same(alone, gang, "control")
    assert marked(gang, "teacher", "rolled_back") == [11]


def test_no_checkpoint_of_the_past_that_was_rolled_back_is_left(
    training_setup: TrainingSetup, monkeypatch
) -> None:
    plant(monkeypatch, {("model", 11): SPIKE})
    found = []
    monkeypatch.setattr("atelier.engine.loop.resume.resume_point", _spy(found, training_setup))
    training_setup.train(training_setup.training({"model": role()}, how(every=2, keep=9, spike="rollback")))
    assert found == [[], [2, 4, 6, 8]]


def _spy(found: list[list[int]], training_setup: TrainingSetup) -> Any:
    def look(*arguments: Any) -> Any:
        found.append(training_setup.steps("model"))
        return resume_point(*arguments)

    return look


def test_rollbacks_are_bounded(training_setup: TrainingSetup, monkeypatch) -> None:
    plant(monkeypatch, {("model", step): NAN for step in (6, 10, 14)})
    with pytest.raises(
        AtelierError,
        match=r"step 14: .* rolled back 2 times .* lower its optim\.lr, or raise train\.health\.rollbacks",
    ):
        training_setup.train(training_setup.training({"model": role()}, how(nan="rollback", rollbacks=2)))


def test_a_loss_that_stays_high_ends_training_after_the_patience(
    training_setup: TrainingSetup, monkeypatch
) -> None:
    plant(monkeypatch, {("model", step): SPIKE for step in range(9, 17)})
    with pytest.raises(AtelierError, match="not finite or a spike in 5 steps in a row, up to step 13"):
        training_setup.train(training_setup.training({"model": role()}, how(spike="skip", patience=5)))


def test_where_no_step_was_good_the_learning_rate_is_not_blamed() -> None:
    detector = HealthDetector(Health(patience=5))
    detector.check_patience("roles.model", 4, 4)
    with pytest.raises(
        AtelierError, match=r"up to step 13; lower its optim\.lr or raise its optim\.schedule"
    ):
        detector.check_patience("roles.model", 13, 5)
    with pytest.raises(AtelierError, match="up to step 5; no step was good: look at its data") as found:
        detector.check_patience("roles.model", 5, 5)
    assert "lr" not in str(found.value) and "kept" not in str(found.value)


def test_a_spike_is_far_above_the_average_in_deviations_and_in_nats() -> None:
    def judged(losses: list[float], **spec: Any) -> list[str]:
        detector = HealthDetector(Health(spike="skip", spike_after=4, **spec))
        return [detector.judge(loss, 1.0) for loss in losses]

    steady = [3.0, 3.1, 2.9, 3.0]
    assert judged([9.0, *steady[1:], 9.0])[0] == "", "nothing is judged before enough was seen"
    assert judged([*steady, 3.45]) == [""] * 5, "many deviations, few nats"
    assert judged([*steady, 3.9]) == ["", "", "", "", "spike"]
    assert judged([2.0, 4.0, 2.0, 4.0, 6.0]) == [""] * 5, "many nats, few deviations"
    assert judged([*steady, 1.0]) == [""] * 5, "downwards is no spike"


def test_a_gradient_norm_spikes_before_the_loss_does() -> None:
    detector = HealthDetector(Health(spike="skip", spike_after=4, spike_norm=5.0))
    assert [detector.judge(3.0, norm) for norm in (1.0, 1.2, 0.9, 1.1, 4.0, 9.0)] == [""] * 5 + ["spike"]
    assert "gradient norm 9 spikes over 5 times" in detector.words


def test_a_single_flipped_bit_anywhere_changes_a_digest() -> None:
    generator = torch.Generator().manual_seed(1)
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.uint8):
        tensor = (torch.randn(7, 5, generator=generator) * 100).to(dtype)
        whole = digest(tensor).tolist()
        assert digest(tensor.clone()).tolist() == whole
        for place, bit in ((0, 0), (tensor.nbytes - 1, 7), (tensor.nbytes // 2, 3)):
            data = bytearray(tensor.view(torch.uint8).flatten().tolist())
            data[place] ^= 1 << bit
            flipped = torch.frombuffer(data, dtype=dtype)
            assert digest(flipped).tolist() != whole


def test_a_rank_that_computes_longer_than_the_median_is_named_once() -> None:
    straggler = StragglerDetector(Gang(rank=0, world=3), 2.0)
    said = [
        straggler.slow_rank([100_000, 250_000 if 5 <= step < 60 else 100_000, 105_000, 0, 1 << 50, 0])
        for step in range(120)
    ]
    assert [text for text in said if text] == [
        "rank 1 takes 2.0 times as long per step as the median rank (0.212 s, 0.105 s): all wait for it"
    ]
    assert straggler.timing()["slowest_ratio"] < 1.1
    assert straggler.timing()["memory_gb"] == (1 << 50) / 1e9  # of the fullest rank, not of this one


def test_a_pulse_allows_for_what_takes_long_and_for_long_steps(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv(PULSE, str(tmp_path))
    heartbeat, now = Heartbeat.of_rank(3), 0.0
    monkeypatch.setattr("atelier.engine.io.heartbeat.time.monotonic", lambda: now + 1.0)

    def stand() -> tuple[int, int, float, str]:
        found = unpack(heartbeat_file(tmp_path, 3).read_bytes())
        return found.step, found.beat, found.limit_s, found.phase

    heartbeat.watch("auto")
    heartbeat.rest("load")
    assert stand() == (0, 1, 0.0, "load")
    heartbeat.begin(1, is_usual=False)
    heartbeat.at("collective")
    assert stand() == (1, 2, 0.0, "collective")
    now = 500.0
    heartbeat.begin(2, is_usual=True)
    assert stand() == (2, 1, 600.0, "begin"), "the step that compiled does not count"
    now = 545.0
    heartbeat.begin(3, is_usual=True)
    assert stand()[2] == 900.0
    heartbeat.rest("save")
    now = 3000.0
    heartbeat.begin(4, is_usual=True)
    assert stand() == (4, 1, 900.0, "begin"), "nor does a save"
    heartbeat.watch(30.0)
    heartbeat.at("forward")
    assert stand() == (4, 2, 30.0, "forward")
