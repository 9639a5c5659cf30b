"""Hydra's own suite for launchers, with hydra/launcher=prefect and other programs' task functions."""

import pytest
from hydra.core.plugins import Plugins
from hydra.test_utils.launcher_common_tests import (
    BatchedSweeperTestSuite,
    IntegrationTestSuite,
    LauncherTestSuite,
)
from hydra.version import VersionBase, __compat_version__

pytestmark = pytest.mark.filterwarnings("ignore:Future Hydra versions")  # its own, about its own apps


@pytest.fixture(autouse=True)
def hydra_as_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No version of Hydra's behaviour chosen: Atelier's own commands choose one, for the whole process."""
    monkeypatch.setattr(VersionBase.instance(), "version_base", __compat_version__)


Plugins.instance()  # found before the suite's fixture takes its copy of what Hydra knows


@pytest.mark.parametrize("launcher_name, overrides", [("prefect", [])])
class TestLauncher(LauncherTestSuite):
    pass


@pytest.mark.parametrize(
    "launcher_name, overrides", [("prefect", ["hydra/sweeper=basic", "hydra.sweeper.max_batch_size=2"])]
)
class TestBatches(BatchedSweeperTestSuite):
    pass


@pytest.mark.parametrize(
    "task_launcher_cfg, extra_flags",
    [({"defaults": [{"override hydra/launcher": "prefect"}]}, ["-m"])],
)
class TestIntegration(IntegrationTestSuite):
    pass
