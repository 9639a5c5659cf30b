"""The Prefect server of a run without a stack."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atelier.engine.config.error import AtelierError
from atelier.flows.run import embedded_server
from atelier.flows.run.embedded_server import EMBEDDED, EmbeddedServer
from tests.checkout import python_path

SOON_S = 60.0  # on a busy machine, and far below PATIENCE_S
CHECK = "from atelier.flows.run.embedded_server import _check_settings; _check_settings()"


@pytest.mark.slow
def test_servers_that_start_at_once_in_a_new_store_all_come_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commands in one new store: each server would bring the same empty database up to date. The first
    one keeps it for other stores (infra/stack/prefect_server.py).
    """
    for key, value in EMBEDDED.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    servers = [EmbeddedServer(tmp_path / "prefect") for _ in range(3)]
    try:
        for server in servers:
            server.wait()
        assert len(list((tmp_path / "cache" / "atelier").glob("prefect-*.db"))) == 1
    finally:
        for server in servers:
            server.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("PREFECT_LOGGING_LEVEL=NOPE", "level: Input should be 'DEBUG', .* not 'NOPE'"),
        ("PREFECT_CLIENT_MAX_RETRIES=nope", "max_retries: .* not 'nope'; correct or unset"),
    ],
)
def test_a_setting_that_prefect_does_not_take_is_refused_with_its_value(
    tmp_path: Path, setting: str, says: str
) -> None:
    name, _, value = setting.partition("=")
    more = {name: value, "PREFECT_HOME": str(tmp_path), "PYTHONPATH": python_path()}
    done = subprocess.run(
        [sys.executable, "-c", CHECK], env=os.environ | more, capture_output=True, text=True
    )
    assert re.search(f"ConfigError: PREFECT_.*{says}", done.stderr) and "plugins" not in done.stderr


def test_a_server_that_dies_before_it_answers_is_told_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request waits as long as somebody keeps the socket, whoever should answer it."""
    monkeypatch.setattr(embedded_server, "ANSWER_S", 0.2)
    server, began = EmbeddedServer(tmp_path), time.monotonic()
    server.process.kill()
    with pytest.raises(AtelierError, match="Prefect's server did not start"):
        server.wait()
    server.close()
    assert time.monotonic() - began < SOON_S
