"""Descriptions of flow runs, tasks and followed trajectories for the tracker. Does not import MLflow."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NotRequired, TypedDict, Unpack

from typing_extensions import TypeIs

from atelier.engine.config.base import Json, JsonObject
from atelier.engine.config.run_file import SegmentAddress

STATUS = {
    "FINISHED": "FINISHED",
    "COMPLETED": "FINISHED",
    "REUSED": "FINISHED",
    "KILLED": "KILLED",
    "STOPPED": "KILLED",
    "CANCELLED": "KILLED",
}


class RunAbout(TypedDict):
    """Description of a flow run for a tracker, as in RunInfo."""

    flow: str
    command: str
    run_id: str
    config: JsonObject
    title: NotRequired[str]
    sweep: NotRequired[str]
    is_part: NotRequired[bool]
    tags: NotRequired[Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """A flow run to track. `is_part`: another process starts and ends the flow's MLflow run. `title`: its
    name in lists of runs; empty = its id.
    """

    flow: str
    command: str
    run_id: str
    config: JsonObject
    title: str = ""
    sweep: str = ""
    is_part: bool = False
    tags: dict[str, str] = field(default_factory=dict)

    def common(self) -> dict[str, str]:
        """Tags of everything that this run writes."""
        return {
            "atelier.run": self.run_id,
            "atelier.flow_run": self.run_id,
            "atelier.sweep": self.sweep,
            "atelier.flow": self.flow,
            **self.tags,
        }


def run_info(**about: Unpack[RunAbout]) -> RunInfo:
    return RunInfo(**{**about, "tags": dict(about.get("tags", {}))})


@dataclass(frozen=True, kw_only=True)
class Followed:
    """One role's training to track: its trajectory segments in order (trunks first), and names and params of
    its runs.
    """

    segments: tuple[SegmentAddress, ...]
    role: str
    name: str = ""
    params: dict[str, Json] = field(default_factory=dict)
    teacher: str = ""
    inputs: dict[str, str] = field(default_factory=dict)


def ended(status: str) -> str:
    """MLflow's status of a run: FINISHED, FAILED or KILLED."""
    return STATUS.get(status.upper(), "FAILED")


def is_number(value: Json) -> TypeIs[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def flat(document: Mapping[str, Json], between: str = ".", prefix: str = "") -> dict[str, Json]:
    """Flatten nested dicts: {'a': {'b': 1}} -> {'a.b': 1}. Lists are kept."""
    result: dict[str, Json] = {}
    for key, value in document.items():
        place = f"{prefix}{between}{key}" if prefix else str(key)
        if isinstance(value, Mapping):
            result |= flat(value, between, place)
        elif value is not None:
            result[place] = value
    return result
