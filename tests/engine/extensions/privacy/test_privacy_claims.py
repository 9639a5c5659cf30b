"""Refusals of what is not built for private training, and the claimed epsilon against a library."""

import math
import random
from typing import Any

import numpy as np
import pytest

from atelier.engine.config.base import parse
from atelier.engine.config.error import ConfigError
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.objective.mlm import MLM
from atelier.engine.config.role import Trainable
from atelier.engine.config.train import Progressive, Train
from atelier.engine.data.blend import Blend
from atelier.engine.extensions.privacy import epsilon as accounting
from atelier.engine.extensions.privacy.config.train.privacy import Privacy
from atelier.engine.extensions.privacy.epsilon import Visits, epsilon, poisson_epsilon, statement, visits
from atelier.engine.extensions.privacy.report import sentence
from atelier.engine.plan.checks import check_layout
from tests.engine.extensions.detection.detection import detector, generator
from tests.engine.trainings import model, role, student, train
from tests.parity.cases import layout as layout_of

ON = Privacy(kind="record", secret=False)
LORA = Trainable(kind="lora", rank=2)
DETECTING = {
    "d": detector(trainable=LORA),
    "generator": generator(trainable=LORA),
}  # each is refused by itself, too
STRICT = {"rows": {"a": 2, "b": 2}, "every": 2, "site": "a", "mailbox": "/mail"}
ELASTIC = STRICT | {"membership": {"kind": "elastic"}}


def how(**more: Any) -> Train:
    return train(**({"micro_batch": 1, "privacy": ON} | more))


def test_an_adapter_is_not_refused() -> None:
    for axes in ({}, {"shard": 2}, {"replicate": 2}):
        check_layout(layout_of(**axes), {"m": role(trainable=LORA)}, how())
    check_layout(layout_of(), {"m": role(trainable=LORA)}, how(link=STRICT))
    check_layout(layout_of(), {"m": role()}, train())


@pytest.mark.parametrize(
    ("layout", "roles", "more", "problem"),
    [
        ({}, {"m": role()}, {}, r"roles.m.trainable.kind: full, .*trainable.kind=lora"),
        (
            {},
            {"m": role(trainable=LORA, objective={"lm": LM(), "mlm": MLM()})},
            {},
            r"roles.m.objective: is lm and mlm",
        ),
        ({}, {"m": role(trainable=LORA, shape=model(num_experts=4))}, {}, r"roles.m.model.num_experts: 4"),
        (
            {},
            {"teacher": role(trainable=LORA), "s": student(trainable=LORA)},
            {},
            r"roles.s.teacher: teacher, ",
        ),
        ({}, DETECTING, {}, r"roles.d.teacher: generator, "),
        ({}, {"m": role(trainable=LORA)}, {"micro_batch": 2}, r"train.micro_batch: 2, "),
        (
            {},
            {"m": role(trainable=LORA)},
            {"progressive": Progressive(steps=4)},
            r"train.progressive.steps: 4, ",
        ),
        ({}, {"m": role(trainable=LORA)}, {"health": {"spike": "skip"}}, r"train.health.spike: skip"),
        ({}, {"m": role(trainable=LORA)}, {"health": {"nan": "rollback"}}, r"train.health.nan: rollback"),
        ({"tensor": 2}, {"m": role(trainable=LORA)}, {}, r"parallel.tensor: 2, .*tensor=1, and shard"),
        ({"pipeline": 2}, {"m": role(trainable=LORA)}, {}, r"parallel.pipeline: 2, "),
        ({"context": 2}, {"m": role(trainable=LORA)}, {}, r"parallel.context: 2, "),
        ({"assignment": "static"}, {"m": role(trainable=LORA)}, {}, r"parallel.assignment: static"),
        (
            {},
            {"m": role(trainable=LORA)},
            {"link": ELASTIC},
            r"train.link.membership.kind: elastic, .* assigned again; train.link.membership.kind=strict, or",
        ),
    ],
)
def test_what_is_not_built_is_refused(
    layout: dict[str, Any], roles: dict[str, Any], more: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_layout(layout_of(**layout), roles, how(**more))


def test_without_the_accountant_an_epsilon_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "find_spec", lambda name: None)
    roles = {"m": role(trainable=LORA)}
    check_layout(layout_of(), roles, how())  # claims none
    with pytest.raises(ConfigError, match=r"train.privacy: epsilon needs the package dp-accounting.*extra"):
        check_layout(layout_of(), roles, how(privacy=Privacy(kind="record")))


def test_auto_is_a_row_at_a_time() -> None:
    document = {"steps": 1, "global_batch": 4, "sequence": 8, "privacy": {"kind": "record"}}
    assert parse(Train, document, "train").micro_batch == 1
    assert parse(Train, document | {"micro_batch": 2}, "train").micro_batch == 2
    assert parse(Train, document | {"privacy": {}}, "train").micro_batch == "auto"
    with pytest.raises(ConfigError, match=r"privacy.noise does nothing with kind=none"):
        parse(Train, document | {"privacy": {"noise": 2.0}}, "train")


def test_privacy_is_identity_and_none_is_as_before() -> None:
    assert "privacy" not in train().as_identity()
    assert how(privacy=Privacy(kind="record", noise=2.0)).as_identity()["privacy"] == {
        "kind": "record",
        "noise": 2.0,
    }


class Rows:
    """A data set of so many rows, each with its number."""

    length = 1

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def batch(self, indices: Any, epochs: Any = None) -> dict[str, np.ndarray]:
        return {"tokens_BT": np.asarray(indices)[:, None]}


@pytest.mark.parametrize("seed", range(6))
def test_no_row_is_drawn_more_often_than_counted(seed: int) -> None:
    draw = random.Random(seed)
    sizes = [draw.randint(1, 60) for _ in range(draw.randint(1, 3))]
    weights = [draw.uniform(0.1, 2.0) for _ in sizes]
    later = [(draw.randint(1, 300), [draw.uniform(0.1, 2.0) for _ in sizes])] if seed % 2 else []
    blend = Blend(
        [(Rows(size), weight) for size, weight in zip(sizes, weights, strict=True)], seed, later=later
    )
    assert blend.num_rows == sum(sizes)
    for _ in range(10):
        first = draw.randint(0, 200)
        end = first + draw.randint(1, 400)
        seen: dict[tuple[int, int], int] = {}
        for row in blend.samples(first, end - first):
            seen[row] = seen.get(row, 0) + 1
        batch = draw.choice([1, 4, 16, 64])
        steps = range(first, end, batch)
        squares: dict[tuple[int, int], int] = {}
        for step in steps:
            there: dict[tuple[int, int], int] = {}
            for row in blend.samples(step, min(batch, end - step)):
                there[row] = there.get(row, 0) + 1
            for row, times in there.items():
                squares[row] = squares.get(row, 0) + times * times
        counted = visits(blend.drawn(first, end), batch)
        assert max(seen.values()) <= counted.times <= max(seen.values()) + 1
        assert max(squares.values()) <= counted.squares  # a step may have a row twice
        if not first and not later and len(sizes) == 1:
            assert counted.times == max(seen.values()) == math.ceil(end / sizes[0])


@pytest.mark.parametrize(
    ("rows", "batch", "squares"), [(100, 16, 16), (64, 16, 8), (8, 16, 24), (4, 64, 136)]
)
def test_a_row_that_a_step_has_twice_counts_as_often_as_it_moves_the_sum(
    rows: int, batch: int, squares: int
) -> None:
    """Two times in one step are one mechanism of twice the size, not two of the same."""
    found = Visits.of(8, rows=rows, batch=batch, is_aligned=rows % batch == 0)
    assert found == (8, squares)


def test_epsilon_is_that_of_as_many_composed_mechanisms() -> None:
    """The library's general accountant, whose composition is numerical, says the same."""
    dp = pytest.importorskip("dp_accounting")
    for noise, times in ((1.0, 1), (2.0, 3)):
        composed = dp.pld.PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL)
        composed.compose(dp.SelfComposedDpEvent(dp.GaussianDpEvent(noise), times))
        assert epsilon(noise, 1e-5, times) == pytest.approx(composed.get_epsilon(1e-5), rel=1e-4)
    grows = [epsilon(1.0, 1e-5, times) for times in (1, 2, 4, 8)]
    assert grows == sorted(grows) and epsilon(2.0, 1e-5, 4) == pytest.approx(epsilon(1.0, 1e-5, 1))
    assert poisson_epsilon(1.0, 1e-5, rate=0.01, steps=100) < epsilon(1.0, 1e-5, 1)


def test_a_statement_says_its_assumptions_and_claims_nothing_without_noise() -> None:
    pytest.importorskip("dp_accounting")
    sizes = {"rows": 100, "batch": 10, "steps": 40, "visits": Visits(4, 8)}
    said = statement(Privacy(kind="record", noise=4.0), **sizes)
    assert "none assumed" in str(said["sampling"]) and said["visits"] == 4
    assert f"{said['epsilon']:.3g}" in sentence(said) and "Poisson" in sentence(said)
    for spec, why in (
        (Privacy(kind="record", noise=0.0), "no noise is added"),
        (Privacy(kind="record", secret=False), "the noise follows from the seed"),
    ):
        bare = statement(spec, **sizes)
        assert bare["epsilon"] is None and why in sentence(bare) and "delta" not in bare
