"""Fine-tuning is planned, priced and refused on its layout."""

from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from atelier.flows.run.compose import compose
from atelier.flows.run.draw import collect_nodes
from atelier.flows.run.plan import Plan, make_plan
from atelier.flows.run.planned import search_layouts
from atelier.infra.dag import Node
from atelier.infra.store.store import Store
from tests.stored_models import store_with

SHAPE = GPT(num_layers=4, hidden=64, num_heads=4, vocab=512)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store that has a model of four blocks."""
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    return store_with(tmp_path, SHAPE)


def words(*given: str) -> list[str]:
    return ["experiment=tiny", "init=guest", *given]


def tuned(store: Store, *given: str) -> Node:
    return next(
        node for node in collect_nodes(compose("finetune", words(*given)), store) if "tune" in node.name
    )


def planned(store: Store, *given: str) -> Plan:
    return make_plan(compose("finetune", words(*given)), store)


def rows_of(plan: Plan) -> list[Any]:
    return [row for row in plan.rows if row["task"] == "finetune"]


def test_all_draws_are_trained_on_the_given_layout_under_the_fingerprints_of_one_rank(store: Store) -> None:
    one, four = tuned(store), tuned(store, "parallel.tensor=2", "parallel.shard=2")
    assert (one.ranks, four.ranks) == (1, 4)
    assert Parallel.model_validate(four.layout).axes.tensor == 2
    assert {key: made.fingerprint for key, made in one.products.items()} == {
        key: made.fingerprint for key, made in four.products.items()
    }


def test_it_is_checkpointed_as_often_as_the_configuration_says(store: Store) -> None:
    assert tuned(store).training.train.checkpoint_every == 8  # of experiment=tiny
    other = tuned(store, "train.checkpoint_every=3")
    assert other.training.train.checkpoint_every == 3
    assert other.products.keys() == tuned(store).products.keys()


def test_the_plan_prices_a_draw_on_all_of_its_ranks(store: Store) -> None:
    pool = "pool=a100_80g"
    one = rows_of(planned(store, pool))
    eight = rows_of(planned(store, pool, "parallel.tensor=2", "parallel.shard=4"))
    for alone, row in zip(one, eight, strict=True):
        assert row["params"] == alone["params"] == SHAPE.num_params()
        assert row["flops"] == alone["flops"] > 0  # rows of padding are no work of the model
        assert row["device_hours"] == pytest.approx(8 * row["step_s"] * 4 / 3600, abs=1e-6)


def test_rows_of_padding_are_priced_and_said(store: Store) -> None:
    shard = ("pool=a100_80g", "parallel.shard=32")
    plan = planned(store, *shard)
    note = next(text for text in plan.notes if "finetune.batch" in text)
    assert "16 rows do not fit 32 data-parallel ranks" in note and "fill them to 32" in note
    assert not any("finetune.batch" in text for text in planned(store, "parallel.shard=16", shard[0]).notes)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("parallel.tensor=3", r"parallel\.tensor: 3 does not divide model\.num_heads 4; tensor=2 would fit"),
        ("parallel.tensor=8", r"parallel\.tensor: 8 does not divide model\.num_heads 4; tensor=4 would fit"),
        ("parallel.pipeline=8", r"parallel\.pipeline: 8 stages are more than .* 4; pipeline=4 would fit"),
        ("parallel.expert=2", r"parallel\.expert: 2, but no role's model has experts; shard=2 uses the same"),
    ],
)
def test_a_layout_that_the_model_cannot_have_is_refused_with_one_that_works(
    store: Store, given: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        planned(store, "parallel.shard=1", given)


def test_a_vocabulary_that_the_tensor_axis_does_not_divide_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    odd = store_with(tmp_path, SHAPE.model_copy(update={"vocab": 515}))
    with pytest.raises(ConfigError, match=r"parallel\.tensor: 2 does not divide model\.vocab 515; tensor=1"):
        planned(odd, "parallel.tensor=2")


def test_a_model_that_fits_no_device_is_tuned_on_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    large = store_with(tmp_path, GPT(num_layers=48, hidden=8192, num_heads=64, vocab=32000))
    pool = ("pool=a100_80g", "parallel.threads=1")
    [refusal] = planned(large, *pool).refusals
    assert "on each of 1 rank, but a device (a100-80g) has 80.0; parallel." in refusal
    assert "train.micro_batch" not in refusal  # which fine-tuning does not read
    assert not planned(large, *pool, "parallel.tensor=8", "parallel.shard=4").refusals


def test_titan_tunes_each_role_on_the_layout_that_it_was_trained_in(store: Store) -> None:
    given = ("experiment=tiny", "parallel.shard=1", "parallel.tensor=2", "parallel.pipeline=2")
    own = ("parallel.stages=[1,1]", "parallel.roles.student_a.shard=2")
    frozen = compose("titan", [*given, *own])
    found = {node.name: Parallel.model_validate(node.layout) for node in collect_nodes(frozen, store)}
    assert (found["finetune.teacher"].pipeline, found["finetune.teacher"].tensor) == (2, 2)
    assert found["finetune.student_a"].ranks == 2 and found["finetune.student_a"].axes.shard == 2
    assert not any(found[f"finetune.{name}"].roles for name in ("teacher", "student_a"))


def test_titan_of_260_billion_is_planned_whole(store: Store) -> None:
    plan = make_plan(compose("titan", ["experiment=titan_260b", "pool=a100_80g"]), store)
    assert not plan.refusals
    rows = [row for row in rows_of(plan) if row["name"].startswith("finetune.teacher")]
    assert len(rows) == 5 and all(0 < row["memory_gb"] < 80 for row in rows)
    assert {Parallel.model_validate(row["layout"]).ranks for row in rows} == {1536}


def test_layouts_of_fine_tuning_are_searched(store: Store) -> None:
    frozen = compose("finetune", words("pool=a100_80g"))
    [found] = search_layouts(make_plan(frozen, store), frozen, store)
    assert {row["mesh"] for row in found["layouts"]} >= {"shard=2 tensor=4", "pipeline=2 shard=4"}
