"""Inference tasks are planned, priced and refused on their layouts."""

import re
from pathlib import Path

import pytest

from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import InferenceLayout, Parallel
from atelier.engine.config.record import FileEntry, Record, identify
from atelier.engine.model.contract import stored
from atelier.engine.model.load import blank, build
from atelier.engine.parallel.pipeline import keep_stage
from atelier.engine.plan.inference import PROCESS_GB, held_gb, stage_blocks
from atelier.flows.run.compose import compose
from atelier.flows.run.memory_fit import _asked_tokens, smallest_split
from atelier.flows.run.plan import Plan, make_plan
from atelier.flows.run.plan_document import PlanRow
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


def scored(store: Store, *words: str) -> Plan:
    """The plan of a training and of scores of its model."""
    return planned(store, "pretrain", *TRAINED, *words)


def of_model(plan: Plan) -> PlanRow:
    [row] = [row for row in plan.rows if row["name"] == "score.model"]
    return row


def test_a_model_that_fits_no_device_is_split_over_the_fewest_that_hold_it(store: Store) -> None:
    plan = scored(store, "pool=a100_80g")
    assert plan.refusals == [] and plan.seconds["score"] > 0
    assert NEEDED / 2 < of_model(plan)["memory_gb"] < 80 < NEEDED
    [node] = [node for node in plan.nodes if node.task == "score"]
    assert node.ranks == 2 and Parallel.model_validate(node.layout).tensor == 2


def test_where_the_tasks_have_pools_that_of_the_task_counts(store: Store) -> None:
    for pool, ranks in (("a100_40g", 4), ("h200", 2)):
        plan = scored(store, "pool=a100_80g", f"pool.tasks={{score: {pool}}}")
        assert [node.ranks for node in plan.nodes if node.task == "score"] == [ranks]


def test_a_split_is_one_that_every_model_of_the_flow_can_have() -> None:
    odd = LARGE.model_copy(update={"num_heads": 12, "hidden": 768, "num_kv_heads": 12})
    alone, both = smallest_split([LARGE], 4, 25.0), smallest_split([LARGE, odd], 4, 25.0)
    assert alone is not None and both is not None
    assert (alone.tensor, both.tensor) == (8, 4) and both.pipeline == 2
    assert smallest_split([LARGE], 4, 25.0, most=4) is None


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("pipeline", [1, 2, 3])
def test_the_fullest_stage_is_priced(tied: bool, pipeline: int) -> None:
    spec = GPT(num_layers=6, hidden=256, num_heads=8, vocab=30000, tied=tied)
    counts = stage_blocks(spec, pipeline)
    sizes = []
    for place, count in enumerate(counts):
        with blank():
            model = build(spec)
        if pipeline > 1:
            begin = sum(counts[:place])
            blocks = range(begin, begin + count)
            keep_stage(model, blocks, is_first=not place, is_last=place == pipeline - 1)
        sizes.append(sum(weight.numel() for _, weight in stored(model)))
    planned = held_gb(spec, InferenceLayout(pipeline=pipeline), 4) - PROCESS_GB
    assert max(sizes) * 4e-9 <= planned * 1.001 and planned < 1.3 * max(sizes) * 4e-9


def test_a_given_split_that_is_too_small_is_refused_with_one_that_fits(store: Store) -> None:
    [refusal] = scored(store, "pool=a100_40g", "score.tensor=2", "parallel.replicate=2").refusals
    says = r"score: needs ([\d.]+) GB for model on each of 2 ranks, .* has 40.0; (.*) would fit"
    found = re.search(says, refusal)
    assert found is not None and float(found[1]) == pytest.approx(NEEDED / 2 + PROCESS_GB, abs=0.1)
    words = ("parallel.replicate=2", *found[2].split())
    assert scored(store, "pool=a100_40g", *words).refusals == []


def test_half_as_wide_weights_need_half_and_fit(store: Store) -> None:
    plan = scored(store, "pool=a100_80g", "score.precision=bf16")
    assert plan.refusals == []
    assert of_model(plan)["memory_gb"] - PROCESS_GB == pytest.approx(NEEDED / 2)


def test_a_split_does_not_change_fingerprints_and_a_precision_does(
    store: Store,
) -> None:
    def named(*words: str) -> list[str]:
        plan = scored(store, "pool=a100_80g", *words)
        return [row["fingerprint"] for row in plan.rows if row["name"].endswith("model")]

    assert named() == named("score.tensor=4", "score.pipeline=2") != named("score.precision=bf16")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("score.tensor=3", "score.tensor: 3 does not divide model.num_heads 64; tensor=2 would fit"),
        ("score.pipeline=64", "score.pipeline: 64 stages are more than model.num_layers 48; pipeline=48"),
        ("score.expert=2", "score.expert: 2, but model has no experts; shard=2 uses the same ranks"),
        ("score.replicate=2 score.memory_gb=10", "score.memory_gb: is for a model on one rank; leave it out"),
    ],
)
def test_a_split_that_the_model_cannot_have_is_refused_with_one_that_works(
    store: Store, given: str, says: str
) -> None:
    assert any(text.startswith(says) for text in scored(store, *given.split()).refusals)


@pytest.mark.parametrize(
    ("flow", "experiment", "pool"),
    [
        ("titan", "titan_260b", "a100_80g"),
        ("pretrain", "mt_nlg_530b", "selene"),
        ("mtnlg", "mt_nlg_530b", "selene"),
        ("pretrain", "semoe_207b", "a100_80g"),
    ],
)
def test_full_size_is_planned_whole(store: Store, flow: str, experiment: str, pool: str) -> None:
    plan = planned(store, flow, f"experiment={experiment}", f"pool={pool}")
    assert plan.refusals == []
    priced = {row["task"] for row in plan.rows if row["memory_gb"]}
    assert {"score", *(["imitate"] if flow == "titan" else [])} <= priced


def test_imitations_are_priced_by_their_tokens(store: Store) -> None:
    def seconds(*words: str) -> float:
        plan = planned(store, "titan", "experiment=titan_260b", "pool=a100_80g", *words)
        [name] = [node.name for node in plan.nodes if node.task == "imitate"]
        return plan.seconds[name]

    few, many = seconds("imitate.paragraphs=20000"), seconds("imitate.paragraphs=40000")
    assert many == pytest.approx(2 * few, rel=0.05) and few > 60


def test_questions_are_priced_with_their_examples() -> None:
    def tokens(shots: int) -> int:
        sizes = {"payload/set.json": 99, "payload/questions.jsonl": 40_000, "payload/shots.jsonl": 2000}
        files = tuple(FileEntry(path=name, bytes=size, sha256="0" * 64) for name, size in sizes.items())
        made = Record(
            kind="questions", name="a", fingerprint=identify("questions", 1, {}, {}), version=1, identity={},
            parents={}, files=files, summary={"questions": 100, "shots": shots, "examples": 10},
        )  # fmt: skip
        return _asked_tokens(made)

    assert tokens(0) == 10_000 and tokens(5) == 10_000 + 100 * 5 * 200 // 4
