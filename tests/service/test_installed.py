"""Atelier installed, as a wheel and editable, and used in a project whose folders and modules bear the same
names as its own: the command line, the pages, workers.
"""

import json
import subprocess
from pathlib import Path

import pytest

from tests.checkout import TOP
from tests.environments import installed_at
from tests.flow.served import Served

pytestmark = [pytest.mark.service, pytest.mark.slow]

WORDS = ("experiment=tiny", "tracker=none")
FOREIGN = "raise RuntimeError(f'{__name__} of another project was imported')\n"


@pytest.fixture(scope="module", params=["wheel", "editable"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """A store, and a project with tasks/, conf/, flows/, infra/, tests/ and engine.py of its own."""
    base = tmp_path_factory.mktemp(request.param)
    project = base / "project"
    for name in ("tasks", "conf", "flows", "infra", "tests"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text(FOREIGN)
    (project / "conf" / "pretrain.yaml").write_text("kind: of another project\n")
    (project / "engine.py").write_text(FOREIGN)
    stack = Served(base / "store", project, python=str(installed_at(base / "env", request.param)))
    return stack


def test_it_is_imported_from_where_it_was_installed(installed: Served) -> None:
    script = "import atelier, json; print(json.dumps([str(atelier.PROJECT), str(atelier.IMPORT_ROOT)]))"
    done = subprocess.run(
        [installed.python, "-c", script], cwd=installed.project, env=installed.environment, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    project, import_root = map(Path, json.loads(done.stdout))
    is_wheel = installed.root.parent.name.startswith("wheel")
    assert project == (import_root / "atelier" if is_wheel else TOP)
    assert (import_root == TOP / "src") != is_wheel
    for name in ("engine", "flows", "tasks", "infra", "conf"):
        assert not is_wheel or not (import_root / name).exists(), f"{name} lies beside others"


def test_the_command_line_plans_trains_and_generates(installed: Served) -> None:
    planned = installed.atelier("plan", "pretrain", *WORDS, "--json")
    assert planned.returncode == 0, planned.stderr
    done = installed.atelier("pretrain", *WORDS)
    assert done.returncode == 0, done.stdout + done.stderr
    again = installed.atelier("pretrain", *WORDS)
    assert "nothing to do" in again.stdout, again.stdout + again.stderr
    said = installed.atelier("generate", "model", "--prompt", "def ", "--max-tokens", "4")
    assert said.returncode == 0, said.stdout + said.stderr
    sweep = installed.atelier("pretrain", *WORDS, "-m", "train.seed=1,2", "--dry-run")
    assert sweep.returncode == 0, sweep.stdout + sweep.stderr


def test_a_program_plans_trains_and_generates(installed: Served) -> None:
    words = "experiment='tiny', tracker='none', train={'steps': 8}"
    script = (
        "import json; from atelier.api import generate, plan, run;"
        f"planned = plan('pretrain', {words}); result = run('pretrain', {words});"
        "text = generate(result.models['model'].fingerprint, 'def ', max_tokens=4);"
        "print(json.dumps([len(planned.tasks), len(result.artifacts), result.status, text]))"
    )
    done = subprocess.run(
        [installed.python, "-c", script], cwd=installed.project, env=installed.environment,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tasks, artifacts, status, _ = json.loads(done.stdout)
    assert tasks == artifacts and status == "finished"


def test_a_run_from_the_page_runs_on_its_workers(installed: Served) -> None:
    installed.up()
    try:
        run_id = installed.submit("pretrain", overrides=[*WORDS, "train.seed=3"])
        state = installed.wait_final(run_id)
        assert state["type"] == "COMPLETED", state["message"]
        submitted = installed.atelier("pretrain", *WORDS, "train.seed=4", "pool=local")
        assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    finally:
        installed.down()
    commits = {
        json.loads(path.read_bytes())["provenance"]["commit"]
        for path in installed.root.glob("model/*/record.json")
    }
    head = subprocess.run(["git", "-C", str(TOP), "rev-parse", "HEAD"], capture_output=True, text=True)
    assert len(commits) == 1 and commits == {head.stdout.strip()}
