"""Atelier's plugins for Hydra, in the package where Hydra searches. `atelier <flow> -m` passes its
flows.sweep.session.Session as task function; other programs' task functions run in this process.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from optuna.trial import FrozenTrial

Setting = str | int | float | bool | list[str] | None  # of a sweeper in conf/
Launch = Callable[[Sequence[Sequence[str]], int], Sequence[JobReturn]]

NAMES = {"PrefectLauncher": "hydra/launcher/prefect", "GridSweeper": "hydra/sweeper/grid"}
NAMES |= {"SlurmLauncher": "hydra/launcher/slurm"}
NAMES |= {"OptunaSweeper": "hydra/sweeper/optuna", "HalvingSweeper": "hydra/sweeper/halving"}


class ProjectRoots(SearchPathPlugin):
    """Adds conf/ of the other project roots, and folders of `--config-dir`, to a search path that begins with
    Atelier's. Hydra asks each plugin for the search path of any program.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        from atelier.flows.run.catalog import CONF, conf_folders

        main = [one.path for one in search_path.get_path() if one.provider == "main"]
        if any(path and path.removeprefix("file://") == str(CONF) for path in main):
            for folder in conf_folders()[1:]:
                search_path.append(provider="atelier", path=f"file://{folder}")


class ChoosingSession(Protocol):
    """The part of a session that point-choosing sweepers call."""

    def choose(
        self, kind: str, words: list["Override"], settings: Mapping[str, Setting], width: int
    ) -> "Sequence[FrozenTrial] | Sequence[float | None]": ...


class PrefectLauncher(BasicLauncher):
    """Runs each job as a flow run on a Prefect pool; `width` at once, 0 = the pool's slots."""

    def __init__(self, width: int = 0) -> None:
        super().__init__()
        self.width = width

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        launch: Launch | None = getattr(self.task_function, "launch", None)
        if launch is None:
            return super().launch(job_overrides, initial_job_idx)
        return launch(job_overrides, self.width)


class SlurmLauncher(PrefectLauncher):
    """Runs each job as a task of a Slurm job array; `width` at once, 0 = no limit."""


class GridSweeper(BasicSweeper):
    """Hydra's basic sweeper with a metric to compare points: `metric` is `<model>.<key>` of a summary ('' =
    the held-out loss of the varied model, else of the last one), `direction` minimize or maximize ('' = the
    metric's declared one).
    """

    def __init__(self, metric: str = "", direction: str = "") -> None:
        super().__init__(max_batch_size=None)
        self.metric, self.direction = metric, direction

    def sweep(self, arguments: list[str]) -> Any:  # as Hydra declares it
        assert self.launcher is not None
        task = getattr(self.launcher, "task_function", None)
        compare: Callable[[str, str], None] | None = getattr(task, "compare", None)
        if compare is not None:
            compare(self.metric, self.direction)
        return super().sweep(arguments)

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """A session composes each point itself, and says more about a mistake."""
        if not hasattr(getattr(self.launcher, "task_function", None), "launch"):
            super().validate_batch_is_legal(batch)


class _Chooser(Sweeper):
    """A sweeper that chooses points by the results of earlier ones, implemented in
    `atelier.flows.sweep.<kind>`.
    """

    kind = ""

    def __init__(self, **settings: Setting) -> None:
        self.settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        if not hasattr(task_function, "launch"):
            raise ValueError(f"hydra/sweeper={self.kind} works only in atelier <flow> -m ...")
        self.session = cast(ChoosingSession, task_function)
        self.width = int(config.hydra.launcher.get("width", 0))
        self.parser = OverridesParser.create(config_loader=hydra_context.config_loader)  # knows groups

    def sweep(self, arguments: list[str]) -> "Sequence[FrozenTrial] | Sequence[float | None]":
        words = self.parser.parse_overrides(arguments)
        return self.session.choose(self.kind, words, self.settings, self.width)


class OptunaSweeper(_Chooser):
    """Optuna proposes the points; settings: flows/sweep/optuna.py."""

    kind = "optuna"


class HalvingSweeper(_Chooser):
    """Successive halving: all points train briefly, the best for longer (flows/sweep/halving.py)."""

    kind = "halving"


SETTINGS: dict[str, dict[str, Setting]] = {
    "PrefectLauncher": {"width": 0},
    "SlurmLauncher": {"width": 0},
    "GridSweeper": {"metric": "", "direction": ""},
    "OptunaSweeper": {
        "metric": "", "direction": "", "trials": 20, "seed": 1, "sampler": "tpe", "prune": "auto",
        "startup": 5, "only_if": None,
    },
    "HalvingSweeper": {"metric": "", "direction": "", "keep": 0.5, "rungs": 3},
}  # fmt: skip
for _name, _place in NAMES.items():
    _group, _, _option = _place.rpartition("/")
    ConfigStore.instance().store(
        group=_group,
        name=_option,
        node={"_target_": f"{__name__}.{_name}"} | SETTINGS[_name],
        provider="atelier",
    )
