"""The link cost in a plan equals the bytes that the engine sends, for drawn models, trained weights, codecs
and fragments, and for real trainings; its times equal those of the codec chooser.
"""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from atelier.engine.config.metric import FOLDER, merge
from atelier.engine.config.model.encdec import EncDec
from atelier.engine.config.model.ernie import Ernie, Net
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.objective.attention import Attention
from atelier.engine.config.objective.hidden import Hidden
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.objective.logits import Logits
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Role, Trainable
from atelier.engine.config.train import Train
from atelier.engine.extensions.sites.codec_choice import RoundPlan
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.config.train.link import Link
from atelier.engine.extensions.sites.encoded import layouts_of
from atelier.engine.extensions.sites.lessons import answer_bytes, token_bytes
from atelier.engine.extensions.sites.link_cost import chosen, contribution_costs, exchanged, lesson_cost
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.rounds import Rounds
from atelier.engine.io.tensorfile import TensorEntry
from atelier.engine.loop.build import move_parts
from atelier.engine.model.load import blank, build
from atelier.engine.model.lora import apply as apply_lora
from atelier.engine.model.soft_prompt import tune_prompt
from atelier.engine.model.weights import entry_of
from atelier.engine.objective.load import add_modules
from tests.engine.extensions.sites.apart import ANSWERS, Apart, taught
from tests.engine.extensions.sites.test_outer import Sites
from tests.engine.trainings import TrainingSetup, role, tokens

STEPS = 12
TEACHER = GPT(num_layers=1, hidden=48, num_heads=2, vocab=64)
CODECS = (
    Codec(), Codec(kind="bf16"), Codec(kind="int8", block=64), Codec(kind="int4"), Codec(kind="int2"),
    Codec(kind="topk", share=0.03), Codec(kind="powersgd", rank=2),
)  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"tokens": tokens(tmp_path_factory.mktemp("text"))}


def timings(setup: TrainingSetup, name: str) -> list[dict[str, float]]:
    """Of the steps of a trajectory."""
    files = (setup.folder / "trajectory" / name / FOLDER).glob("*.jsonl")
    return [line.get("timing", {}) for line in merge((path.name, path.read_text()) for path in files)]


def total(timing: list[dict[str, float]], key: str) -> float:
    return sum(each.get(key, 0) for each in timing)


def drawn_model(draw: random.Random) -> ModelSpec:
    heads, vocab = draw.choice([2, 4]), draw.choice([50, 300])
    shape: dict[str, Any] = {"hidden": heads * 8, "num_heads": heads, "vocab": vocab}
    kind = draw.choice(["gpt", "gpt", "ernie", "encdec"])
    if kind == "ernie":
        net = Net(num_layers=1, hidden=16, num_heads=2)
        return Ernie(num_layers=2, **shape, nlu=net, nlg=net)
    if kind == "encdec":
        return EncDec(num_layers=draw.randint(1, 3), **shape)
    return GPT(
        num_layers=draw.randint(1, 4), **shape, norm=draw.choice(["rms", "layer"]), tied=draw.random() < 0.5
    )


def drawn_trainable(draw: random.Random, model: ModelSpec) -> Trainable:
    if isinstance(model, Ernie):
        return draw.choice([Trainable(), Trainable(kind="parts", parts=("nlg",))])
    some = [
        Trainable(),
        Trainable(kind="lora", rank=3),
        Trainable(kind="lora", rank=2, targets=("query", "out")),
        Trainable(kind="prompt", length=5),
    ]
    return draw.choice(some)


def drawn_role(draw: random.Random) -> Role:
    model = drawn_model(draw)
    how = drawn_trainable(draw, model)
    objective: dict[str, Any] = {"lm": LM()}
    if isinstance(model, GPT) and draw.random() < 0.5:
        objective["like"] = draw.choice([Hidden(), Attention(), Attention(auxiliary=False)])
    if how.kind == "prompt":
        model = model.model_copy(update={"soft_prompt": how.soft_prompt})
    teacher = "teacher" if len(objective) > 1 else ""
    return role(shape=model, objective=objective, trainable=how, teacher=teacher)


def of_the_engine(spec: Role, dtype: torch.dtype) -> dict[str, TensorEntry]:
    """The weights that a gang would exchange, from the plain model as it builds it."""
    with blank():
        model = build(spec.model).to(dtype)
        move_parts(model, spec.trainable)
        apply_lora(model, spec.trainable, seed=1, name="m")
        tune_prompt(model, spec.trainable)
        for key, objective in spec.objective.items():
            if spec.teacher_of(key):
                add_modules(model, [objective], teacher_hidden=TEACHER.hidden)
    moving = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    return {name: entry_of(name, tuple(weight.shape), weight.dtype) for name, weight in moving}


@pytest.mark.parametrize("seed", range(60))
def test_a_plan_s_bytes_are_those_of_the_engine_s_messages(seed: int) -> None:
    draw = random.Random(seed)
    spec, precision = drawn_role(draw), draw.choice(["fp32", "bf16", "fp64"])
    codec, fragments = (
        draw.choice(CODECS),
        draw.choice([1, 2]) if spec.trainable.kind in ("full", "parts") else 1,
    )
    every = fragments * draw.randint(1, 4)
    link = Link(
        rows={"a": 1, "b": 1}, every=every, fragments=fragments, delay=draw.randrange(every), codec=codec
    )
    steps = every * draw.randint(1, 4)
    weights = of_the_engine(spec, torch.float64 if precision == "fp64" else torch.float32)
    rounds = Rounds(link, steps)
    plan = RoundPlan(rounds, layouts_of(weights, fragments), link.codecs)
    found = exchanged(spec, spec.model, precision=precision, widths={"teacher": TEACHER.hidden})
    assert found is not None
    assert found == weights
    [cost] = contribution_costs(link, found, steps=steps, step_s=1.0, roles=1, rates={})
    assert [cost["bytes"], *cost["fragments"]] == plan.sizes[codec.text]
    sent = [plan.sizes[codec.text][rounds.fragment(number)] for number in range(1, rounds.last + 1)]
    assert cost["sent"] == sum(sent)


def test_a_projection_has_the_width_of_its_own_objective_s_teacher() -> None:
    """Without that width there is no plan."""
    objective: dict[str, Any] = {"lm": LM(), "like": Hidden(teacher="wide"), "near": Logits()}
    spec = role(objective=objective, teacher="narrow")
    found = exchanged(spec, spec.model, precision="fp32", widths={"narrow": 16, "wide": 48})
    assert found is not None and found["projection.weight"].shape == (48, spec.model.hidden)
    assert exchanged(spec, spec.model, precision="fp32", widths={"narrow": 16}) is None


@pytest.mark.parametrize(
    "link",
    [
        {},
        {"fragments": 2, "delay": 1, "codec": {"kind": "int4", "block": 64}},
        {"delay": 2, "codec": {"kind": "topk", "share": 0.05}},
    ],
)
def test_two_sites_send_what_was_planned(tmp_path: Path, text: dict[str, str], link: dict[str, Any]) -> None:
    """By the bodies that lie in the mailbox, and by what the curves say."""
    sites, spec = Sites(tmp_path, text, every=4, **link), role(lr=1e-2)
    sites.train(spec, checkpoint_every=STEPS)  # all messages stay
    how = Link(**sites.link, site="a")
    weights = exchanged(spec, spec.model, precision="fp32", widths={}) or {}
    [cost] = contribution_costs(how, weights, steps=STEPS, step_s=1.0, roles=1, rates={})
    rounds = Rounds(how, STEPS)
    bodies = {
        site: [path.stat().st_size for path in sorted(tmp_path.glob(f"mail/*/round-*/{site}/*.safetensors"))]
        for site in "ab"
    }
    sizes = [cost["bytes"], *cost["fragments"]]
    assert bodies["a"] == bodies["b"] == [sizes[rounds.fragment(n + 1)] for n in range(rounds.last)]
    assert sum(bodies["a"]) == cost["sent"]
    for site in "ab":
        timing = timings(sites.setups[site], "m")
        assert total(timing, "link_bytes") == total(timing, "link_received_bytes") == cost["sent"]
        taken = [each for each in timing if "link_round" in each]
        assert taken[-1]["link_round"] == rounds.last and taken[-1]["link_delay_steps"] == 0
        assert {each["link_delay_steps"] for each in taken[:-1]} == {how.delay}
        assert all(0 <= each["link_wait_s"] <= each["link_s"] for each in taken)


@pytest.mark.parametrize(
    ("top", "values", "precision"), [(32, "8bit", "fp32"), ("all", "exact", "fp64"), (5, "exact", "fp32")]
)
def test_answers_have_the_bytes_that_were_planned(
    tmp_path: Path, text: dict[str, str], top: int | str, values: str, precision: str
) -> None:
    how: dict[str, Any] = {"top": top, "values": values, "ahead": 20}
    sites = Apart(tmp_path, text, students={"student": taught()}, frozen=False, **how)
    sites.setups["a"].train(sites.training("a", precision=precision))  # alone, so that all messages stay
    training = sites.training("a", precision=precision).train
    link, box = training.link, Mailbox(sites.link["mailbox"], ANSWERS)
    sent = [*box.sent("a")]
    sites.setups["b"].train(sites.training("b", precision=precision))
    assert len(sent) == training.num_steps
    most, told = training.global_batch * training.sequence, 0
    teacher = role()
    cost = lesson_cost(training, teacher.model, "answers", teacher, steps=len(sent), step_s=1.0, rate=0.0)
    for message in sent:
        sizes = {
            answer_bytes(link, 64, rows=training.global_batch, tokens=n, precision=precision)
            for n in range(most + 1)
        }
        assert message.body.bytes in sizes and message.body.bytes <= cost["bytes"]
        told += message.body.bytes
    assert 0.9 * cost["sent"] < told <= cost["sent"]
    teacher, student = (
        timings(sites.setups[site], name) for site, name in (("a", "teacher"), ("b", "student"))
    )
    assert total(teacher, "link_bytes") == total(student, "link_received_bytes") == told
    ahead = [each["link_ahead_steps"] for each in (*teacher, *student)]
    assert min(ahead) >= 0 and max(ahead) <= link.ahead
    if (top, values) == (32, "8bit"):
        assert token_bytes(link, 64, precision=precision) == 98


def test_a_rate_says_the_seconds_the_stall_and_what_would_be_taken() -> None:
    """Whatever the rate: what the link needs is the least at which the chooser takes that codec."""
    codecs = (Codec(), Codec(kind="int8"), Codec(kind="int2"))
    link = Link(rows={"a": 1, "b": 1, "c": 1}, every=20, delay=4, choose=codecs, stall=0.1)
    weights = exchanged(role(), role().model, precision="fp32", widths={}) or {}

    def costs(rate: float) -> list[Any]:
        rates = {"b": rate, "c": rate}
        found = contribution_costs(link, weights, steps=200, step_s=0.5, roles=1, rates=rates)
        return [found, chosen(link, found, step_s=0.5, roles=1, rates=rates)]

    for place, codec in enumerate(codecs):
        rate = costs(1.0)[0][place]["needs_mbps"] * 1e6 / 8
        assert costs(rate * 1.001)[1] == codec
        assert costs(rate * 0.999)[1] != codec or place == 2
        at, slow = costs(rate)[0][place], costs(rate / 2)[0][place]
        assert at["seconds"] == pytest.approx(0.5 * (4 + 0.1 * 20))
        waits = 9 * 0.5 * 2 + 3  # nine rounds are late by two steps, the last is waited for from its begin
        assert at["stall"] == pytest.approx(waits / (waits + 100)) and slow["stall"] > at["stall"]


def test_what_is_not_known_is_none_and_not_nothing() -> None:
    link = Link(rows={"a": 1, "b": 1}, every=20, delay=4)
    weights = exchanged(role(), role().model, precision="fp32", widths={}) or {}
    for step_s, rates, known in (
        (0.0, {}, set[str]()),
        (0.0, {"b": 1e6}, {"seconds"}),
        (0.5, {}, {"needs_mbps"}),
        (0.5, {"b": 1e6}, {"needs_mbps", "seconds", "stall"}),
    ):
        [of_weights] = contribution_costs(link, weights, steps=40, step_s=step_s, roles=1, rates=rates)
        apart = Link(roles={"a": ["t"], "b": ["s"]}, mailbox="/m", site="a")
        train = Train(global_batch=2, sequence=16, steps=4, precision="fp32", link=apart)
        of_answers = lesson_cost(
            train, role().model, "answers", role(), steps=4, step_s=step_s, rate=rates.get("b", 0.0)
        )
        for cost in (of_weights, of_answers):
            assert {key for key in ("needs_mbps", "seconds", "stall") if cost[key] is not None} == known
