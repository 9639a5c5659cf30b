"""The experiment mt_nlg_530b is the paper's setting (2201.11990), and its plan is accepted."""

from pathlib import Path

import pytest

from atelier.engine.config.exact_shares import whole_weights
from atelier.engine.config.parallel import Parallel
from atelier.flows.run.compose import compose
from atelier.flows.run.draw import collect_nodes
from atelier.flows.run.plan import make_plan
from atelier.infra.dag import Node
from atelier.infra.store.store import Store

WORDS = ["experiment=mt_nlg_530b", "pool=selene", "tracker=none"]
TABLE_1 = {
    "books3": 14336, "realnews": 8962, "main": 19336, "stackexchange": 5689, "stories": 859, "pubmed": 2897,
    "wikipedia": 4771, "gutenberg": 873, "bookcorpus2": 1007, "nih": 208, "cc_2020_50": 13017,
    "pile_cc": 9446, "cc_2021_04": 15652, "arxiv": 1359, "code": 1588,
}  # fmt: skip


def training(store: Store, *more: str) -> Node:
    nodes = collect_nodes(compose("pretrain", [*WORDS, *more]), store)
    return next(node for node in nodes if node.task == "train")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def test_its_plan_has_the_paper_s_sizes_on_2240_gpus(store: Store) -> None:
    plan = make_plan(compose("pretrain", WORDS), store)
    [row] = [row for row in plan.rows if row["task"] == "train"]
    assert row["params"] == 529_600_819_200 and 50 < row["memory_gb"] < 60
    assert Parallel.model_validate(row["layout"]).ranks == 2240
    [note] = [note for note in plan.notes if "rampup" in note]
    assert "8 of 60 batches do not fit 8 data-parallel ranks of whole micro-batches, at least 35 each" in note


def test_its_weights_are_exact_in_a_period_of_100_000_samples(store: Store) -> None:
    weights = training(store).training.weights
    assert dict(zip(weights, whole_weights(list(weights.values())), strict=True)) == TABLE_1


def test_the_data_parallel_degree_is_no_part_of_the_model_s_identity(store: Store) -> None:
    ten = training(store, "parallel.replicate=10", "pool.gpus=2800")
    [model], [other] = ten.products.values(), training(store).products.values()
    assert model.fingerprint == other.fingerprint
    [blocks] = training(store, "data.assignment=blocks").products.values()
    assert blocks.fingerprint != model.fingerprint
