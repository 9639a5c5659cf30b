"""Without torch a machine plans, prepares and submits; what computes with it is refused before it begins."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.pool import Pool
from atelier.engine.config.site import Site
from atelier.flows.cli.main import run
from atelier.flows.run import pools
from atelier.flows.run.compose import compose
from atelier.flows.run.doctor import check_torch as torch_of_machine
from atelier.flows.run.engine_command import follow
from atelier.flows.run.plan import make_plan
from atelier.flows.run.pools import check_nodes_here, check_worker, pool_of
from atelier.infra.code import provenance
from atelier.infra.code.code_map import ROOTS, needs_torch
from atelier.infra.code.provenance import INSTALL, check_torch, has_torch
from atelier.infra.store.store import Store
from tests.checkout import python_path

TINY = ("experiment=tiny", "tracker=none")
BLOCKED = """
import importlib, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("blocked", name="torch")
sys.meta_path.insert(0, Finder())
from atelier.infra.code.provenance import has_torch
assert not has_torch()
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
        print(name)
    except ImportError as error:
        assert error.name == "torch", error
"""


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    for module in (provenance, pools):
        monkeypatch.setattr(module, "has_torch", lambda: False)
    monkeypatch.setattr("atelier.flows.run.doctor.has_torch", lambda: False)
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path / "store"))
    return Store(str(tmp_path / "store"))


def test_it_is_found_without_being_imported() -> None:
    lines = "import sys; from atelier.infra.code.provenance import has_torch; print(has_torch())"
    environment = {"PYTHONPATH": python_path(), "PATH": ""}
    program = [sys.executable, "-c", f"{lines}; print('torch' in sys.modules)"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [str(has_torch()), "False"], done.stderr


def test_exactly_the_tasks_whose_ranks_import_torch_need_it() -> None:
    modules = {
        task: [f"atelier.{root.removesuffix('.py').replace('/', '.')}" for root in roots]
        for task, roots in ROOTS.items()
    }
    every = sorted({name for names in modules.values() for name in names})
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *every], env={"PYTHONPATH": python_path(), "PATH": ""},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded = {*done.stdout.split()}
    assert {task for task in ROOTS if needs_torch(task)} == {
        task for task, names in modules.items() if not loaded.issuperset(names)
    }
    assert needs_torch("train") and not needs_torch("encode")


@pytest.mark.parametrize("words", [("pretrain",), ("pretrain", "-m", "train.seed=1,2")], ids=["run", "sweep"])
def test_a_training_is_refused_in_one_line_before_anything_is_made(
    no_torch: Store, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert run([*words, *TINY]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("torch: is not installed here, and train computes with it")
    assert INSTALL in said[-1] and "pool=<name>" in said[-1] and "Traceback" not in "".join(said)
    assert not [*Path(no_torch.root).glob("*/*/record.json"), *Path(no_torch.root).glob("runs/*")]


def test_preparing_data_and_pools_elsewhere_are_not_refused(
    no_torch: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = compose("corpus", [*TINY])
    check_nodes_here(make_plan(corpus, no_torch).nodes, corpus.pool_of, no_torch)
    frozen = compose("pretrain", [*TINY])
    nodes = make_plan(frozen, no_torch).nodes
    with pytest.raises(ConfigError, match="train"):
        check_nodes_here(nodes, frozen.pool_of, no_torch)
    finished = SimpleNamespace(find=lambda *_: object())
    check_nodes_here(nodes, frozen.pool_of, cast(Store, finished))
    slurm = compose("pretrain", [*TINY, "pool=slurm"])
    with pytest.raises(ConfigError, match="train"):  # its nodes share this interpreter
        check_nodes_here(nodes, slurm.pool_of, no_torch)
    site = Site.model_validate({"slurm": {"python": "/opt/torch/bin/python"}})
    monkeypatch.setattr(pools, "site_of", lambda pool: site)
    check_nodes_here(nodes, slurm.pool_of, no_torch)


def test_a_worker_is_refused_unless_its_site_only_prepares(
    no_torch: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["worker", "local"]) == 2
    assert "a worker of local computes with it" in capsys.readouterr().err
    check_worker(Pool(name="k", launcher="kubernetes"))
    monkeypatch.setattr(pools, "site_of", lambda pool: Site(tasks=("curate", "encode")))
    check_worker(pool_of("local"))
    monkeypatch.setattr(pools, "site_of", lambda pool: Site(tasks=("curate", "score")))
    with pytest.raises(ConfigError, match="tasks"):
        check_worker(pool_of("local"))


def test_commands_of_the_engine_name_the_extra(no_torch: Store, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"generate computes .*atelier-lm\[train\]"):
        next(follow("generate", tmp_path / "run.json", {}))
    with pytest.raises(ConfigError, match="calibrate"):
        check_torch("calibrate")
    (row,) = torch_of_machine()
    assert (row["check"], row["state"]) == ("torch", "note") and INSTALL in row["to_do"]
