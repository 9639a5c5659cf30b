"""A Prefect server of a test, with a database of its own; it ends with the test's process at the latest."""

from pathlib import Path

import pytest

from atelier.flows.run.embedded_server import EMBEDDED, EmbeddedServer


def started(home: Path) -> EmbeddedServer:
    """One that answers, with the settings that a run's own has."""
    with pytest.MonkeyPatch.context() as patch:
        for key, value in EMBEDDED.items():
            patch.setenv(key, value)
        patch.setenv("PREFECT_HOME", str(home))
        server = EmbeddedServer(home)
        server.wait()
    return server
