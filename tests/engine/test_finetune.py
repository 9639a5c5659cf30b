"""Training from a finished model on labelled examples, with all weights or a few."""

import gc
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file

from atelier.engine.config.error import AllDivergedError, ConfigError, DivergedError, StoppedError
from atelier.engine.config.mixture import Stream
from atelier.engine.config.role import Trainable
from atelier.engine.config.run_file import Training
from atelier.engine.loop.role_state import RoleState
from atelier.engine.loop.services import TrainingServices
from atelier.engine.plan.checks import at_step
from atelier.engine.train import run_training
from tests.engine.labelled import labelled_setup
from tests.engine.loop.test_diverged import broken
from tests.engine.trainings import AfterSteps, TrainingSetup, laid_out, model, role, train


@pytest.fixture
def training_setup(tmp_path: Path) -> TrainingSetup:
    return labelled_setup(tmp_path)


def tuning(training_setup: TrainingSetup, name: str = "tuned", draw: int = 0, **more) -> Training:
    """8 steps from the finished model on 16 examples."""
    spec = role(lr=1e-2, init="base", **more)
    how = train(8, keep=0, checkpoint_every=100)
    members = {name: training_setup.member(name, spec, 8, init="base")}
    stream = Stream(input="labels", kind="examples", num_examples=16, draw=draw)
    return Training(members=members, streams=(stream,), train=how)


@pytest.fixture(autouse=True)
def earlier_objects_are_not_searched() -> Iterator[None]:
    """Between draws garbage is collected: of thousands of earlier tests that takes a second each time."""
    gc.freeze()
    yield
    gc.unfreeze()


def test_fine_tuning_starts_from_the_parent_and_lowers_the_loss_of_completions(
    training_setup: TrainingSetup,
) -> None:
    training_setup.train(tuning(training_setup))
    lines = training_setup.curve("tuned")
    assert lines[-1]["values"]["loss"] < 0.7 * lines[0]["values"]["loss"]
    assert all("eval/loss" not in line["values"] for line in lines)
    # a row is the prompt (3, 6 or 9), the completion and the end token, without the last: 4, 7 or 10 tokens
    assert all(
        4 * 4 <= line["tokens"] - before <= 4 * 10
        for line, before in zip(lines, [0] + [x["tokens"] for x in lines], strict=False)
    )
    base, tuned = (load(training_setup.weights(name)) for name in ("base", "tuned"))
    assert base.keys() == tuned.keys()
    assert 0 < (tuned["embed.weight"] - base["embed.weight"]).abs().max() < 0.2


def test_several_draws_run_in_one_gang_each_from_the_parent(training_setup: TrainingSetup) -> None:
    training_setup.train(
        tuning(training_setup, "one"), tuning(training_setup, "two", draw=1), tuning(training_setup, "again")
    )
    assert training_setup.weights("one") != training_setup.weights("two")
    assert [line["values"]["loss"] for line in training_setup.curve("one")] == [
        line["values"]["loss"] for line in training_setup.curve("again")
    ]


def test_draws_after_one_that_diverges_are_trained_and_published(training_setup: TrainingSetup) -> None:
    alone = tuning(training_setup, "alone", draw=1)
    training_setup.train(alone)
    first, second = tuning(training_setup, "first"), tuning(training_setup, "second", draw=1)
    health = first.train.health.model_copy(update={"patience": 2})
    [member] = first.members.values()
    members = {"first": member.model_copy(update={"role": broken(member.role)})}
    first = first.model_copy(
        update={"train": first.train.model_copy(update={"health": health}), "members": members}
    )
    with pytest.raises(DivergedError, match=r"^first: roles\.first: .* in a row, up to step .; lower its"):
        training_setup.train(first, second)
    assert not training_setup.output("first").exists()
    assert training_setup.weights("second") == training_setup.weights("alone")
    with pytest.raises(AllDivergedError, match=r"^roles\.first: ") as caught:
        training_setup.train(first)
    assert caught.value.exit_code == 1


def test_the_tokenizer_is_published_with_the_model(training_setup: TrainingSetup) -> None:
    training_setup.train(tuning(training_setup))
    body = json.loads((training_setup.output("tuned") / "body.json").read_text())
    assert {entry["path"] for entry in body["files"]} == {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
    }
    for entry in body["files"]:
        assert (
            hashlib.sha256((training_setup.output("tuned") / entry["path"]).read_bytes()).hexdigest()
            == entry["sha256"]
        )


def test_low_rank_training_moves_only_the_additions_and_publishes_them_merged_and_alone(
    tmp_path: Path,
) -> None:
    shape = model(num_layers=2)
    training_setup = labelled_setup(tmp_path, shape)
    chosen = Trainable(kind="lora", rank=2, alpha=4.0, targets=("query", "value"))
    training_setup.train(tuning(training_setup, shape=shape, trainable=chosen))
    base, tuned = load(training_setup.weights("base")), load(training_setup.weights("tuned"))
    moved = {name for name in base if not torch.equal(base[name], tuned[name])}
    assert moved == {f"blocks.{i}.attention.{name}.weight" for i in range(2) for name in ("query", "value")}
    adapter = load_file(training_setup.output("tuned") / "adapter_model.safetensors")
    assert len(adapter) == 8
    prefix = "base_model.model.blocks.0.attention.query"
    added = 2.0 * adapter[f"{prefix}.lora_B.weight"] @ adapter[f"{prefix}.lora_A.weight"]
    name = "blocks.0.attention.query.weight"
    assert torch.equal(tuned[name], base[name] + added)


def test_a_parent_of_another_shape_is_refused(training_setup: TrainingSetup) -> None:
    member = training_setup.member("tuned", role(shape=model(48), init="base"), 8, init="base")
    training = Training(members={"tuned": member}, streams=(Stream(input="tokens"),), train=train(8))
    with pytest.raises(ConfigError, match=r"roles\.tuned\.init: the weights of base do not fit"):
        training_setup.train(training)


def test_a_draw_killed_inside_goes_on_from_its_newest_checkpoint_to_the_same_bits(
    training_setup: TrainingSetup,
) -> None:
    def drawn(name: str) -> Training:
        found = tuning(training_setup, name)
        how = found.train.model_copy(update={"checkpoint_every": 3, "keep": 2})
        return found.model_copy(update={"train": how})

    training_setup.train(drawn("whole"))
    with pytest.raises(StoppedError):
        training_setup.train(drawn("killed"), stop=AfterSteps(training_setup.folder, 5))
    stopped = training_setup.folder / "trajectory" / "killed" / "checkpoints" / "step-00000005"
    shutil.rmtree(stopped)  # as if it had been killed instead of stopped
    assert training_setup.steps("killed") == [3]
    training_setup.train(drawn("killed"))
    assert training_setup.weights("killed") == training_setup.weights("whole")
    assert training_setup.curve("killed") == training_setup.curve("whole")


def test_a_batch_that_a_layout_does_not_divide_is_filled_with_padding(training_setup: TrainingSetup) -> None:
    """Three rows for four micro-batches of a pipeline's schedule: the sizes of one process stay."""
    how = tuning(training_setup).train.model_copy(update={"global_batch": 3, "micro_batch": "auto"})
    layouts = {"one": laid_out(), "four": laid_out(shard=4), "staged": laid_out(pipeline=4)}
    sizes = {name: at_step(how, where, 0, pads=True).global_batch for name, where in layouts.items()}
    assert sizes == {"one": 3, "four": 4, "staged": 4}
    assert at_step(how, layouts["one"], 0, pads=True) == how


def test_two_ranks_that_do_not_divide_a_batch_tune_as_one_does(training_setup: TrainingSetup) -> None:
    def drawn(name: str) -> Training:
        found = tuning(training_setup, name, seed_name="tuned")
        sizes = {"global_batch": 3, "micro_batch": "auto", "precision": "fp64"}
        return found.model_copy(update={"train": found.train.model_copy(update=sizes)})

    training_setup.train(drawn("one"))
    run = training_setup.run_file(drawn("two"), layout=laid_out(shard=2))
    said = [rank.communicate(timeout=300) for rank in training_setup.processes(run, world=2)]
    losses = [[line["values"]["loss"] for line in training_setup.curve(name)] for name in ("one", "two")]
    assert losses[1] == pytest.approx(losses[0], abs=1e-10), said
    one, two = (load(training_setup.weights(name)) for name in ("one", "two"))
    assert max((one[name] - two[name]).abs().max().item() for name in one) < 1e-8


def test_the_model_of_a_draw_is_freed_before_the_next_is_built(
    training_setup: TrainingSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[int] = []

    def counted(training: Training, services: TrainingServices) -> list[RoleState]:
        alive.append(sum(type(one) is RoleState for one in gc.get_objects()))
        return run_training(training, services)

    monkeypatch.setattr("atelier.engine.train.run_training", counted)
    gc.disable()  # nothing frees it by chance
    try:
        training_setup.train(*(tuning(training_setup, name) for name in ("one", "two", "three")))
    finally:
        gc.enable()
    assert alive == [0, 0, 0]
