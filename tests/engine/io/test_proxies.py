"""Proxies of the environment are used for other machines, and not for programs on this one."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests

from atelier.engine.config.error import ConfigError
from atelier.engine.io.proxies import EXEMPT, ONLY_GRPC, PROXIES, exempt_loopback
from atelier.infra.stack.service import answers, check_proxies

DEAD = "http://127.0.0.1:9"
ELSEWHERE = "http://hub.example/model"


class Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXIES, EXEMPT, ONLY_GRPC):
        for spelled in (name, name.upper()):
            monkeypatch.setenv(spelled, "")  # so that what a test adds is gone after it
            monkeypatch.delenv(spelled)


@pytest.fixture
def here() -> Iterator[str]:
    """A server on loopback."""
    server = HTTPServer(("127.0.0.1", 0), Hello)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"])
def test_loopback_is_reached_beside_a_dead_proxy(name: str, here: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(name, DEAD)
    exempt_loopback(os.environ)
    assert answers(here + "/health", timeout_s=2) and httpx.get(here).status_code == 200
    assert requests.get(here.replace("127.0.0.1", "localhost"), timeout=2).status_code == 200


def test_other_hosts_are_asked_through_the_proxy(here: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", here)
    exempt_loopback(os.environ)
    assert httpx.get(ELSEWHERE).status_code == requests.get(ELSEWHERE, timeout=2).status_code == 200


@pytest.mark.parametrize(
    ("given", "small", "large"),
    [
        ({"no_proxy": "a.example, 10.0.0.0/8"}, "a.example,10.0.0.0/8", "a.example,10.0.0.0/8"),
        ({"NO_PROXY": "localhost"}, "localhost", "localhost"),
        ({"no_proxy": "", "NO_PROXY": "b"}, "", "b"),
        ({"no_proxy": "[::1]"}, "::1", "::1"),  # httpx does not read the brackets
        ({}, "", ""),
    ],
)
def test_what_the_user_exempted_stays(given: dict[str, str], small: str, large: str):
    environment = {"http_proxy": DEAD, **given}
    exempt_loopback(environment)
    for name, kept in (("no_proxy", small), ("NO_PROXY", large)):
        words = environment[name].split(",")
        assert words[: len(kept.split(","))] == kept.split(",") or not kept
        assert sorted(words) == sorted({*filter(None, kept.split(",")), "127.0.0.1", "localhost", "::1"})
    before = dict(environment)
    exempt_loopback(environment)
    assert environment == before


def test_a_star_alone_exempts_everything_and_stays_alone():
    environment = {"http_proxy": DEAD, "no_proxy": "*", ONLY_GRPC: "a"}
    exempt_loopback(environment)
    assert (environment["no_proxy"], environment["NO_PROXY"]) == ("*", "*")
    assert environment[ONLY_GRPC] == "a,127.0.0.1,localhost,::1"


def test_without_a_proxy_nothing_is_set():
    environment = {"no_proxy": "a", "HTTP_PROXY": ""}
    assert exempt_loopback(environment) == [] and environment == {"no_proxy": "a", "HTTP_PROXY": ""}


def test_a_socks_proxy_that_nothing_can_use_is_removed_with_a_note(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ALL_PROXY", "socks5h://name:secret@127.0.0.1:9")
    with pytest.raises(ConfigError, match="socksio"):
        check_proxies()
    [note] = exempt_loopback(os.environ)
    check_proxies()
    assert note.startswith("ALL_PROXY is not used") and "secret" not in note


def test_proxies_that_no_client_can_read_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", "http://proxy:port")
    with pytest.raises(ConfigError, match=r"HTTP_PROXY.*Invalid port: 'port'; correct them or unset them"):
        check_proxies()


@pytest.mark.slow
def test_a_run_with_its_own_server_ends_behind_a_dead_proxy(tmp_path: Path):
    small = ("experiment=tiny", "tracker=none", "tokenizer.vocab=300")
    dead = {"http_proxy": DEAD, "HTTPS_PROXY": DEAD, "ALL_PROXY": "socks5://127.0.0.1:9"}
    environment = os.environ | dead | {"ATELIER_ROOT": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "atelier", "corpus", *small],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "note: ALL_PROXY is not used" in done.stderr and list(tmp_path.glob("tokens/*/record.json"))
