"""Create the tracker that the configuration selects: MLflow or none, with the same interface."""

from typing import Literal, Unpack

from pydantic import Field

from atelier.engine.config.base import Spec
from atelier.infra.run.run_tracker import NoTracker, RunTracker
from atelier.infra.store.store import Store
from atelier.infra.tracking.about import RunAbout


class TrackerSpec(Spec):
    """conf/tracker: where metrics, models and lineage go in addition to the store."""

    kind: Literal["mlflow", "none"] = Field(default="none", description="mlflow or none")
    uri: str = Field(
        default="",
        pattern=r"^$|^(https?|sqlite|postgresql|mysql|mssql)(\+\w+)?://[^@]*$",  # a record keeps no password
        description=(
            "an http(s):// server or a database such as sqlite:///file; empty = $MLFLOW_TRACKING_URI, else a"
            " database in the store's folder"
        ),
    )


def open_tracker(spec: TrackerSpec, store: Store, **about: Unpack[RunAbout]) -> RunTracker:
    """Open the tracker of one flow run; it never runs on the training path."""
    if spec.kind == "none":
        return NoTracker()
    from atelier.infra.tracking.flow_tracker import FlowTracker

    return FlowTracker(spec.uri, store, **about)
