"""Credentials for each server."""

import base64
import json
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from atelier.infra.stack.settings import write_private
from atelier.infra.stack.stack import Stack, join_stack
from atelier.infra.store.lease import Holder
from atelier.infra.store.store import Store
from atelier.infra.tracking import address
from atelier.infra.tracking.address import is_same_server, tracking_address, without_secret
from atelier.infra.tracking.factory import TrackerSpec, open_tracker
from atelier.infra.tracking.retry_worker import first_line

PASSWORD = "planted-password"
SERVERS = ("MLFLOW_TRACKING", "PREFECT_API")


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
        self.url = f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    server = Stranger()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def nobody_s(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An environment without servers and credentials, for a copy of it is changed here."""
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if not k.startswith(SERVERS)})
    yield
    address._restore()


def running_stack(root: Path, mlflow: str, *, is_up: bool = True) -> Stack:
    """The stack of `root` as its folder describes it: this process is both of its servers."""
    holder = {"holder": asdict(Holder.me("mlflow"))} if is_up else {}
    urls = {"prefect": "http://127.0.0.1:9", "mlflow": mlflow}
    stack = Stack(str(root))
    assert stack.credentials.user  # which makes its folder
    state = {name: {"url": url} | holder for name, url in urls.items()}
    write_private(stack.folder / "state.json", json.dumps(state))
    return Stack(str(root))


def asked(server: Stranger, spec: TrackerSpec, root: Path) -> set[str | None]:
    """What a run of the store at `root` lets the server know of passwords: with the steps of `run_flow` in
    their order; empty when it asks it nothing.
    """
    about = {"flow": "f", "command": "c", "run_id": "r", "config": {}}
    tracker = open_tracker(spec, Store(str(root)), **about)
    join_stack(str(root))
    tracker.link(page="http://127.0.0.1:9")
    tracker.mlflow.close("FAILED", timeout_s=3)
    return set(server.heard)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_a_tracker_of_another_server_does_not_get_the_running_stack_s_password(
    stranger: Stranger, tmp_path: Path
) -> None:
    running_stack(tmp_path, "http://127.0.0.1:9")
    assert asked(stranger, TrackerSpec(kind="mlflow", uri=stranger.url), tmp_path) == {None}


def test_beside_a_running_stack_a_run_is_tracked_by_its_server_with_its_password(
    stranger: Stranger, tmp_path: Path
) -> None:
    made = running_stack(tmp_path, stranger.url).credentials
    assert asked(stranger, TrackerSpec(kind="mlflow"), tmp_path) == {basic(made.user, made.password)}
    assert not (tmp_path / "mlflow.db").exists()


def test_a_stack_that_does_not_run_gets_nothing_and_the_database_is_written(tmp_path: Path) -> None:
    running_stack(tmp_path, "http://127.0.0.1:9", is_up=False)
    assert tracking_address("", Store(str(tmp_path))) == f"sqlite:///{tmp_path}/mlflow.db"
    assert not [key for key in os.environ if key.startswith("MLFLOW_TRACKING")]


USERS = {f"MLFLOW_TRACKING_{word}": f"users-{word}" for word in ("USERNAME", "PASSWORD", "TOKEN")}


@pytest.mark.parametrize("seed", range(40))
def test_every_credential_is_in_the_environment_only_while_its_own_server_is_talked_to(
    seed: int, tmp_path: Path
) -> None:
    """Runs of one process, each with another tracker, stack and wish of the user."""
    draw = random.Random(seed)
    stack, users, other = ("http://127.0.0.1:5001", "https://mlflow.example", "http://stranger.example:80")
    theirs = {key: USERS[key] for key in USERS if draw.random() < 0.7}
    os.environ.update(theirs)
    if draw.random() < 0.7:
        os.environ["MLFLOW_TRACKING_URI"] = draw.choice([users, stack])
    set_by_user = os.environ.get("MLFLOW_TRACKING_URI", "")
    for _ in range(6):
        is_up = draw.random() < 0.6
        made = running_stack(tmp_path, stack, is_up=is_up).credentials
        given = draw.choice(["", stack, users, other, "http://LOCALHOST:5001/", f"sqlite:///{tmp_path}/x.db"])
        uri = tracking_address(given, Store(str(tmp_path)))
        assert given in ("", uri)
        there = {key: os.environ[key] for key in USERS if key in os.environ}
        if theirs and is_same_server(uri, set_by_user):
            assert there == theirs
        elif is_up and is_same_server(uri, stack):
            assert there == {
                "MLFLOW_TRACKING_USERNAME": made.user,
                "MLFLOW_TRACKING_PASSWORD": made.password,
            }
        else:
            assert there == {}
    address._restore()
    assert {key: os.environ[key] for key in USERS if key in os.environ} == theirs


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://a:80/x", "http://A", True),
        ("http://127.0.0.1:5000", "http://localhost:5000/", True),
        ("http://user:pw@a", "http://a", True),
        ("https://a", "http://a", False),
        ("http://a:1", "http://a:2", False),
        ("http://a.b", "http://a", False),
        ("http://a:99999", "http://a:99999", False),
        ("sqlite:///a", "sqlite:///a", False),
        ("", "", False),
    ],
)
def test_a_server_is_known_by_scheme_host_and_port(one: str, other: str, same: bool) -> None:
    assert is_same_server(one, other) is is_same_server(other, one) is same


def test_joining_a_stack_is_for_prefect_alone_and_not_where_the_user_named_a_server(tmp_path: Path) -> None:
    made = running_stack(tmp_path, "http://127.0.0.1:9").credentials
    os.environ["PREFECT_API_URL"] = "https://prefect.example/api"
    assert not join_stack(str(tmp_path))
    assert "PREFECT_API_AUTH_STRING" not in os.environ
    del os.environ["PREFECT_API_URL"]
    assert join_stack(str(tmp_path))
    assert os.environ["PREFECT_API_URL"] == "http://127.0.0.1:9/api"
    assert os.environ["PREFECT_API_AUTH_STRING"] == made.prefect
    assert not [key for key in os.environ if key.startswith("MLFLOW_TRACKING")]


def test_what_a_tracker_tells_of_its_trouble_and_its_pages_has_no_password_in_it() -> None:
    told = first_line(ConnectionError(f"no answer from http://me:{PASSWORD}@host/api\n\x1b[2J"))
    assert told == "no answer from http://host/api"
    assert without_secret(f"see http://me:{PASSWORD}@host/x and //b:c@d") == "see http://host/x and //d"
