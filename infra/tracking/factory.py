"""Create the tracker that the configuration selects: MLflow or none, and others beside it."""

from typing import Literal, Unpack

from pydantic import Field, field_validator

from atelier.engine.config.base import Given, Spec
from atelier.infra.run.run_tracker import NoTracker, RunTracker
from atelier.infra.store.store import Store
from atelier.infra.tracking.about import RunAbout, run_info
from atelier.infra.tracking.sink import check_sinks


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
        """A single name stands for itself: tracker.beside=tensorboard."""
        return (value,) if isinstance(value, str) else value

    def check(self) -> None:
        """Raise ConfigError for a tracker that there is not, or that is not installed."""
        check_sinks(self.beside)


def open_tracker(spec: TrackerSpec, store: Store, **about: Unpack[RunAbout]) -> RunTracker:
    """Open the trackers of one flow run; they never run on the training path."""
    mlflow = None
    if spec.kind == "mlflow":
        from atelier.infra.tracking.flow_tracker import FlowTracker

        mlflow = FlowTracker(spec.uri, store, **about)
    if not spec.beside:
        return mlflow or NoTracker()
    from atelier.infra.tracking.beside import Beside

    return Beside(mlflow, spec.beside, store, run_info(**about))
