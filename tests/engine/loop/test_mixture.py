"""Objectives that read rows of their own: their means, weights and refusals."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from atelier.engine.config.base import parse
from atelier.engine.config.data import Data
from atelier.engine.config.error import ConfigError
from atelier.engine.config.mixture import (
    ROWS,
    Phase,
    SourceShares,
    identity_of,
    resolve_phases,
    row_specs,
    streams,
)
from atelier.engine.config.model.ernie import Ernie, Net
from atelier.engine.config.objective.attention import Attention
from atelier.engine.config.objective.control import Control
from atelier.engine.config.objective.distance import Distance
from atelier.engine.config.objective.document import DocumentLM
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.objective.logits import Logits
from atelier.engine.config.objective.mlm import MLM
from atelier.engine.config.objective.reorder import Reorder
from atelier.engine.config.registry import ObjectiveSpec
from atelier.engine.config.role import Role, Trainable
from atelier.engine.config.run_file import Member, Training
from atelier.engine.config.schedule import WeightSchedule
from atelier.engine.config.train import Progressive
from atelier.engine.io.artifact import open_input
from atelier.engine.loop import step
from atelier.engine.loop.counts import count
from atelier.engine.loop.samples import Samples
from atelier.engine.plan.checks import check_readers, check_teaching
from tests.engine.row_inputs import VOCAB, every_objective, harbour
from tests.engine.trainings import TrainingSetup, role, tokens, train


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return harbour(tmp_path_factory.mktemp("harbour"))


def net(hidden: int = 32, **more: Any) -> Ernie:
    own = Net(num_layers=1, hidden=16, num_heads=2)
    sizes = {"num_layers": 1, "num_heads": 2, "vocab": VOCAB, "classes": {"reorder": 9, "distance": 3}}
    return Ernie(hidden=hidden, nlu=own, nlg=own, **(sizes | more))


def reader(objective: dict[str, ObjectiveSpec] | None = None, **more: Any) -> Role:
    return role(shape=net(), objective=objective or every_objective(), **more)


def how(steps: int = 8, **more: Any) -> Any:
    return train(steps, **({"global_batch": 8, "micro_batch": 4, "sequence": 32, "eval_sequences": 2} | more))


def test_every_objective_has_its_own_curve_and_they_fall(tmp_path: Path, inputs: dict[str, str]) -> None:
    training_setup = TrainingSetup(tmp_path, inputs)
    sizes = how(30, eval_sequences=30, checkpoint_every=6)
    training_setup.train(training_setup.training({"model": reader(lr=1e-2)}, sizes))
    lines = [line["values"] for line in training_setup.curve("model")]
    for name in ("document", "mlm"):
        found = [line[f"objective/{name}"] for line in lines if f"objective/{name}" in line]
        assert sum(found[-6:]) < sum(found[:6]), name
    assert set(lines[-1]) >= {
        "eval/loss",
        "eval/objective/mlm",
        "eval/objective/knowledge",
        "eval/objective/accuracy/reorder",
    }
    assert lines[-1]["eval/objective/document"] < lines[5]["eval/objective/document"]


def test_a_total_weighs_each_mean_by_its_share_however_few_rows_it_has(
    tmp_path: Path, inputs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    totals: list[float] = []
    after = step.RoleStep.after

    def noted(self: Any, member: Any, index: int, total: torch.Tensor) -> torch.Tensor:
        result = after(self, member, index, total)
        totals.append(float(result.detach()))
        return result

    monkeypatch.setattr(step.RoleStep, "after", noted)
    training_setup = TrainingSetup(tmp_path, inputs)
    training_setup.train(
        training_setup.training({"model": reader()}, how(1, precision="fp64", eval_sequences=4))
    )
    values = training_setup.curve("model")[0]["values"]
    shares = {name: spec.weight for name, spec in every_objective().items()}
    expected = sum(share * values.get(f"objective/{name}", 0.0) for name, share in shares.items())
    assert sum(totals) == pytest.approx(expected, rel=1e-12)


def test_a_step_may_have_classes_to_predict_and_no_token(tmp_path: Path, inputs: dict[str, str]) -> None:
    rare: dict[str, ObjectiveSpec] = {
        "document": DocumentLM(weight=0.5, rows=0.5), "reorder": Reorder(weight=0.5, rows=0.5),
    }  # fmt: skip
    training_setup = TrainingSetup(tmp_path, inputs)
    training_setup.train(
        training_setup.training({"model": reader(rare)}, how(12, global_batch=1, micro_batch=1))
    )
    lines = [line["values"] for line in training_setup.curve("model")]
    without = [line for line in lines if "loss" not in line]
    assert len(lines) == 12 and 0 < len(without) < 12
    for line in without:
        assert line["objective/reorder"] > 0 and line["grad_norm"] > 0
    assert sum("objective/document" in line for line in lines) == 12 - len(without)


def test_a_mean_is_over_what_its_own_rows_have_to_predict() -> None:
    labels = torch.tensor([[1, 2, -100], [-100, -100, -100], [-100, 5, -100]])
    batch = {
        "labels_BT": labels,
        "documents_BT": torch.zeros_like(labels),
        "classes_B": torch.tensor([-100, 2, -100]),
        "parts_B": torch.tensor([0, 1, 2]),
    }
    found = count([batch, batch], 3)
    assert (found.scored, found.tokens, found.parts) == (6, 18, (4, 2, 2))
    assert (found.of(None), found.of((1,))) == (6, 2)


def test_students_of_a_mixture_leave_their_teacher_its_bits(tmp_path: Path, inputs: dict[str, str]) -> None:
    alone, taught = TrainingSetup(tmp_path / "alone", inputs), TrainingSetup(tmp_path / "taught", inputs)
    alone.train(alone.training({"teacher": reader()}, how(4)))
    lessons = {"kd": Logits(), "attention": Attention()}
    pupil = role(shape=net(16), objective=every_objective() | lessons, teacher="teacher", start=2)
    bare = role(shape=net(16), objective=lessons, teacher="teacher")
    taught.train(taught.training({"teacher": reader(), "pupil": pupil, "bare": bare}, how(4)))
    assert alone.weights("teacher") == taught.weights("teacher")
    assert alone.curve("teacher") == taught.curve("teacher")
    assert taught.summary("teacher")["forwards"] == 4 * 2


def test_a_training_of_a_mixture_resumes_with_the_same_bits(tmp_path: Path, inputs: dict[str, str]) -> None:
    whole, halves = TrainingSetup(tmp_path / "whole", inputs), TrainingSetup(tmp_path / "halves", inputs)
    for training_setup, ends in ((whole, (4,)), (halves, (2, 4))):
        for end in ends:
            training_setup.train(training_setup.training({"model": reader()}, how(end)))
    assert whole.weights("model") == halves.weights("model")
    assert whole.curve("model")[-1] == halves.curve("model")[-1]


def test_rows_are_drawn_in_the_shares_of_objectives_and_sources() -> None:
    found = streams(row_specs({"m": reader()}), {"main": 3.0, "more": 1.0})
    assert {(s.kind, s.input): s.weight for s in found}["mlm", "tokens.more"] == pytest.approx(0.3)
    assert {s.input for s in found if s.kind == "knowledge"} == {"triples.main", "triples.more"}
    assert [s.kind for s in streams(row_specs({"m": role()}), {"main": 1.0})] == ["windows"]


def test_samples_do_not_depend_on_the_order_of_sources_and_objectives(
    tmp_path: Path, inputs: dict[str, str]
) -> None:
    more = {key.replace(".main", ".more"): url for key, url in inputs.items() if key.endswith(".main")}
    opened = {key: open_input(url) for key, url in (inputs | more).items()}
    found: list[bytes] = []
    for seed in range(4):
        draw = random.Random(seed)
        objective = draw.sample(list(every_objective().items()), 5)
        weights = draw.sample([("main", 3.0), ("more", 1.0)], 2)
        one = reader(dict(objective))
        training = Training(
            members={"m": Member(role=one)},
            streams=streams(row_specs({"m": one}), dict(weights)),
            train=how(),
        )
        batch = Samples(training, opened, tmp_path).blend(32).batch(0, 24)
        found.append(b"".join(batch[name].tobytes() for name in ("tokens_BT", "labels_BT", "parts_B")))
    assert len(set(found)) == 1


def test_a_mixture_has_a_version_and_a_single_stream_has_none() -> None:
    assert identity_of(["windows"], {"main": 2.0}) == {}
    assert identity_of(["windows", "windows"], {"main": 2.0}) == {}
    assert identity_of(["mlm", "windows"], {"main": 2.0}) == {"mixture": {"version": 2}}
    shares = {"main": 0.75, "more": 0.25}
    assert identity_of(["windows"], {"main": 3.0, "more": 1.0}) == {
        "weights": shares, "mixture": {"version": 2}
    }  # fmt: skip


def test_a_source_is_identity_from_the_phase_that_reads_it_on() -> None:
    weights, later = {"main": 2.0, "more": 0.0}, [SourceShares(begin=5, weights={"main": 1.0, "more": 3.0})]
    assert identity_of(["windows"], weights) == identity_of(["windows"], {"main": 1.0}) == {}
    assert identity_of(["windows"], weights, later) == {
        "weights": {"main": 1.0},
        "phases": [[5, {"main": 0.25, "more": 0.75}]],
        "mixture": {"version": 2},
    }


def test_a_kind_of_rows_is_identity_where_its_version_is_not_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ROWS, "mlm", 3)
    assert identity_of(["mlm"], {"main": 1.0}) == {"rows": {"mlm": 3}}
    assert identity_of(["windows"], {"main": 1.0}) == {}


def test_two_objectives_of_one_kind_of_rows_want_the_same_rows() -> None:
    reader({"a": MLM(rate=0.3), "b": MLM(rate=0.3, weight=2.0)})
    with pytest.raises(ValueError, match="objectives a and b read the same kind of rows, mlm"):
        Role.model_validate(
            reader().model_dump() | {"objective": {"b": MLM(rate=0.3), "a": MLM(), "document": DocumentLM()}}
        )


@pytest.mark.parametrize(
    ("name", "problem"),
    [("lm", "only kind lm may be called so"), ("*", "is not a name of an objective"), ("", "not a name")],
)
def test_a_name_that_would_stand_for_another_sum_is_refused(name: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        role(objective={name: MLM()})


def test_roles_of_one_training_read_the_same(tmp_path: Path) -> None:
    other = reader({"mlm": MLM(rate=0.3), "document": DocumentLM()})
    with pytest.raises(ConfigError, match=r"roles\.b\.objective: reads document, mlm, but a document, mlm"):
        row_specs({"a": reader({"document": DocumentLM(), "mlm": MLM()}), "b": other})
    eager = role(shape=net(16), objective={"mlm": MLM(), "kd": Logits()}, teacher="a")
    with pytest.raises(ConfigError, match=r"roles\.b\.objective: reads mlm, but a, which defines"):
        row_specs({"a": reader({"document": DocumentLM()}), "b": eager})


def test_a_model_without_the_head_of_an_objective_is_refused() -> None:
    needs = {"document": DocumentLM(), "reorder": Reorder()}
    says = r"roles\.m\.model\.classes: .* a head with 9 classes; heads: reorder: 3"
    with pytest.raises(ConfigError, match=says):
        check_teaching({"m": role(shape=net(classes={"reorder": 3}), objective=needs)})
    with pytest.raises(ConfigError, match="heads: none; model=ernie_tiny"):
        check_teaching({"m": role(objective=needs)})


def test_the_loss_is_of_all_tokens_whatever_an_objective_is_called(
    tmp_path: Path, inputs: dict[str, str]
) -> None:
    """Also where the objective that reads windows has come to weight 0; and so is the held-out loss."""
    falling = LM(schedule=WeightSchedule(kind="linear", begin=2, end=5))
    found = {}
    for name in ("lm", "text"):
        training_setup = TrainingSetup(tmp_path / name, inputs)
        spec = role(shape=net(), objective={name: falling, "mlm": MLM(rows=0.5)})
        training_setup.train(training_setup.training({"m": spec}, how(8, precision="fp64")))
        lines = [line["values"] for line in training_setup.curve("m")]
        found[name] = [(line["loss"], line["grad_norm"], line.get("eval/loss")) for line in lines]
    assert found["lm"] == found["text"]
    assert all(0 < loss < 6.1 for loss, _, _ in found["lm"]) and found["lm"][-1][2] > 0


def test_each_source_of_text_has_its_own_held_out_loss(tmp_path: Path) -> None:
    """And the loss of all is their mean, weighted by tokens; of one source alone there is one loss."""
    inputs = {f"tokens.{name}": tokens(tmp_path / name, seed=seed) for seed, name in enumerate(("a", "b"))}
    setup = TrainingSetup(tmp_path, inputs)
    found = {}
    for name, weights in (("both", {"a": 1.0, "b": 3.0}), ("a", {"a": 1.0})):
        training = Training(
            members={name: setup.member(name, role(lr=1e-2), 4)},
            streams=streams({}, weights),
            train=train(4, eval_every=4, eval_sequences=8, precision="fp64"),
        )
        setup.train(training)
        found[name] = setup.curve(name)[-1]["values"]
    both = found["both"]
    a, b = both["eval/source/a"], both["eval/source/b"]
    assert (both["eval/loss"] - b) / (a - b) == pytest.approx(2 / 8, abs=0.02)  # of 8 rows, unequally scored
    assert [name for name in found["a"] if name.startswith("eval/")] == ["eval/loss"]


def test_a_phase_changes_nothing_before_it_and_its_text_has_a_loss_of_its_own(tmp_path: Path) -> None:
    """A run without the phase and one with it are equal to the bit until it begins; stopped or not."""
    inputs = {f"tokens.{name}": tokens(tmp_path / name, seed=seed) for seed, name in enumerate(("a", "b"))}
    setup = TrainingSetup(tmp_path, inputs)
    settings = train(8, eval_every=2, eval_sequences=8, precision="fp64")
    found, phase = {}, (SourceShares(begin=4, weights={"b": 0.2, "a": 0.8}),)
    for name, weights, later in (
        ("plain", {"b": 1.0}, ()),
        ("whole", {"b": 1.0, "a": 0.0}, phase),
        ("pieces", {"b": 1.0, "a": 0.0}, phase),
    ):
        training = Training(
            members={name: setup.member(name, role(lr=1e-2, seed_name="m"), 8)},
            streams=streams({}, weights, later),
            phases=tuple(shares.begin for shares in later),
            train=settings,
        )
        if name == "pieces":
            assert setup.train_in_pieces(training, 3) == 2
        else:
            setup.train(training)
        found[name] = [line["values"] for line in setup.curve(name)]
    assert setup.weights("whole") == setup.weights("pieces")
    names = ("loss", "grad_norm", "eval/loss")
    plain, whole = ([[line.get(name) for name in names] for line in found[key]] for key in ("plain", "whole"))
    assert plain[:4] == whole[:4] and plain[4][0] != whole[4][0]
    first, last = (found["whole"][step] for step in (1, 7))
    assert first["eval/source/b"] == first["eval/loss"] and "eval/source/b" not in found["plain"][1]
    assert last["eval/source/a"] < first["eval/source/a"]


def test_a_phase_is_refused_where_it_does_not_fit() -> None:
    weights = {"main": 1.0, "good": 0.0}

    def phase(begin: float, **more: float) -> Phase:
        return Phase(begin=begin, weights=more)

    found = resolve_phases(weights, {"z": phase(0.5, good=1), "a": phase(0.8, main=0)}, 10)
    assert [(each.begin, each.weights) for each in found] == [
        (5, {"main": 1.0, "good": 1.0}),
        (8, {"main": 0.0, "good": 1.0}),
    ]
    for phases, problem in (
        ({"d": phase(12, good=1)}, r"data\.phases\.d\.begin: step 12 is not within the 10 steps"),
        ({"d": phase(0.01, good=1)}, r"d\.begin: step 0 is not within"),
        ({"d": phase(0.5, good=1), "e": phase(5, good=2)}, r"e\.begin: step 5, as in d"),
        ({"d": phase(0.5, main=0)}, r"d\.weights: no source is left"),
    ):
        with pytest.raises(ConfigError, match=problem):
            resolve_phases(weights, phases, 10)
    assert resolve_phases(weights, {"none": phase(0.5, good=0), "same": phase(0.6, main=3)}, 10) == ()
    blend = {"good": {"weight": 0}}
    for problem, given in (
        (r"d\.weights\.goood: .*; did you mean good", {"blend": blend, "phases": {"d": phase(2, goood=1)}}),
        ("weight is 0, but the first step reads data.source", {"weight": 0, "blend": blend}),
    ):
        with pytest.raises(ConfigError, match=problem):
            parse(Data, given, "data")


def test_rows_that_a_role_could_not_read_are_refused_before_a_gang_starts(
    tmp_path: Path, inputs: dict[str, str]
) -> None:
    """Also a student's that optimises something else: it reads its teacher's rows."""
    teacher = reader({"document": DocumentLM(), "mlm": MLM()})
    pupil = role(objective={"kd": Logits()}, teacher="a")
    for roles in ({"a": role(objective={"mlm": MLM()})}, {"a": teacher, "b": pupil}):
        says = r"model\.kind: gpt does not read bidirectional_B .* kind=ernie"
        with pytest.raises(ConfigError, match=says):
            check_readers(roles, row_specs(roles).values(), 64)
    control = Control(prompt_length=2)
    writer = role(shape=net(prompts=control.num_prompts), objective={"control": control})
    for shape, problem in (
        (net(), r"b\.model\.prompts: is not there, but"),
        (role().model, "gpt does not read prompts_BT"),
    ):
        roles = {"a": writer, "b": role(shape=shape, objective={"kd": Logits()}, teacher="a")}
        with pytest.raises(ConfigError, match=problem):
            check_readers(roles, row_specs(roles).values(), 64)
    training_setup = TrainingSetup(tmp_path, inputs)
    with pytest.raises(ConfigError, match=r"roles\.b\.model\.kind"):
        training_setup.train(training_setup.training({"a": teacher, "b": pupil}, how(2)))


@pytest.mark.parametrize(
    ("spec", "least"),
    [(DocumentLM(memory=40), 41), (Reorder(), 19), (Distance(), 19)],
    ids=["document", "reorder", "distance"],
)
def test_rows_too_short_for_an_objective_are_refused_before_they_are_read(
    tmp_path: Path, inputs: dict[str, str], spec: ObjectiveSpec, least: int
) -> None:
    """`least` are enough; one less is too short, if only in the first steps."""
    roles = {"a": reader({spec.kind: spec})}
    setup = TrainingSetup(tmp_path, inputs)
    setup.train(setup.training(roles, how(2, sequence=least)))
    grows = Progressive(steps=4, sequence=0.25)
    for short in (how(2, sequence=least - 1), how(8, sequence=64, progressive=grows)):
        with pytest.raises(ConfigError, match=rf"too short for .* objective {spec.kind}; give {least} or"):
            setup.train(setup.training(roles, short))


def test_either_net_can_be_tuned_alone(tmp_path: Path, inputs: dict[str, str]) -> None:
    training_setup = TrainingSetup(tmp_path, inputs)
    training_setup.train(training_setup.training({"first": reader()}, how(2)))
    for part in ("nlu", "nlg"):
        training_setup.inputs = inputs | {"base": training_setup.as_input("first")}
        spec = reader(trainable=Trainable(kind="parts", parts=(part,)), init="base")
        member = training_setup.member(part, spec, 2).model_copy(update={"init": "base"})
        training_setup.train(training_setup.training({part: member}, how(2)))
        before, after = load(training_setup.weights("first")), load(training_setup.weights(part))
        moved = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
        assert moved == {part}


def test_a_part_that_the_model_does_not_have_is_named(tmp_path: Path, inputs: dict[str, str]) -> None:
    training_setup = TrainingSetup(tmp_path, inputs)
    spec = reader(trainable=Trainable(kind="parts", parts=("nlq",)))
    says = r"trainable\.parts: the model has no part 'nlq'; did you mean nl[ug]"
    with pytest.raises(ConfigError, match=says):
        training_setup.train(training_setup.training({"model": spec}, how(1)))
