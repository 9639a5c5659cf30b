"""A gang of two processes computes what one process computes. One gang serves all cases: its trainings run
one after another.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from atelier.engine.config.parallel import Parallel
from atelier.engine.config.run_file import Training
from tests.engine.trainings import ONE, TrainingSetup, model, role, student, train

STEPS = 6
TEACHER = role(shape=model(32, num_layers=2), lr=1e-2)
GATED = student(16, gate=0.1, lr=1e-3)


def both(training_setup: TrainingSetup, precision: str) -> Training:
    """A teacher and two students, named after the precision."""
    names = {name: f"{name}-{precision}" for name in ("teacher", "open", "gated", "learned")}
    other = role(
        shape=model(16, positions="learned", norm="layer", mlp="gelu", tied=False, num_kv_heads=1), start=3
    )
    roles = {
        names["teacher"]: TEACHER,
        names["open"]: student(16, start=2, teacher=names["teacher"]),
        names["gated"]: GATED.model_copy(update={"teacher": names["teacher"]}),
        names["learned"]: other,
    }
    return training_setup.training(roles, train(STEPS, precision=precision))


def half(training_setup: TrainingSetup, name: str, steps: int) -> Training:
    """A constant rate has no end in its identity: a longer training goes on where a shorter one ended."""
    teacher = TEACHER.model_copy(update={"seed_name": "teacher"})
    roles = {
        f"teacher-{name}": teacher,
        f"s-{name}": GATED.model_copy(update={"teacher": f"teacher-{name}", "seed_name": "s"}),
    }
    return training_setup.training(roles, train(steps, precision="fp64"))


@pytest.fixture(scope="session")
def setups(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainingSetup, TrainingSetup]:
    """(one process, two processes) after the same trainings; two crossings are begun in one layout and ended
    in the other.
    """
    one, two = TrainingSetup(tmp_path_factory.mktemp("one")), TrainingSetup(tmp_path_factory.mktemp("two"))
    one.train(both(one, "fp64"), both(one, "fp32"), half(one, "straight", STEPS))
    two.train(half(two, "from-one", STEPS // 2))
    gang(
        two,
        both(two, "fp64"),
        both(two, "fp32"),
        half(two, "from-one", STEPS),
        half(two, "from-two", STEPS // 2),
    )
    two.train(half(two, "from-two", STEPS))
    return one, two


def gang(training_setup: TrainingSetup, *trainings: Training, layout: Parallel | None = None) -> list[dict]:
    """Run a gang of two; what rank 0 said."""
    layout = layout or Parallel(shard=2, threads=1, compile="none", device="cpu")
    said = []
    for process in training_setup.processes(training_setup.run_file(*trainings, layout=layout), world=2):
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        said += [json.loads(line) for line in out.splitlines()]
    return said


def worst(
    one: TrainingSetup,
    two: TrainingSetup,
    name: str,
    other: str = "",
    values: tuple[str, ...] = ("loss", "eval/loss", "grad_norm"),
) -> float:
    """The largest difference of metric values between two curves."""
    mine, others = one.curve(name), two.curve(other or name)
    assert [line["step"] for line in mine] == [line["step"] for line in others]
    assert [line["tokens"] for line in mine] == [line["tokens"] for line in others]
    pairs = [(a["values"], b["values"]) for a, b in zip(mine, others, strict=True)]
    return max(abs(a[key] - b[key]) for a, b in pairs for key in values if key in a)


def worst_weight(one: TrainingSetup, two: TrainingSetup, name: str, other: str = "") -> float:
    mine, others = load(one.weights(name)), load(two.weights(other or name))
    return max((mine[key].double() - others[key].double()).abs().max().item() for key in mine)


@pytest.mark.parametrize("name", ["teacher", "open", "gated", "learned"])
def test_in_float64_two_processes_give_the_losses_to_1e_10_and_weights_after_10_steps_to_1e_8(
    setups, name: str
) -> None:
    assert load(setups[0].weights(f"{name}-fp64"))["embed.weight"].dtype == torch.float64
    assert worst(*setups, f"{name}-fp64") < 1e-10
    assert worst_weight(*setups, f"{name}-fp64") < 1e-8


@pytest.mark.parametrize("name", ["teacher", "open", "gated", "learned"])
def test_in_float32_two_processes_give_the_losses_to_1e_5(setups, name: str) -> None:
    assert worst(*setups, f"{name}-fp32", values=("loss", "eval/loss")) < 1e-5


def test_a_gate_opens_at_the_same_step_in_both_layouts(setups) -> None:
    steps = [
        training_setup.summary(f"gated-{precision}")["gate_step"]
        for training_setup in setups
        for precision in ("fp64", "fp32")
    ]
    assert 1 < steps[0] < STEPS and len(set(steps)) == 1


def test_a_teacher_in_a_gang_runs_one_forward_a_micro_batch_of_its_rank(setups) -> None:
    for training_setup, forwards in zip(setups, (2 * STEPS, STEPS), strict=True):
        assert training_setup.summary("teacher-fp64")["forwards"] == forwards
        assert training_setup.summary("gated-fp64")["teacher_forwards"] == forwards


@pytest.mark.parametrize("name", ["from-one", "from-two"])
def test_a_checkpoint_of_one_layout_goes_on_in_the_other(setups, name: str) -> None:
    for role_name in ("teacher", "s"):
        assert worst(*setups, f"{role_name}-straight", f"{role_name}-{name}", ("loss",)) < 1e-10
        assert worst_weight(*setups, f"{role_name}-straight", f"{role_name}-{name}") < 1e-8


def test_two_replicas_of_the_whole_model_give_the_same_as_one_process(setups, tmp_path: Path) -> None:
    training_setup = TrainingSetup(tmp_path)
    layout = ONE.model_copy(update={"replicate": 2})
    gang(training_setup, both(training_setup, "fp64"), layout=layout)
    for name in ("teacher", "gated"):
        assert worst(setups[0], training_setup, f"{name}-fp64") < 1e-10
        assert worst_weight(setups[0], training_setup, f"{name}-fp64") < 1e-8


def test_a_gang_of_another_size_than_its_layout_is_refused_with_one_that_fits(tmp_path: Path) -> None:
    training_setup = TrainingSetup(tmp_path)
    run = training_setup.run_file(
        training_setup.training({"model": role()}, train(4)), layout=ONE.model_copy(update={"shard": 3})
    )
    (process,) = training_setup.processes(run)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (2, "")
    message = "parallel: replicate 1 x shard 3 = 3, but 1 processes were started; shard=1 would fit"
    assert json.loads(out)["error"] == message
