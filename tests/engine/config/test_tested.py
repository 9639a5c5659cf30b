"""A hook into a private name of a library is off, or refused by name, on a version that was not tested."""

import asyncio
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from packaging.requirements import Requirement
from packaging.version import Version

from atelier.engine.config import tested
from atelier.engine.config.error import ConfigError
from atelier.engine.config.tested import HOOKS, RANGES, is_on, is_tested, notes, require
from tests.checkout import TOP

FOLDERS = ("engine", "flows", "infra", "tasks")


@pytest.fixture
def strange(monkeypatch: pytest.MonkeyPatch) -> None:
    """All libraries in versions of the far future."""
    monkeypatch.setattr(tested, "installed", lambda library: "99.1.0+cpu")
    tested._say.cache_clear()


def test_what_constraints_pin_is_tested_and_the_package_allows_nothing_else() -> None:
    pinned = dict(re.findall(r"(?m)^([\w-]+)==(\S+)$", (TOP / "constraints.txt").read_text()))
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["train"]]
    wanted = {one.name: one.specifier for one in map(Requirement, lines)}
    assert "==" not in "".join(lines), "exact versions stand in constraints.txt alone"
    for library, (first, beyond) in RANGES.items():
        assert Version(first) <= Version(pinned[library]) < Version(beyond)
        assert is_tested(library)
        assert first in wanted[library] or Version(first) in wanted[library]
        assert not wanted[library].contains(beyond), f"{library}: pyproject.toml allows what was not tested"


def test_pre_releases_and_the_next_version_are_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, is_in in (
        ("2.13.0+cpu", True),
        ("2.11.0", True),
        ("2.14.0rc1", False),
        ("2.10.9", False),
        ("", False),
    ):
        monkeypatch.setattr(tested, "installed", lambda library, version=version: version)
        assert is_tested("torch") is is_in, version


@pytest.mark.usefixtures("strange")
def test_a_hook_with_another_way_is_off_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert not is_on("recompilations") and not is_on("recompilations")
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "torch 99.1.0+cpu was not tested" in said and "uncompiled" in said
    assert len(notes()) == len(HOOKS)


@pytest.mark.usefixtures("strange")
@pytest.mark.parametrize("name", [name for name, hook in HOOKS.items() if not hook.without])
def test_a_hook_without_another_way_is_refused_by_name(name: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^{HOOKS[name].library}: 99.1.0\+cpu was not tested .*pip install"
    ):
        require(name)


def test_every_hook_is_asked_for_where_it_is_used() -> None:
    texts = [path.read_text() for folder in FOLDERS for path in (TOP / folder).rglob("*.py")]
    text = "\n".join(texts)
    asked = {*re.findall(r"\b(?:is_on|require)\(\"([\w ]+)\"\)", text)}
    assert asked == HOOKS.keys()


@pytest.mark.usefixtures("strange")
def test_torchs_own_ways_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    from atelier.engine.io import machine
    from atelier.engine.model.placement import has_half
    from atelier.engine.objective.token_terms import allow_any_length
    from atelier.engine.parallel.compute import compile_blocks

    monkeypatch.setattr(machine, "has_half", lambda: "asked")
    assert has_half(torch.device("cpu")) == "asked"
    touched: list[str] = []
    config = SimpleNamespace(recompile_limit=8)
    dynamo = SimpleNamespace(config=config, maybe_mark_dynamic=lambda *_: touched.append("marked"))
    monkeypatch.setattr(torch, "_dynamo", dynamo, raising=False)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    compile_blocks([torch.nn.Linear(1, 1)])
    allow_any_length(torch.zeros(2))
    assert config.recompile_limit == 8 and not touched


@pytest.mark.slow
@pytest.mark.usefixtures("strange")
def test_prefects_and_mlflows_own_ways_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow.server
    from prefect.workers.base import BaseWorker

    from atelier.infra.stack import mlflow_server, pool_worker, prefect_results, prefect_services

    before = BaseWorker._submit_scheduled_flow_runs
    pool_worker.be_patient()
    assert BaseWorker._submit_scheduled_flow_runs is before
    with pytest.raises(ConfigError, match="pickled results"):
        prefect_results.refuse_results()
    found = mlflow.server._find_app
    monkeypatch.setattr("mlflow.cli.server", lambda *_, **__: None)
    mlflow_server.main([])
    assert mlflow.server._find_app is found
    started: list[tuple[str, ...]] = []

    class Child:
        async def wait(self) -> int:
            return 3

    async def start(*command: str) -> Child:
        started.append(command)
        return Child()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    with pytest.raises(SystemExit) as left:
        asyncio.run(prefect_services.serve())
    assert left.value.code == 3 and started[0][1:] == ("-m", "prefect", "server", "services", "start")


@pytest.mark.slow
def test_a_run_of_an_untested_prefect_ends_in_one_line(tmp_path: Path) -> None:
    program = (
        "import sys; from atelier.engine.config import tested; find = tested.installed;"
        "tested.installed = lambda name: '3.99.0' if name == 'prefect' else find(name);"
        "from atelier.flows.cli.main import run; sys.exit(run(['corpus', 'experiment=tiny', 'tracker=none']))"
    )
    environment = os.environ | {"PYTHONPATH": f"{TOP / 'src'}", "ATELIER_ROOT": f"{tmp_path}/store"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "prefect: 3.99.0 was not tested" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
