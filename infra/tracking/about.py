"""Descriptions of flow runs, tasks and followed trajectories for the tracker. Does not import MLflow."""

from dataclasses import dataclass, field
from typing import Any

from atelier.engine.config.run_file import SegmentAddress


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """A flow run to track. `is_part`: another process begins and ends the flow's MLflow run."""

    flow: str
    command: str
    run_id: str
    config: dict[str, Any]
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


@dataclass(frozen=True, kw_only=True)
class Followed:
    """One role's training to track: its trajectory segments in order (trunks first), and names and params of
    its runs.
    """

    segments: tuple[SegmentAddress, ...]
    role: str
    name: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    teacher: str = ""
    inputs: dict[str, str] = field(default_factory=dict)


class TaskHandle:
    """A task's MLflow run; `run` is '' until the tracker's thread has started it."""

    def __init__(self, name: str, task: str) -> None:
        self.name, self.task, self.run = name, task, ""
