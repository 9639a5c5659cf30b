"""Whose server gets which credential."""

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from infra.stack.stack import Stack, join_stack
from infra.store import Store
from infra.tracking.flow import FlowTracker

PASSWORD = "planted-password"


class Stranger(HTTPServer):
    """A server that writes down what it is told of passwords."""

    def __init__(self) -> None:
        self.heard: list[str | None] = []
        stranger = self

        class Ear(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stranger.heard.append(self.headers.get("Authorization"))
                self.send_error(404)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                """Quiet."""

        super().__init__(("127.0.0.1", 0), Ear)


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    server = Stranger()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_tracker_of_another_server_does_not_get_the_stack_s_password(
    stranger: Stranger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "atelier")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    uri = f"http://127.0.0.1:{stranger.server_port}"
    about = {"flow": "f", "command": "c", "run_id": "r", "config": {}}
    tracker = FlowTracker(uri, Store(str(tmp_path)), **about)
    tracker.tracker.close("FAILED", timeout_s=3)
    assert stranger.heard, "the tracker has asked it nothing"
    assert set(stranger.heard) == {None}


def test_joining_the_stack_leaves_a_tracking_server_of_the_user_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = {"PREFECT_API_URL": "http://127.0.0.1:1/api", "MLFLOW_TRACKING_PASSWORD": PASSWORD}
    monkeypatch.setattr(Stack, "client", lambda self: ours)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    os.environ.pop("PREFECT_API_URL", None)
    os.environ.pop("MLFLOW_TRACKING_PASSWORD", None)
    os.environ["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:9"
    assert join_stack(str(tmp_path))
    assert os.environ["PREFECT_API_URL"] == ours["PREFECT_API_URL"]
    assert "MLFLOW_TRACKING_PASSWORD" not in os.environ
