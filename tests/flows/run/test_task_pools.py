"""Tasks on pools of their own: planned, priced, queued and run there, or refused."""

from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.pool import Pool
from atelier.engine.config.site import Site
from atelier.flows.cli.main import run
from atelier.flows.deployments.flow_run import frozen_of
from atelier.flows.deployments.submit_task import TaskSubmitter
from atelier.flows.run import task_pools
from atelier.flows.run.compose import RunConfig, compose
from atelier.flows.run.contexts import open_context
from atelier.flows.run.plan import make_plan
from atelier.flows.run.wall_clock import wall_clock
from atelier.infra.dag import Node
from atelier.infra.launch.found_gpus import FoundGpus, report_gpus
from atelier.infra.store.store import Store

TINY = ("experiment=tiny", "parallel.shard=auto", "tracker=none")
MIXED = "pool.tasks={train: gpu, score: local, curate: cpu}"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store in which a worker of the pool gpu has reported eight GPUs; this machine has none."""
    told = FoundGpus(host="big", name="NVIDIA H100 80GB HBM3", total=8, free=8, memory_gb=85.5)
    report_gpus(str(tmp_path), "gpu", told, [])
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    return tmp_path


def composed(*words: str) -> RunConfig:
    return compose("pretrain", [*TINY, *words])


def test_each_task_is_planned_and_priced_on_its_pool(root: Path) -> None:
    plan = make_plan(composed(MIXED), Store(str(root)))
    pools = {row["task"]: row["pool"] for row in plan.rows}
    assert pools["train"] == "gpu" and {*pools.values()} == {"gpu", "local"}
    by_name = {row["pool"]: row for row in plan.document()["pools"]}
    assert by_name["gpu"]["device"] == "h100" and by_name["local"]["device"] == "cpu"
    assert by_name["gpu"]["device_hours"] == plan.document()["totals"]["device_hours"] > 0
    assert by_name["local"]["device_hours"] == 0 and by_name["local"]["tasks"] == 6
    assert sum(row["run"] for row in by_name.values()) == len(plan.rows)
    [train] = [row for row in plan.rows if row["task"] == "train"]
    alone = make_plan(composed("pool=gpu"), Store(str(root)))
    [there] = [row for row in alone.rows if row["task"] == "train"]
    assert {**there, "reasons": train["reasons"]} == train  # the layout and the price of the pool gpu
    layout: Any = train["layout"]
    assert layout["shard"] == 8


def test_pools_are_no_part_of_any_fingerprint(root: Path) -> None:
    store = Store(str(root))
    there, here = (make_plan(composed(*words), store) for words in ([MIXED, "pool=local"], []))
    assert [row["fingerprint"] for row in there.rows] == [row["fingerprint"] for row in here.rows]


def test_the_plan_shows_the_pool_of_each_task_and_a_row_for_each_pool(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["plan", "pretrain", *TINY, MIXED]) == 0
    shown = capsys.readouterr().out
    rows = {words[0]: words for line in shown.splitlines() if (words := line.split())}
    assert rows["train"][1] == "gpu" and rows["score.model"][1] == "local" and rows["task"][1] == "pool"
    assert rows["gpu"][:5] == ["gpu", "h100", "1", "0", "1"] and rows["local"][:3] == ["local", "cpu", "6"]
    assert "note: local runs the tasks of the pool cpu: Prefect serves this run" in shown
    assert run(["plan", "pretrain", *TINY]) == 0
    assert "pool" not in capsys.readouterr().out


def test_the_form_takes_the_same_words_and_its_tasks_go_to_the_same_pools() -> None:
    form = frozen_of("pretrain", {"experiment": "tiny", "overrides": [*TINY[1:], MIXED]})
    line = composed(MIXED)
    assert (form.pool, form.task_pools, form.document) == (line.pool, line.task_pools, line.document)


def test_each_node_is_queued_on_its_pool() -> None:
    frozen = composed(MIXED, "pool.queue=urgent")
    page: Any = None
    submitter = TaskSubmitter(frozen, "", "", page)
    nodes = {task: Node(name=task, task=task, products={}) for task in ("train", "score", "curate", "encode")}
    assert {task: submitter.pools(node) for task, node in nodes.items()} == {
        "train": ("gpu",), "score": ("local",), "curate": ("local",), "encode": ("local",),
    }  # fmt: skip
    assert {pool.queue for pool in frozen.pools} == {"urgent"}


def test_in_one_process_each_task_gets_the_slots_of_its_pool(root: Path) -> None:
    frozen = composed("pool.tasks={score: beside, encode: beside, train: here}")
    context = open_context(frozen, Store(str(root)), "", "run", lambda node, message: None)
    assert context.of_task("train") is context.of_task("curate") is context
    beside = context.of_task("score")
    assert beside is context.of_task("encode") and beside.pool.beside and not context.pool.beside
    assert beside.slots.num_there == 1 and beside.stop is context.stop and beside.links is context.links


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("{trian: gpu}", r"^pool\.tasks\.trian: there is no task 'trian'; did you mean train\?"),
        ("{train: gpuu}", r"^pool\.tasks\.train: there is no pool 'gpuu'; did you mean gpu\?"),
        (
            "{train: gpu, score: slurm}",
            r"^pool\.tasks\.score: slurm is not served, but Prefect serves others",
        ),
        ("{train: 3}", r"^pool\.tasks\.train: "),
        ("gpu", r"^pool\.tasks: "),
    ],
)
def test_bad_pools_of_tasks_are_one_line(words: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line) as refused:
        composed(f"pool.tasks={words}")
    assert "\n" not in str(refused.value)


def test_a_pool_of_a_task_that_the_flow_lacks_is_refused(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"^pool\.tasks\.finetune: does nothing: the flow has no such task"):
        make_plan(composed("pool.tasks={finetune: gpu}"), Store(str(root)))


def test_a_pool_on_paper_is_planned_but_not_run(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pretrain", *TINY, "pool.tasks={train: h200}"]
    assert run(["plan", *words]) == 0
    assert "h200" in capsys.readouterr().out
    assert run(words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("pool.tasks.train: h200 is only for plans (paper: true)")


def test_pools_with_different_stores_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stores = {"gpu": Site(store="s3://far/atelier")}
    monkeypatch.setattr(task_pools, "site_of", lambda pool: stores.get(pool.name, Site()))
    with pytest.raises(
        ConfigError, match=r"^pool\.tasks\.train: gpu has the store s3://far/atelier .*one store"
    ):
        composed("pool.tasks={train: gpu}")


def test_a_task_that_the_pools_site_refuses_is_refused_by_the_plan(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = {"gpu": Site(tasks=("train",))}
    monkeypatch.setattr(task_pools, "site_of", lambda pool: sites.get(pool.name, Site()))
    make_plan(composed("pool.tasks={train: gpu}"), Store(str(root)))
    place = r"^pool\.tasks\.score: its site here does not run score \(tasks of conf/site/here\.yaml: train\)"
    with pytest.raises(ConfigError, match=place):
        make_plan(composed("pool.tasks={train: gpu, score: gpu}"), Store(str(root)))
    with pytest.raises(
        ConfigError, match=r"^pool: its site here does not run curate.*pool\.tasks=\{curate: "
    ):
        make_plan(composed("pool=gpu"), Store(str(root)))


def test_a_run_over_sites_has_no_pools_of_tasks() -> None:
    with pytest.raises(ConfigError, match=r"^pool\.tasks: a run over several sites has one pool at each"):
        compose("nebula", ["experiment=tiny", "pool.tasks={train: gpu}"])


def test_tasks_of_two_pools_take_no_slots_from_each_other() -> None:
    nodes = [Node(name=name, task=name, products={}, ranks=2) for name in ("train", "score")]
    seconds = {"train": 5.0, "score": 3.0}
    assert wall_clock(nodes, seconds, Pool(slots=2)) == 8.0
    assert wall_clock(nodes, seconds, Pool(slots=2), {"train": Pool(name="gpu", gpu="h100", gpus=2)}) == 5.0
