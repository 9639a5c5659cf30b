"""Traces by torch's profiler, for Perfetto and chrome://tracing: `train.profile` steps after this process's
first ones, on each of the first eight ranks; on GPUs also a plot of allocated memory.

Files: `<trajectory>/profile/steps-<first>-<last>-rank<n>.json.gz` and `...-memory.html`. Nothing depends on
them: if one cannot be written, it is a warning.
"""

import gzip
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from atelier.engine.config.tested import is_on
from atelier.engine.io.storage import join, write_bytes
from atelier.engine.loop.report import ProgressReport
from atelier.engine.loop.role_state import RoleState
from atelier.engine.parallel.gang import Gang

WARM = 3  # steps before the first recorded one: compilation, allocation, caches
RANKS = 8
FOLDER = "profile"
EVENTS = 100_000  # allocator events kept for the plot


class Profiler:
    """Records `num_steps` steps; 0 = none."""

    def __init__(
        self, num_steps: int, gang: Gang, roles: Sequence[RoleState], scratch: Path, report: ProgressReport
    ) -> None:
        self.gang, self.roles, self.scratch, self.report = gang, roles, scratch, report
        self._left = num_steps if gang.rank < RANKS else 0
        self._until_first = WARM
        self._first = self._last = 0
        self._trace: profile | None = None
        self._step: AbstractContextManager[object] | None = None

    def begin(self, step: int) -> None:
        """Called before the step with this number."""
        if not self._left:
            return
        if self._until_first:
            self._until_first -= 1
            return
        if self._trace is None:
            self._first = step
            self._start()
        self._step = self.gang.regions(f"step {step}")
        self._step.__enter__()

    def end(self, step: int) -> None:
        """Called after the step."""
        if self._trace is None:
            return
        self._leave()
        self._last, self._left = step, self._left - 1
        if not self._left:
            self.close()

    def _start(self) -> None:
        activities = [ProfilerActivity.CPU]
        if self.gang.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
            if is_on("memory history"):
                torch.cuda.memory._record_memory_history(max_entries=EVENTS)
        self._trace = profile(activities=activities, acc_events=True)
        self._trace.start()
        self.gang.regions.is_on = True

    def close(self) -> None:
        """Write the recorded steps, if any."""
        if self._trace is None:
            return
        trace, self._trace, self._left = self._trace, None, 0
        self.gang.regions.is_on = False
        self._leave()
        trace.stop()
        url = self._url()
        if not self._last or not url:
            return
        name = f"steps-{self._first}-{self._last}-rank{self.gang.rank}"
        path = self.scratch / f"{name}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            trace.export_chrome_trace(str(path))
            write_bytes(join(url, f"{name}.json.gz"), gzip.compress(path.read_bytes()))
            if self.gang.device.type == "cuda" and is_on("memory history"):
                write_bytes(join(url, f"{name}-memory.html"), _memory_page(self.gang.device).encode())
        except (OSError, RuntimeError) as error:
            self.report.say(warning=f"the profile is not written: {error}")
        else:
            self.report.say(log=f"profile of steps {self._first} to {self._last}: {url}")
        with suppress(OSError):
            path.unlink(missing_ok=True)

    def _leave(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def _url(self) -> str:
        """Beside the metrics of the first kept role that has students or is alone."""
        kept = [role for role in reversed(self.roles) if role.is_kept]
        return join(kept[0].segment(self._last or self._first).url, FOLDER) if kept else ""


def _memory_page(device: torch.device) -> str:
    """The allocator's memory over time, as an HTML page."""
    from torch.cuda._memory_viz import trace_plot  # writes HTML; only GPUs have events

    snapshot = torch.cuda.memory._snapshot(device)
    torch.cuda.memory._record_memory_history(enabled=None)
    return trace_plot(snapshot)
