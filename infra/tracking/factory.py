"""Create the configured trackers: MLflow or none, and others beside it."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Unpack

from pydantic import Field, field_validator

from atelier.engine.config.base import Given, Spec
from atelier.engine.config.error import ConfigError, nearest
from atelier.infra.run.run_tracker import RunTracker
from atelier.infra.store.store import Store
from atelier.infra.tracking.about import RunAbout, run_info

FOLDER = Path(__file__).parent / "sinks"


class TrackerSpec(Spec):
    """conf/tracker: where metrics, models and lineage go in addition to the store."""

    kind: Literal["mlflow", "none"] = Field(default="none", description="mlflow or none")
    uri: str = Field(
        default="",
        pattern=r"^$|^(https?|sqlite|postgresql|mysql|mssql)(\+\w+)?://[^@]*$",  # a record keeps no password
        description=(
            "an http(s):// server or a database such as sqlite:///file; empty = $MLFLOW_TRACKING_URI,"
            " else `atelier up`'s while it runs, else a database in the store's folder"
        ),
    )
    beside: tuple[str, ...] = Field(
        default=(), description="further trackers of the same curves: tensorboard, wandb; [] = none"
    )

    @field_validator("beside", mode="before")
    @classmethod
    def _one(cls, value: Given) -> Given:
        """Accept a single name: tracker.beside=tensorboard."""
        return (value,) if isinstance(value, str) else value

    def check(self) -> None:
        """Raises ConfigError for an unknown tracker, or one that is not installed."""
        check_sinks(self.beside)


def open_tracker(spec: TrackerSpec, store: Store, **about: Unpack[RunAbout]) -> RunTracker:
    """Open the trackers of one flow run; they never run on the training path."""
    if spec.kind == "none" and not spec.beside:
        return RunTracker()
    from atelier.infra.tracking.address import tracking_address
    from atelier.infra.tracking.mlflow_tracker import MlflowTracker
    from atelier.infra.tracking.trackers import Trackers

    is_mlflow = spec.kind == "mlflow"
    mlflow = MlflowTracker(tracking_address(spec.uri, store), store, **about) if is_mlflow else None
    return Trackers(mlflow, spec.beside, store, run_info(**about))


def sinks() -> list[str]:
    """The names of available trackers."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")


def check_sinks(names: Sequence[str]) -> None:
    """Raises ConfigError for an unknown name, or one whose package is not installed."""
    for name in names:
        if name not in sinks():
            near = nearest(name, sinks())
            raise ConfigError(
                "tracker.beside",
                f"no tracker {name!r}",
                (f"did you mean {near}? " if near else "") + f"there are: {', '.join(sinks())}",
            )
        if find_spec(name) is None:
            raise ConfigError("tracker.beside", f"{name} is not installed", f"pip install {name}")
