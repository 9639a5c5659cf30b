"""The layout of a run that sets none."""

import json
from pathlib import Path
from typing import Any

import pytest

from atelier.flows.cli.main import run
from atelier.flows.run import compose as composing
from atelier.flows.run.compose import compose

BIG = ["pool=h100", "pool.gpus=16", "model.num_layers=24", "model.hidden=2048", "model.num_heads=16"]
BATCH = ["train.global_batch=256", "train.sequence=2048"]


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    monkeypatch.setattr(composing, "num_cores", lambda: 4)


def layout(*words: str) -> Any:
    return compose("pretrain", list(words)).call()["parallel"]


def test_it_is_the_first_of_the_search(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*BIG, *BATCH]
    assert run(["plan", "pretrain", *words, "--search", "--json"]) == 0
    [task] = json.loads(capsys.readouterr().out)["search"]
    chosen, first = layout(*words), task["layouts"][0]
    assert chosen.ranks == 16
    for word in first["words"].split():
        place, _, value = word.removeprefix("+").partition("=")
        section, _, name = place.partition(".")
        if section == "parallel":
            assert str(getattr(chosen, name)) == value, word


def test_on_cpus_slow_links_leave_one_rank_with_all_cores() -> None:
    slow = layout("pool.node_gbps=0.01", "pool.latency_us=20000")
    assert (slow.ranks, slow.threads) == (1, 4)


def test_what_was_given_stays() -> None:
    assert layout("parallel.shard=2", "pool.node_gbps=0.01").shard == 2
    given = layout(*BIG, *BATCH, "parallel.tensor=2")
    assert (given.tensor, given.shard) == (2, 8)
