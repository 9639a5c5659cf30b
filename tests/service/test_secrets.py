"""No credential that `atelier up` finds or makes gets into files of runs or into their gangs."""

import base64
import gzip
import json
import os
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from atelier.infra.launch.supervisor import PASSED
from atelier.infra.stack.settings import Credentials
from tests.flow.served import Served, processes

pytestmark = pytest.mark.service

PLANTED = {
    "AWS_SECRET_ACCESS_KEY": "planted-aws-4f0c1d",
    "HF_TOKEN": "hf_planted9b2e77",
    "DATABASE_URL": "postgresql://atelier:planted-db-77ac@db.example/runs",
    "SSH_AUTH_SOCK": "/tmp/planted-ssh-10c2",
    "ATELIER_SECRET": "planted-own-e3b0",
}
OWN = {  # what the supervisor itself gives a rank
    "OPENBLAS_NUM_THREADS",  # one: its threads would be there when a rank is forked
    "ATELIER_PULSE",  # the folder where a rank leaves its pulse
    "ATELIER_RENDEZVOUS",
    "ATELIER_GUARD_FD",
    "RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "WORLD_SIZE",
    "PYTHONUNBUFFERED",
    "OMP_NUM_THREADS",
    "GOMP_SPINCOUNT",
    "TORCHINDUCTOR_CACHE_DIR",
}
KEPT = ("credentials.json", "mlflow-auth.ini")  # of the stack's folder: they are the credentials
WORDS = ("experiment=tiny", "pool=local", "train.steps=60", "train.checkpoint_every=20")


@pytest.fixture(scope="module", autouse=True)
def planted() -> Iterator[None]:
    """In the environment of every command, before the stack starts."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in PLANTED.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def secrets(served: Served) -> list[bytes]:
    """Every text that nobody may find, the way a header carries the password included."""
    made = Credentials.of(served.root / "stack")
    header = base64.b64encode(made.prefect.encode()).decode()
    return [
        text.encode()
        for text in (*PLANTED.values(), "planted-db-77ac", made.password, made.flask_key, header)
    ]


class Trained:
    """A run on the pool, to its end: what it said, and the environment of all processes of its gangs."""

    def __init__(self, served: Served) -> None:
        self.environments: dict[int, dict[str, str]] = {}
        self.roles: dict[int, str] = {}
        process = served.start("pretrain", *WORDS)
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.3)
            for pid in served.ranks():
                self._look(pid)
        assert process.stdout is not None
        self.said = process.stdout.read()
        process.stdout.close()
        assert process.returncode == 0, self.said

    def _look(self, pid: int) -> None:
        words = processes().get(pid, [])
        modules = [
            word
            for word in words
            if word == "atelier.infra.launch.supervisor" or word.startswith("atelier.engine.")
        ]
        try:
            pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        except OSError:
            return
        if modules and any(pairs):
            self.roles[pid] = modules[0]
            self.environments[pid] = dict(pair.split("=", 1) for pair in pairs if pair)

    def of(self, role: str) -> list[dict[str, str]]:
        return [self.environments[pid] for pid, found in self.roles.items() if found == role]


@pytest.fixture(scope="module")
def trained(served: Served) -> Trained:
    return Trained(served)


def found_in(content: bytes, secrets: list[bytes]) -> list[bytes]:
    return [secret for secret in secrets if secret in content]


def test_ranks_see_an_allow_list_of_the_environment(trained: Trained) -> None:
    assert trained.of("atelier.engine.train") and trained.of("atelier.engine.evaluate")
    for pid, role in trained.roles.items():
        if role.startswith("atelier.engine."):
            strange = trained.environments[pid].keys() - set(PASSED) - OWN
            assert not strange, (role, strange)


def test_ranks_and_their_supervisors_see_no_credential(trained: Trained, secrets: list[bytes]) -> None:
    assert trained.of("atelier.infra.launch.supervisor")
    for pid, role in trained.roles.items():
        content = json.dumps(trained.environments[pid]).encode()
        assert not found_in(content, secrets), role


def test_the_workers_do_have_them(served: Served, trained: Trained) -> None:
    """Else the searches here would find nothing for another reason."""
    content = Path(f"/proc/{served.pid('worker-local')}/environ").read_bytes()
    assert all(value.encode() in content for value in PLANTED.values())
    assert served.password.encode() in content


def test_no_file_of_the_store_and_no_log_has_a_credential(
    served: Served, trained: Trained, secrets: list[bytes]
) -> None:
    files = [path for path in served.root.rglob("*") if stat.S_ISREG(path.lstat().st_mode)]
    names = {path.name for path in files}
    assert {"record.json", "run.json", "guard.json", "rank0.out", "mlflow.db", "prefect.db"} <= names
    assert {"prefect.log", "mlflow.log", "worker-light.log", "worker-local.log", "state.json"} <= names
    assert any(path.parent.name == "runs" for path in files)
    found = {}
    for path in files:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content += gzip.decompress(content)
        if hits := found_in(content, secrets):
            found[path] = hits
    assert {path.name for path in found if path.parent == served.root / "stack"} == set(KEPT)
    assert {path: hits for path, hits in found.items() if path.name not in KEPT} == {}


def test_what_mlflow_keeps_has_no_credential(served: Served, trained: Trained, secrets: list[bytes]) -> None:
    with sqlite3.connect(served.root / "mlflow.db") as database:
        tables = [row[0] for row in database.execute("select name from sqlite_master where type = 'table'")]
        content = {table: repr(database.execute(f"select * from [{table}]").fetchall()) for table in tables}
    database.close()
    assert "train" in content["runs"] and "pretrain" in content["tags"] and len(content["params"]) > 100
    assert {table: hits for table in content if (hits := found_in(content[table].encode(), secrets))} == {}


def test_what_prefect_tells_has_no_credential(served: Served, trained: Trained, secrets: list[bytes]) -> None:
    answers: dict[str, Any] = {
        f"/{name}/filter": served.api("POST", f"/{name}/filter", {})
        for name in (
            "flow_runs",
            "task_runs",
            "deployments",
            "artifacts",
            "logs",
            "work_pools",
            "events",
            "automations",
            "variables",
            "block_documents",
        )
    }
    answers["/admin/settings"] = served.api("GET", "/admin/settings")
    for pool in ("light", "local"):
        answers[f"{pool} workers"] = served.api("POST", f"/work_pools/{pool}/workers/filter", {})
    assert len(answers["/flow_runs/filter"]) > 3 and answers["/logs/filter"] and answers["/artifacts/filter"]
    found = {name: found_in(json.dumps(answer).encode(), secrets) for name, answer in answers.items()}
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_only_two_flags_of_status_show_the_credentials(
    served: Served, trained: Trained, secrets: list[bytes]
) -> None:
    commands = (
        ("status",), ("status", "--json"), ("runs",), ("runs", "--json"), ("models",), ("list",),
        ("plan", "pretrain", *WORDS), ("worker", "nosuch"), ("lineage", "model"),
    )  # fmt: skip
    texts = {" ".join(words): (done := served.atelier(*words)).stdout + done.stderr for words in commands}
    texts |= {"up": served.up().stdout, "pretrain": trained.said}
    assert {name: hits for name, text in texts.items() if (hits := found_in(text.encode(), secrets))} == {}
    made = Credentials.of(served.root / "stack")
    assert served.atelier("status", "--password").stdout == f"{made.prefect}\n"
    lines = served.atelier("status", "--env").stdout.splitlines()
    assert all(line.startswith("export ") for line in lines)
    values = dict(line.removeprefix("export ").split("=", 1) for line in lines)
    assert values["PREFECT_API_AUTH_STRING"] == made.prefect
    assert values["MLFLOW_TRACKING_PASSWORD"] == made.password
    assert not set(values) & set(PLANTED)


def test_no_command_line_of_a_process_has_a_credential(
    served: Served, trained: Trained, secrets: list[bytes]
) -> None:
    """Every user of the machine may read those."""
    lines = [" ".join(words) for pid, words in processes().items() if pid != os.getpid()]
    assert [line for line in lines if found_in(line.encode(), secrets)] == []
