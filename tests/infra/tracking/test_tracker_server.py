"""An MLflow server that dies during a training and comes back gets the whole curve once."""

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from atelier.infra.tracking.about import Followed
from atelier.infra.tracking.curve import curves_of
from atelier.infra.tracking.mlflow_tracker import MlflowTracker
from tests.infra.records import family
from tests.infra.runs import client, runs, steps, uri
from tests.ports import free_port

pytestmark = [pytest.mark.service, pytest.mark.slow]


def start_server(root: Path, port: int) -> subprocess.Popen[bytes]:
    """An MLflow server on the root's database that answers."""
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    command += ["--backend-store-uri", uri(root), "--artifacts-destination", str(root / "served")]
    with open(root / "server.log", "ab") as log:
        server = subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, cwd=root, env=dict(os.environ)
        )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return server
        except OSError:
            time.sleep(0.3)
    stop(server)
    raise TimeoutError((root / "server.log").read_text()[-2000:])


def stop(server: subprocess.Popen[bytes]) -> None:
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def test_a_server_that_was_away_gets_everything_once(root: Path) -> None:
    made = family(root)
    segment = made.segments["teacher"]
    metrics = Path(segment.url) / "metrics"
    [whole] = list(metrics.iterdir())
    lines = whole.read_text().splitlines()
    whole.write_text("\n".join(lines[:100]))
    port = free_port()
    server = start_server(root, port)
    try:
        address = f"http://127.0.0.1:{port}"
        tracked = MlflowTracker(
            address, made.shelf.store, flow="demo", command="atelier", run_id="run-1", config={}
        )
        assert tracked.urls()["flow"].startswith(f"{address}/#/experiments/")
        following = tracked.follow(curves_of([Followed(segments=(segment,), role="teacher")]))
        deadline = time.monotonic() + 60
        while not runs(root, "metrics.loss > 0") and time.monotonic() < deadline:
            time.sleep(0.3)
        stop(server)
        (metrics / whole.name.replace("000001.jsonl", "000002.jsonl")).write_text("\n".join(lines[100:]))
        tracked.record(made["student_a"])
        following.stop()
        time.sleep(3.0)
        assert tracked.trouble
        server = start_server(root, port)
        where = tracked.register(made["teacher"], aliases=["best"])
        assert where == f"{address}/#/models/teacher/versions/1?workflowType=machine_learning"
        assert tracked.close() == []
        about = client(root).get_model_version("teacher", "1").description or ""
        assert "](/#/experiments/" in about and address not in about  # they lead on through a tunnel, too
        load = "mlflow.pyfunc.load_model('models:/teacher@best')"
        script = f"import mlflow; mlflow.set_tracking_uri({address!r}); {load}"
        shutil.rmtree(root / "model")
        loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=root)
        assert loaded.returncode == 0, loaded.stderr
    finally:
        stop(server)
    [run] = runs(root, "tags.`atelier.role` = 'teacher' AND tags.`atelier.kind` = 'trajectory'")
    kept = steps(root, run, "loss")
    assert len(kept) == len(set(kept)) == 300 and run.info.status == "FINISHED"
    assert str(client(root).get_model_version_by_alias("teacher", "best").version) == "1"
