"""Training from a finished model on labelled examples, with all weights or a few."""

import gc
import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file

from atelier.engine.config.error import AllDivergedError, ConfigError, DivergedError
from atelier.engine.config.mixture import Stream
from atelier.engine.config.role import Trainable
from atelier.engine.config.run_file import Training
from atelier.engine.loop.role_state import RoleState
from atelier.engine.loop.services import TrainingServices
from atelier.engine.train import run_training
from tests.engine.labelled import labelled_setup
from tests.engine.loop.test_diverged import broken
from tests.engine.trainings import TrainingSetup, model, role, train


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


def test_the_model_of_a_draw_is_freed_before_the_next_is_built(
    training_setup: TrainingSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[int] = []

    def counted(training: Training, services: TrainingServices) -> list[RoleState]:
        alive.append(sum(type(one) is RoleState for one in gc.get_objects()))
        return run_training(training, services)

    monkeypatch.setattr("atelier.engine.train.run_training", counted)
    gc.collect()
    before = sum(type(one) is RoleState for one in gc.get_objects())
    training_setup.train(*(tuning(training_setup, name) for name in ("one", "two", "three")))
    assert alive == [before] * 3
