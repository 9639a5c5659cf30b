"""A root with an MLflow database in it."""

import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated MLflow database, made once: that alone takes seconds."""
    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").get_experiment("0")
    return path


@pytest.fixture
def root(tmp_path: Path, empty_database: Path) -> Path:
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return tmp_path
