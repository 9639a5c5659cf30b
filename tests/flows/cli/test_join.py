"""`atelier status --join`: the lines that make another machine serve the pool gpu."""

import os
import subprocess
from pathlib import Path

import pytest

from atelier.flows.cli.commands.status import join_block
from atelier.flows.cli.main import run
from atelier.infra.stack.settings import Addresses, Credentials

ADDRESSES = Addresses(prefect="http://127.0.0.1:4200", mlflow="http://127.0.0.1:5000")
SSH = """#!/bin/sh
echo "$@" >> {log}
case $1 in -f) exit 0;; esac
shift
exec sh -c "$*"
"""
SHOWN = ("ATELIER_ROOT", "PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_URI",
         "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")  # fmt: skip


def test_the_lines_run_in_a_shell_and_give_a_worker_all_that_it_needs(tmp_path: Path) -> None:
    """With an `ssh` that runs its command here, and an `atelier` that prints its environment."""
    root = tmp_path / "a store"
    (root / "stack").mkdir(parents=True)
    made = Credentials.of(root / "stack")
    for name, text in (
        ("ssh", SSH.format(log=tmp_path / "log")),
        ("atelier", "#!/bin/sh\necho $*\n" + "".join(f'echo "${name}"\n' for name in SHOWN)),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    block = join_block(str(root), ADDRESSES, made.user, "me@server")
    assert made.password not in block
    env = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": os.environ["PYTHONPATH"]}
    done = subprocess.run(
        ["sh", "-c", block], env=env | {"HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        "worker gpu", str(root), f"{ADDRESSES.prefect}/api", made.prefect, ADDRESSES.mlflow, made.user,
        made.password,
    ], done.stderr  # fmt: skip
    tunnel = (tmp_path / "log").read_text().splitlines()[0]
    assert tunnel.endswith("-L 4200:127.0.0.1:4200 -L 5000:127.0.0.1:5000 me@server")


def test_without_a_running_stack_it_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    assert run(["status", "--join"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line == f"--join: the stack of {tmp_path} is not running; atelier up starts it"
