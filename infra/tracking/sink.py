"""Trackers beside MLflow: what one has to offer, and which there are. A name is a file of
infra/tracking/sinks, a package and an extra of pyproject.toml.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError, nearest
from atelier.infra.store.store import Store
from atelier.infra.tracking.about import RunInfo
from atelier.infra.tracking.follower import CurveRow

FOLDER = Path(__file__).parent / "sinks"


@dataclass(frozen=True, kw_only=True)
class CurveInfo:
    """A curve to show: one trajectory's. `role` is unique in a task, `fingerprint` everywhere."""

    fingerprint: str
    name: str
    role: str
    params: dict[str, Json]
    tags: dict[str, str]


class SinkCurve(Protocol):
    """A curve in a tracker. It is opened there when the first point is added that the tracker lacks."""

    @property
    def is_open(self) -> bool: ...

    def add(self, rows: Sequence[CurveRow]) -> None:
        """Add the points that the tracker does not have; may be called again with the same rows."""

    def finish(self, status: str) -> None:
        """End the curve, if it is open, with FINISHED, FAILED or KILLED."""


class Sink(Protocol):
    """A tracker of curves."""

    @property
    def label(self) -> str: ...

    def curve(self, about: CurveInfo) -> SinkCurve:
        """The curve of a trajectory, the same one in every run."""
        ...

    def forget(self, fingerprint: str) -> None:
        """Remove the curve of a trajectory that restarts from step 0."""

    def places(self) -> list[str]:
        """How to look at what was written, a line each."""
        ...

    def ping(self) -> None: ...

    def is_lasting(self, error: Exception) -> bool: ...


def sinks() -> list[str]:
    """The names that can be chosen."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")


def check_sinks(names: Sequence[str]) -> None:
    """Raise ConfigError for a name that there is not, or whose package is not installed."""
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


def open_sink(name: str, store: Store, about: RunInfo) -> Sink:
    """Import the tracker and open it for a flow run."""
    return importlib.import_module(f"atelier.infra.tracking.sinks.{name}").open_sink(store, about)
