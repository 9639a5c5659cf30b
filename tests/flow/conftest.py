"""The command line with the module's store, without the user's environment."""

from pathlib import Path

import pytest

from tests.flow.command import Atelier


@pytest.fixture
def atelier(root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Atelier:
    monkeypatch.setenv("ATELIER_ROOT", str(root))
    monkeypatch.setenv("PREFECT_HOME", str(root / "prefect"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Atelier(root, capsys)
