"""Students that learn from their teacher's attention and hidden states: which weights move, what is left,
what is exported.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from atelier.engine.config.error import ConfigError
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.objective.attention import Attention
from atelier.engine.config.objective.hidden import Hidden
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.objective.logits import Logits
from atelier.engine.config.role import Role
from atelier.engine.loop.build import BuildContext as Building
from atelier.engine.loop.build import build_member
from atelier.engine.loop.counts import count
from atelier.engine.loop.prefetch import tensors_of
from atelier.engine.loop.teacher_outputs import teacher_side_for
from atelier.engine.parallel.gang import start_gang
from tests.engine.trainings import ONE, TrainingSetup, model, role, train

TEACHER = role(shape=model(32, num_layers=2, dropout=0.1))


@pytest.fixture
def training_setup(tmp_path: Path) -> TrainingSetup:
    return TrainingSetup(tmp_path)


def learner(*, auxiliary: bool = True, **more: Any) -> Role:
    """A student of two blocks that learns from attention alone."""
    objective, shape = {"attention": Attention(auxiliary=auxiliary)}, model(16, num_layers=2)
    return role(shape=shape, objective=objective, teacher="teacher", **more)


def gradients(training_setup: TrainingSetup, student: Role) -> dict[str, torch.Tensor]:
    """The student's gradients of one micro-batch."""
    training = training_setup.training({"teacher": TEACHER, "student": student}, train(precision="fp64"))
    gang = start_gang(ONE)
    building = Building(gang=gang, layout=ONE, inputs={}, scratch=training_setup.folder)
    members = {
        n: build_member(n, s, training=training, build_context=building) for n, s in training.members.items()
    }
    generator = torch.Generator().manual_seed(3)
    rows = torch.randint(0, 64, (2, 17), generator=generator).numpy()
    batch = tensors_of(
        {
            "tokens_BT": rows[:, :-1],
            "labels_BT": rows[:, 1:],
            "documents_BT": rows[:, 1:] * 0,
            "positions_BT": rows[:, 1:] * 0 + torch.arange(16).numpy(),
        }
    ) | {"samples_B": torch.arange(2)}
    works = {name: member.work([batch], 0, count([batch], 0)) for name, member in members.items()}
    body = members["student"].body
    assert body is not None

    def after(index: int, total: torch.Tensor) -> torch.Tensor:
        result = works["teacher"].results.pop(index)
        grids = members["student"].grid, members["teacher"].grid
        works["student"].sides[index] = teacher_side_for(
            *grids, result, 16, rows=len(result.head_weight_VD), with_relations=True
        )
        body.train_one(index, works["student"], lambda _, mine: mine)
        return total

    members["teacher"].train(works["teacher"], after)
    return {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad
        for name, weight in body.parameters().items()
    }


def test_without_the_auxiliary_layer_the_last_mlp_learns_nothing_from_attention(
    training_setup: TrainingSetup,
) -> None:
    found = gradients(training_setup, learner(auxiliary=False))
    silent = {name for name, gradient in found.items() if not gradient.any()}
    last = {f"blocks.1.mlp.{leaf}.weight" for leaf in ("gate", "up", "down")}
    others = {"blocks.1.attention.value.weight", "blocks.1.attention.out.weight", "blocks.1.norm2.weight"}
    assert silent == last | others | {"norm.weight"}


def test_with_the_auxiliary_layer_every_part_of_every_block_learns(training_setup: TrainingSetup) -> None:
    found = gradients(training_setup, learner())
    assert {name for name, gradient in found.items() if not gradient.any()} == {"norm.weight"}
    assert {name for name in found if name.startswith("auxiliary.")} == {
        "auxiliary.norm.weight",
        "auxiliary.attention.query.weight",
        "auxiliary.attention.key.weight",
    }


def everything(**more: Any) -> Role:
    objective = {"lm": LM(), "kd": Logits(), "attention": Attention(), "hidden": Hidden()}
    return role(16, objective=objective, teacher="teacher", **more)


def test_the_exported_student_has_its_own_layers_alone(training_setup: TrainingSetup) -> None:
    student = everything()
    training_setup.train(training_setup.training({"teacher": TEACHER, "student": student}, train()))
    weights = load(training_setup.weights("student"))
    assert {name: tuple(weight.shape) for name, weight in weights.items()} == student.model.shapes()


def test_attention_and_hidden_states_come_nearer_while_the_teacher_keeps_its_bits(tmp_path: Path) -> None:
    alone, taught = TrainingSetup(tmp_path / "alone"), TrainingSetup(tmp_path / "taught")
    alone.train(alone.training({"teacher": TEACHER}, train(12)))
    roles = {"teacher": TEACHER, "student": everything(lr=1e-2), "still": everything(lr=1e-9)}
    taught.train(taught.training(roles, train(12)))
    assert alone.weights("teacher") == taught.weights("teacher")
    for name in ("objective/attention", "objective/hidden"):
        ends = {who: taught.curve(who)[-1]["values"][name] for who in ("student", "still")}
        assert ends["student"] < 0.8 * ends["still"], name


def test_a_student_by_attention_resumes_with_the_same_bits(tmp_path: Path) -> None:
    whole, halves = TrainingSetup(tmp_path / "whole"), TrainingSetup(tmp_path / "halves")
    for training_setup, ends in ((whole, (8,)), (halves, (4, 8))):
        for end in ends:
            roles = {"teacher": TEACHER, "student": everything()}
            training_setup.train(training_setup.training(roles, train(end)))
    assert whole.weights("student") == halves.weights("student")


def test_relation_heads_that_do_not_fit_are_refused_before_anything_starts(
    training_setup: TrainingSetup,
) -> None:
    student = role(16, objective={"attention": Attention(relation_heads=5)}, teacher="teacher")
    with pytest.raises(
        ConfigError, match=r"roles\.student\.objective\.attention\.relation_heads.*5.*would fit"
    ):
        training_setup.train(training_setup.training({"teacher": TEACHER, "student": student}, train()))


def test_relation_heads_divide_the_width_of_all_heads_which_need_not_be_the_hidden_one() -> None:
    student = GPT(num_layers=1, hidden=64, num_heads=4, vocab=9)
    fits = GPT(num_layers=1, hidden=66, num_heads=4, head_dim=16, vocab=9)
    Attention().check("", "attention", student, ("teacher", fits))
    other = GPT(num_layers=1, hidden=64, num_heads=3, head_dim=10, vocab=9)
    with pytest.raises(ConfigError, match="4 does not divide teacher's width 30; 2 would fit"):
        Attention().check("", "attention", student, ("teacher", other))


def test_attention_that_relations_would_not_show_is_refused() -> None:
    """A window of one of the two, or scores of another scale."""
    shape: dict[str, Any] = {"num_layers": 2, "hidden": 64, "num_heads": 4, "vocab": 9}
    student = GPT(**shape)
    for fields, said in (
        ({"window": 8}, "teacher attends to 8 tokens in its last block, the student to all"),
        ({"multipliers": {"scores": 0.3}}, "teacher scales scores by 0.3"),
    ):
        with pytest.raises(ConfigError, match=f"objective.attention: {said}"):
            Attention().check("", "attention", student, ("teacher", GPT(**shape, **fields)))
    near = GPT(**shape, window=8, window_blocks=[0])  # the last block sees everything
    Attention().check("", "attention", student, ("teacher", near))
    both = GPT(**shape, window=8)
    Attention().check("", "attention", both, ("teacher", both))
