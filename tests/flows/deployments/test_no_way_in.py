"""A stack that cannot start, or a server that cannot be used: one clear line and exit code 2."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import pytest
from prefect.context import refresh_global_settings_context

from atelier.flows.cli.main import run
from atelier.infra.stack.stack import Stack
from tests.checkout import TOP
from tests.ports import free_port

SECRET = "atelier:planted-c0ffee"


def refused(root: Path, *words: str, **environment: str) -> str:
    """The one line that `atelier <words>` says on stderr: `up` as a process of its own."""
    ask = said if words[0] == "up" else said_here
    code, text = ask(root, *words, **environment)
    assert code == 2, text
    assert len(text.splitlines()) == 1 and "Traceback" not in text
    return text.strip()


def said(root: Path, *words: str, **environment: str) -> tuple[int, str]:
    """The exit code of `atelier <words>` as a process, and what it says on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "atelier", *words],
        env=environ(root, environment),
        cwd=TOP,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert SECRET not in done.stdout + done.stderr
    return done.returncode, done.stderr


def said_here(root: Path, *words: str, **environment: str) -> tuple[int, str]:
    """The same in this process, which has loaded Prefect; it reads its settings anew."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        try:
            with patch.dict(os.environ, environ(root, environment), clear=True):
                refresh_global_settings_context()
                code = run(words)
        finally:
            refresh_global_settings_context()
    assert SECRET not in out.getvalue() + err.getvalue()
    return code, err.getvalue()


def environ(root: Path, more: dict[str, str]) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_TRACKING"))}
    return kept | {"ATELIER_ROOT": str(root), "PREFECT_CLIENT_MAX_RETRIES": "0", **more}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@contextmanager
def a_port_in_use() -> Iterator[int]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held.getsockname()[1]


@contextmanager
def a_server(status: int, body: bytes) -> Iterator[str]:
    """Answers everything with this."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/api"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("flag", ["--prefect-port", "--mlflow-port"])
def test_a_port_in_use_is_refused_before_anything_starts(root: Path, flag: str) -> None:
    other = "--mlflow-port" if flag == "--prefect-port" else "--prefect-port"
    with a_port_in_use() as port:
        line = refused(root, "up", flag, str(port), other, str(free_port()))
    assert line.startswith(f"{flag}: {port} cannot be used: ") and line.endswith(f"choose another: {flag} N")
    assert Stack(str(root)).parts() == []


@pytest.mark.parametrize("port", ["many", "80", "65536", "-1", "4200.0", ""])
def test_what_is_no_port_is_refused(root: Path, port: str) -> None:
    line = refused(root, "up", f"--prefect-port={port}")
    assert line == f"--prefect-port: {port!r} is not a port; give a number from 1024 to 65535"


def test_one_port_for_both_servers_is_refused(root: Path) -> None:
    line = refused(root, "up", "--prefect-port", "43210", "--mlflow-port", "43210")
    assert line.startswith("--mlflow-port: 43210 is Prefect's port; choose another")
    assert Stack(str(root)).parts() == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org"])
def test_an_address_that_others_reach_is_refused(root: Path, host: str) -> None:
    line = refused(root, "up", "--host", host)
    assert line.startswith(f"--host: {host} can be reached by others") and "ssh -L" in line


def test_an_unknown_pool_is_named_with_those_there_are(root: Path) -> None:
    line = refused(root, "pretrain", "experiment=tiny", "pool=nosuch")
    assert "no option 'nosuch' in group pool; there are: " in line and "here, kubernetes, local, " in line
    line = refused(root, "worker", "locl")
    assert line == "pool: no pool 'locl'; did you mean local? there are: gpu, local, local_b, light"


def test_no_server_at_all_is_told_with_the_command_that_starts_one(root: Path) -> None:
    for words in (("pretrain", "experiment=tiny", "pool=local"), ("worker", "local")):
        line = refused(root, *words)
        assert line == "PREFECT_API_URL: no Prefect server is running; atelier up starts one"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"http://127.0.0.1:{free.getsockname()[1]}/api"
        line = refused(root, "worker", "local", PREFECT_API_URL=url, PREFECT_API_AUTH_STRING=SECRET)
        code, tried = said_here(root, "pretrain", "experiment=tiny", "tracker=none", PREFECT_API_URL=url)
    assert line.startswith(f"PREFECT_API_URL: no Prefect server answers at {url} (")
    assert f"no Prefect server answers at {url} (" in tried and "unset it: a run then starts its own" in tried
    assert code == 2 and "a fault in the program" not in tried


def test_a_stack_that_does_not_run_has_no_environment(root: Path) -> None:
    line = refused(root, "status", "--env")
    assert line == f"--env: the stack of {root} is not running; atelier up starts it"


def test_a_server_of_another_version_is_named_with_its_own(root: Path) -> None:
    with a_server(200, json.dumps("3.0.0").encode()) as url:
        line = refused(root, "worker", "local", PREFECT_API_URL=url, PREFECT_API_AUTH_STRING=SECRET)
    assert line.startswith(f"PREFECT_API_URL: {url} is Prefect 3.0.0, this is 3.")


@pytest.mark.parametrize(
    ("status", "body"), [(200, b"<html>a page</html>"), (200, b"{}"), (404, b"no such page")]
)
def test_a_server_that_is_no_prefect_is_told(root: Path, status: int, body: bytes) -> None:
    with a_server(status, body) as url:
        line = refused(root, "worker", "local", PREFECT_API_URL=url, PREFECT_API_AUTH_STRING=SECRET)
    assert line.startswith(f"PREFECT_API_URL: {url} is ") and "page" not in line


def test_a_server_that_fails_is_told_with_its_status(root: Path) -> None:
    with a_server(500, b"no database") as url:
        code, tried = said_here(root, "pretrain", "experiment=tiny", "tracker=none", PREFECT_API_URL=url)
    assert f"PREFECT_API_URL: {url} answers with status 500; start it, or unset it" in tried
    assert code == 2 and "a fault in the program" not in tried


@pytest.mark.parametrize("status", [401, 403])
def test_a_locked_server_is_told_without_the_password(root: Path, status: int) -> None:
    with a_server(status, b"{}") as url:
        line = refused(root, "worker", "local", PREFECT_API_URL=url, PREFECT_API_AUTH_STRING=SECRET)
    assert line.startswith(f"PREFECT_API_AUTH_STRING: {url} does not accept the user and password; ")
