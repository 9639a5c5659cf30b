"""Tasks that ask models are planned, priced and refused on their layouts."""

import re
from pathlib import Path

import pytest

from atelier.engine.config.model.gpt import GPT
from atelier.engine.plan.asked import PROCESS_GB
from atelier.flows.run.compose import compose
from atelier.flows.run.plan import Plan, make_plan
from atelier.infra.store.store import Store

LARGE = GPT(num_layers=48, hidden=8192, num_heads=64, vocab=512)
NEEDED = 4 * LARGE.num_params() / 1e9  # GB of weights in float32
TRAINED = (
    "experiment=tiny", "tokenizer=bpe512", "model=gpt_nano", "model.num_layers=48", "model.hidden=8192",
    "model.num_heads=64", "model.num_kv_heads=64", "parallel.tensor=8", "parallel.pipeline=4",
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    return Store(str(tmp_path))


def planned(store: Store, flow: str, *words: str) -> Plan:
    return make_plan(compose(flow, list(words)), store)


def asked(store: Store, *words: str) -> Plan:
    """The plan of a training and of scores of its model."""
    return planned(store, "pretrain", *TRAINED, *words)


def test_a_model_that_fits_no_device_is_refused_with_a_split_that_does_and_that_one_is_planned(
    store: Store,
) -> None:
    [refusal] = asked(store, "pool=a100_80g").refusals
    found = re.search(
        r"score: needs ([\d.]+) GB for model on each of 1 rank, .* has 80.0; (.*) would fit", refusal
    )
    assert found is not None and float(found[1]) == pytest.approx(NEEDED, abs=1)
    plan = asked(store, "pool=a100_80g", *found[2].split())
    assert plan.refusals == []
    [row] = [row for row in plan.rows if row["name"].endswith("model")]
    assert NEEDED / 8 < row["memory_gb"] < 80
    assert plan.seconds["score"] > 0


def test_half_as_wide_weights_need_half(store: Store) -> None:
    def needed(*words: str) -> float:
        [refusal] = asked(store, "pool=a100_80g", *words).refusals
        return float(refusal.split("needs ")[1].split()[0]) - PROCESS_GB

    assert needed() == pytest.approx(2 * needed("score.precision=bf16"), abs=0.2)


def test_scores_of_any_split_are_those_of_one_rank_by_name_and_of_another_precision_are_not(
    store: Store,
) -> None:
    def named(*words: str) -> list[str]:
        plan = asked(store, "pool=a100_80g", *words)
        return [row["fingerprint"] for row in plan.rows if row["name"].endswith("model")]

    assert named() == named("score.tensor=4", "score.pipeline=2") != named("score.precision=bf16")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("score.tensor=3", "score.tensor: 3 does not divide model.num_heads 64; tensor=2 would fit"),
        ("score.pipeline=64", "score.pipeline: 64 stages are more than model.num_layers 48; pipeline=48"),
        ("score.expert=2", "score.expert: 2, but model has no experts; shard=2 uses the same ranks"),
    ],
)
def test_a_split_that_the_model_cannot_have_is_refused_with_one_that_works(
    store: Store, given: str, says: str
) -> None:
    assert any(text.startswith(says) for text in asked(store, given).refusals)


@pytest.mark.parametrize(
    ("flow", "experiment", "pool"),
    [
        ("titan", "titan_260b", "a100_80g"),
        ("pretrain", "mt_nlg_530b", "selene"),
        ("pretrain", "semoe_207b", "a100_80g"),
    ],
)
def test_full_size_is_planned_whole(store: Store, flow: str, experiment: str, pool: str) -> None:
    plan = planned(store, flow, f"experiment={experiment}", f"pool={pool}")
    assert plan.refusals == []
    priced = {row["task"] for row in plan.rows if row["memory_gb"]}
    assert {"score", *(["imitate"] if flow == "titan" else [])} <= priced
