"""Fixtures that a module's tests share: one stack, or one Slurm cluster and stores beside it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkout import TOP
from tests.flow.served import Served, running
from tests.service.shop import Shop
from tests.service.slurm_cluster import Cluster, cluster


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with running(tmp_path_factory.mktemp("served") / "store") as stack:
        yield stack


@pytest.fixture(scope="module")
def slurm_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("slurm") / "c") as made:
        yield made


@pytest.fixture
def slurm(slurm_of_module: Cluster) -> Iterator[Cluster]:
    """The module's cluster, idle."""
    yield slurm_of_module
    slurm_of_module.clear()


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which the tokens are made already."""
    root = tmp_path_factory.mktemp("tokens") / "store"
    command = [sys.executable, "-m", "atelier", "corpus", "experiment=tiny", "tracker=none"]
    subprocess.run(command, env=os.environ | {"ATELIER_ROOT": str(root)}, cwd=TOP, check=True)
    return root


@pytest.fixture
def shop(slurm: Cluster, tokens: Path, tmp_path: Path) -> Iterator[Shop]:
    """The command line beside the cluster, and a store with tokens."""
    shutil.copytree(tokens, tmp_path / "store")
    made = Shop(tmp_path / "store", slurm)
    yield made
    made.end()
