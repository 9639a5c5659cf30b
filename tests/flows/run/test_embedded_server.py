"""The Prefect server of a run that has none."""

from pathlib import Path

import pytest

from atelier.flows.run.embedded_server import EMBEDDED, EmbeddedServer


@pytest.mark.slow
def test_servers_that_start_at_once_in_a_new_store_all_come_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commands in one new store: each server would bring the same empty database up to date. The first
    one keeps it for other stores (infra/stack/prefect_database.py).
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
