"""One training loop: the same bits however it is cut into runs, and the same numbers however a
batch is cut.
"""

import hashlib
import itertools
import json
import re
import shutil
import time
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import load_file

from atelier.engine.config.error import AtelierError, DamageError, StoppedError
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.objective.logits import Logits
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import Member, SegmentAddress, Training
from atelier.engine.config.schedule import Schedule, WeightSchedule
from atelier.engine.config.train import Progressive, Train
from tests.engine.trainings import AfterSteps, TrainingSetup, model, role, student, train

WSD = Schedule(kind="wsd", warmup=2, decay=0.25)
NO_LAYOUT = {"micro_batch": 4, "checkpoint_every": 100}


@pytest.fixture
def training_setup(tmp_path: Path) -> TrainingSetup:
    return TrainingSetup(tmp_path)


@pytest.fixture
def other(tmp_path: Path) -> TrainingSetup:
    return TrainingSetup(tmp_path / "other")


def cut(
    training_setup: TrainingSetup, spec: Role, how: Train, *ends: int, names: tuple[str, ...] = ()
) -> Member:
    """A member whose training is cut into segments at `ends`."""
    starts = (int(spec.start), *ends[:-1])
    names = names or tuple(f"part{i}" for i in range(len(ends)))
    places = zip(names, starts, ends, strict=True)
    segments: tuple[SegmentAddress, ...] = tuple(training_setup.segment(*place) for place in places)
    return training_setup.member("model", spec, how.num_steps, segments=segments)


def values(lines: list[dict]) -> list[dict]:
    return [{key: value for key, value in line["values"].items() if key != "eval/loss"} for line in lines]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_same_seed_gives_the_same_bits_twice_and_another_seed_others(
    training_setup: TrainingSetup, other: TrainingSetup, precision: str
) -> None:
    roles = {"model": role(shape=model(32, dropout=0.1))}
    training_setup.train(training_setup.training(roles, train(4, precision=precision)))
    other.train(other.training(roles, train(4, precision=precision)))
    assert training_setup.weights("model") == other.weights("model")
    assert training_setup.curve("model") == other.curve("model")
    third = TrainingSetup(other.folder / "third")
    third.train(third.training(roles, train(4, precision=precision, seed=2)))
    assert training_setup.weights("model") != third.weights("model")


def test_micro_batches_of_1_2_and_4_agree_to_1e_10_in_float64(tmp_path: Path) -> None:
    found = {}
    for size in (1, 2, 4):
        training_setup = TrainingSetup(tmp_path / str(size))
        training_setup.train(
            training_setup.training(
                {"teacher": role(), "s": student()}, train(6, micro_batch=size, precision="fp64")
            )
        )
        found[size] = (training_setup.curve("s"), load_file(training_setup.output("s") / "model.safetensors"))
    for size in (1, 2):
        for mine, whole in zip(found[size][0], found[4][0], strict=True):
            assert mine["values"] == pytest.approx(whole["values"], abs=1e-10)
        for name, weight in found[size][1].items():
            assert torch.allclose(weight, found[4][1][name], rtol=0, atol=1e-10)


def test_a_training_stopped_again_and_again_ends_with_the_bits_of_an_uninterrupted_one(
    training_setup: TrainingSetup, other: TrainingSetup
) -> None:
    falling = Logits(schedule=WeightSchedule(kind="cosine", begin=3, end=9))
    roles = {
        "teacher": role(shape=model(32, dropout=0.1)),
        "s": student(gate=0.02),
        "late": student(start=7),
        "freed": role(16, objective={"lm": LM(), "kd": falling}, teacher="teacher"),
    }
    how = train(12)
    training_setup.train(training_setup.training(roles, how))
    assert other.train_in_pieces(other.training(roles, how), every=5) == 2
    for name in roles:
        assert other.weights(name) == training_setup.weights(name)
        assert other.curve(name) == training_setup.curve(name)
        assert other.summary(name) == training_setup.summary(name)


def test_a_training_that_goes_on_with_other_versions_of_libraries_says_so(
    training_setup: TrainingSetup, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    training = training_setup.training({"model": role()}, train(8))
    with pytest.raises(StoppedError):
        training_setup.train(training, stop=AfterSteps(training_setup.folder, 5))
    was = numpy.__version__
    monkeypatch.setattr(numpy, "__version__", "9.9")
    training_setup.train(training)
    first, second = training_setup.summary("model")["libraries"]
    assert f"numpy {was}" in first and "numpy 9.9" in second
    assert f"with {first} up to step 5, and resumes with {second}" in capfd.readouterr().out


def test_a_trunk_and_its_decay_have_the_bits_of_one_uninterrupted_training(
    training_setup: TrainingSetup, other: TrainingSetup
) -> None:
    how, spec = train(8), role(schedule=WSD)
    training_setup.train(training_setup.training({"model": spec}, how))
    other.train(other.training({"model": cut(other, spec, how, 6, 8)}, how))
    assert other.weights("model") == training_setup.weights("model")
    assert other.curve("part0") + other.curve("part1") == training_setup.curve("model")
    assert other.steps("part0") == [4, 6] and other.steps("part1") == [8]


def test_a_gang_trains_nothing_where_it_holds_no_lease(training_setup: TrainingSetup) -> None:
    how, spec = train(8), role(schedule=WSD)
    member = cut(training_setup, spec, how, 6, 8)
    training_setup.train(training_setup.training({"model": member}, how))
    trunk, decay = member.segments
    mine = member.model_copy(update={"segments": (trunk.model_copy(update={"is_leased": False}), decay)})
    (training_setup.output("model") / "model.safetensors").unlink()
    shutil.rmtree(training_setup.folder / "trajectory" / "part1" / "checkpoints")
    training_setup.train(
        training_setup.training({"model": mine}, how)
    )  # from the end of the trunk: nothing is written there
    shutil.rmtree(training_setup.folder / "trajectory" / "part1" / "checkpoints")
    damaged = next(
        (training_setup.folder / "trajectory" / "part0" / "checkpoints" / "step-00000006").glob("rank*")
    )
    damaged.write_bytes(b"")
    with pytest.raises(DamageError, match=r"part0.*no good checkpoint of step 6 \(.*rank.*does not hold"):
        training_setup.train(training_setup.training({"model": mine}, how))
    assert training_setup.steps("part0") == [4, 6]


def test_a_longer_training_goes_on_from_the_trunk_of_a_shorter_one(
    training_setup: TrainingSetup, other: TrainingSetup, capsys
) -> None:
    spec, long = role(schedule=WSD), train(12)
    training_setup.train(
        training_setup.training(
            {"model": cut(training_setup, spec, train(8), 6, 8, names=("trunk", "short"))}, train(8)
        )
    )
    training_setup.train(
        training_setup.training(
            {"model": cut(training_setup, spec, long, 9, 12, names=("trunk", "long"))}, long
        )
    )
    assert [line["resumed"] for line in said(capsys) if "resumed" in line] == [0, 6]
    other.train(other.training({"model": spec}, long))
    assert training_setup.weights("model") == other.weights("model")
    assert values(training_setup.curve("trunk") + training_setup.curve("long")) == values(
        other.curve("model")
    )
    assert 6 in training_setup.steps("trunk"), (
        "the shorter training's branch point is never removed by the longer one's retention"
    )


def test_decays_of_both_shapes_go_on_from_one_trunk_and_end_apart(
    training_setup: TrainingSetup, other: TrainingSetup, capsys
) -> None:
    curve, how = WSD.model_copy(update={"shape": "exponential", "half_life": 2}), train(8)
    for schedule, name in ((WSD, "line"), (curve, "curve")):
        member = cut(training_setup, role(schedule=schedule), how, 6, 8, names=("trunk", name))
        training_setup.train(training_setup.training({"model": member}, how))
    assert [line["resumed"] for line in said(capsys) if "resumed" in line] == [0, 6]
    other.train(other.training({"model": role(schedule=curve)}, how))
    assert training_setup.weights("model") == other.weights("model")
    rates = {
        name: [line["values"]["lr"] for line in training_setup.curve(name)] for name in ("line", "curve")
    }
    assert rates["curve"] == pytest.approx([3e-3 * 0.5 ** (n / 2) for n in range(1, 3)])
    assert rates["line"] == pytest.approx([3e-3 * n / 3 for n in range(2, 0, -1)])


def said(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_branch_does_not_take_a_trunk_checkpoint_past_its_own_branch_point(
    training_setup: TrainingSetup, other: TrainingSetup, capsys
) -> None:
    spec = role(schedule=WSD)
    training_setup.train(
        training_setup.training(
            {"model": cut(training_setup, spec, train(16), 12, 16, names=("trunk", "long"))}, train(16)
        )
    )
    training_setup.train(
        training_setup.training(
            {"model": cut(training_setup, spec, train(8), 6, 8, names=("trunk", "short"))}, train(8)
        )
    )
    other.train(other.training({"model": spec}, train(8)))
    assert training_setup.weights("model") == other.weights("model")


def test_a_replayed_teacher_ends_with_its_digest_and_writes_nothing(
    training_setup: TrainingSetup, other: TrainingSetup
) -> None:
    spec, how = role(shape=model(32, dropout=0.1)), train(8)
    other.train(other.training({"teacher": spec, "s": student(start=4)}, how))
    training_setup.train(training_setup.training({"teacher": spec}, train(8, keep=9)))
    before = (training_setup.curve("teacher"), training_setup.steps("teacher"))
    digest = hashlib.sha256(training_setup.weights("teacher")).hexdigest()
    replayed = training_setup.member("teacher", spec, 8, mode="replay", output=False, digest=digest)
    training_setup.train(training_setup.training({"teacher": replayed, "s": student(start=4)}, how))
    assert training_setup.weights("s") == other.weights("s")
    assert training_setup.curve("s") == other.curve("s")
    assert (training_setup.curve("teacher"), training_setup.steps("teacher")) == before


def test_a_replay_that_ends_otherwise_fails_and_publishes_nothing(training_setup: TrainingSetup) -> None:
    how = train(8)
    training_setup.train(training_setup.training({"teacher": role()}, how))
    replayed = training_setup.member("teacher", role(), 8, mode="replay", output=False, digest="0" * 64)
    with pytest.raises(AtelierError, match="nothing is published"):
        training_setup.train(training_setup.training({"teacher": replayed, "s": student(start=4)}, how))
    assert not training_setup.output("s").exists()
    assert 8 not in training_setup.steps("s"), "a second run would take the student for finished"


def test_a_student_added_later_is_taught_by_a_replay_that_resumes(
    training_setup: TrainingSetup, other: TrainingSetup
) -> None:
    spec, how = role(), train(16)
    other.train(other.training({"teacher": spec, "s": student(start=4)}, how))
    training_setup.train(training_setup.training({"teacher": spec}, train(16, keep=9)))
    digest = hashlib.sha256(training_setup.weights("teacher")).hexdigest()
    replayed = training_setup.member("teacher", spec, 16, mode="replay", output=False, digest=digest)
    again = training_setup.training({"teacher": replayed, "s": student(start=4)}, how)
    assert training_setup.train_in_pieces(again, every=7) == 2
    assert training_setup.curve("s") == other.curve("s")
    assert training_setup.weights("s") == other.weights("s")


def test_the_newest_checkpoints_and_all_protected_ones_stay(training_setup: TrainingSetup) -> None:
    roles = {"teacher": role(), "s": student(start=3)}
    training_setup.train(training_setup.training(roles, train(10, checkpoint_every=2, keep=2)))
    assert training_setup.steps("teacher") == [3, 8, 10]
    assert training_setup.steps("s") == [3, 8, 10]


def test_with_keep_0_no_checkpoint_is_left_when_all_is_published(training_setup: TrainingSetup) -> None:
    how = train(8, keep=0)
    training_setup.train(
        training_setup.training({"a": role()}, how), training_setup.training({"b": role()}, how)
    )
    assert training_setup.steps("a") == training_setup.steps("b") == []
    assert training_setup.summary("a")["step"] == training_setup.summary("b")["step"] == 8


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    training_setup: TrainingSetup, other: TrainingSetup, capsys
) -> None:
    roles = {"teacher": role(), "s": student()}
    training_setup.train(training_setup.training(roles, train(8)))
    capsys.readouterr()
    newest = training_setup.folder / "trajectory" / "teacher" / "checkpoints" / "step-00000008"
    file = next(newest.glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    training_setup.train(training_setup.training(roles, train(12)))
    first = said(capsys)[0]
    assert first["resumed"] == 4 and file.name in first["damages"][0]
    other.train(other.training(roles, train(12)))
    for name in roles:
        assert values(training_setup.curve(name)) == values(other.curve(name))
        assert training_setup.weights(name) == other.weights(name)


def test_a_finished_role_that_nobody_needs_holds_nobody_back(training_setup: TrainingSetup, capsys) -> None:
    training_setup.train(training_setup.training({"done": role()}, train(8)))
    capsys.readouterr()
    done = training_setup.member("done", role(), 8, output=False)
    training_setup.train(training_setup.training({"done": done, "new": role(16)}, train(8)))
    assert training_setup.summary("new")["step"] == 8
    assert {"done"} != set(next(line for line in said(capsys) if "progress" in line)["loss"]) == {"new"}


def test_a_finished_training_runs_again_without_a_step_and_publishes_the_same(
    training_setup: TrainingSetup, capsys
) -> None:
    how = training_setup.training({"teacher": role(), "s": student()}, train(8))
    training_setup.train(how)
    first = (training_setup.weights("s"), training_setup.summary("s"), training_setup.curve("s"))
    capsys.readouterr()
    training_setup.train(how)
    assert (training_setup.weights("s"), training_setup.summary("s"), training_setup.curve("s")) == first
    assert not any("progress" in line for line in said(capsys))


def test_a_held_out_loss_keeps_the_name_of_the_windows_that_it_was_measured_on(
    training_setup: TrainingSetup,
) -> None:
    """Also where whoever publishes it would look at others."""
    training_setup.train(training_setup.training({"model": role()}, train(8, eval_sequences=6)))
    first = training_setup.summary("model")
    assert re.fullmatch("6 windows of 16 tokens of [0-9a-f]{12}", first["held_out"]), first
    training_setup.train(training_setup.training({"model": role()}, train(8, eval_sequences=3)))
    assert training_setup.summary("model") == first
    other = TrainingSetup(training_setup.folder / "other", training_setup.inputs)
    other.train(other.training({"model": role()}, train(8, eval_sequences=3)))
    assert other.summary("model")["held_out"] == first["held_out"].replace("6", "3", 1)
    assert other.summary("model")["eval_loss"] != first["eval_loss"]


def test_a_loss_that_is_not_finite_is_skipped_recorded_and_ends_training_after_three(
    training_setup: TrainingSetup,
) -> None:
    spec = role(shape=model(32, init_std=1e30), lr=1e-3)
    with pytest.raises(
        AtelierError, match=r"roles\.model: loss or gradient was not finite in 3 steps in a row"
    ):
        training_setup.train(training_setup.training({"model": spec}, train(8)))
    lines = training_setup.curve("model")
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(line["values"]["skipped"] == 1.0 for line in lines)
    assert training_setup.steps("model") == []


def test_a_curve_has_every_step_once_with_its_timings(training_setup: TrainingSetup) -> None:
    training_setup.train(training_setup.training({"model": role()}, train(8, eval_every=2)))
    files = sorted((training_setup.folder / "trajectory" / "model" / "metrics").iterdir())
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert [line["tokens"] for line in lines] == [64 * step for step in range(1, 9)]
    assert [line["step"] for line in lines if "eval/loss" in line["values"]] == [2, 4, 6, 8]
    expected = {"step_s", "tokens_per_s", "data_wait_s", "checkpoint_stall_s", "memory_gb", "time"}
    assert all(set(line["timing"]) == expected for line in lines[1:])
    assert set(lines[0]["timing"]) == expected | {"startup_s"}
    assert lines[-1]["timing"]["time"] == pytest.approx(time.time(), abs=600)


def test_looking_at_held_out_text_moves_nothing(training_setup: TrainingSetup, other: TrainingSetup) -> None:
    spec = {"model": role(shape=model(32, dropout=0.1))}
    training_setup.train(training_setup.training(spec, train(4, eval_every=1)))
    other.train(other.training(spec, train(4, eval_every=4)))
    assert training_setup.weights("model") == other.weights("model")


def test_a_failed_checkpoint_is_told_and_training_goes_on_from_an_earlier_one(
    training_setup: TrainingSetup, capsys
) -> None:
    folder = training_setup.folder / "trajectory" / "model" / "checkpoints"

    folder.mkdir(parents=True)
    (folder / "step-00000008").write_text("in the way")
    training_setup.train(training_setup.training({"model": role()}, train(12)))
    warnings = [line["warning"] for line in said(capsys) if "warning" in line]
    assert len(warnings) == 1 and "step 8" in warnings[0]
    assert training_setup.summary("model")["step"] == 12


GROWING = Progressive(steps=9, stages=3, sequence=0.5, batch=0.5)


def growing(training_setup: TrainingSetup, steps: int) -> Training:
    roles = {"teacher": role(shape=model(32, dropout=0.2)), "s": student(start=5)}
    return training_setup.training(roles, train(steps, progressive=GROWING, global_batch=8))


def test_what_grows_is_the_same_however_often_it_was_stopped(
    training_setup: TrainingSetup, other: TrainingSetup
) -> None:
    training_setup.train(growing(training_setup, 12))
    assert other.train_in_pieces(growing(other, 12), every=5) > 0
    for name in ("teacher", "s"):
        assert other.weights(name) == training_setup.weights(name)
        assert other.curve(name) == training_setup.curve(name)
    tokens = [line["tokens"] for line in training_setup.curve("teacher")]
    each = [after - before for before, after in itertools.pairwise([0, *tokens])]
    assert each == [4 * 8] * 3 + [5 * 8] * 3 + [7 * 16] * 3 + [8 * 16] * 3
