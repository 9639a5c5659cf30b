"""Give each data rank its samples of a step by their cost and the ranks' speeds."""

import math
from collections.abc import Mapping, Sequence

from atelier.engine.config.error import ConfigError
from atelier.engine.extensions.assignment.assigner import Assigner
from atelier.engine.extensions.assignment.checks import PLACE, refuse_measuring
from atelier.engine.extensions.assignment.config.parallel.assignment import Assignment
from atelier.engine.extensions.assignment.config.parallel.speed_log import SpeedLog
from atelier.engine.extensions.assignment.pace import Pace
from atelier.engine.loop.hooks import Hook, HookContext
from atelier.engine.loop.role_state import RoleState


class SamplesByCost(Hook):
    """The data ranks' samples and speeds."""

    def __init__(self, context: HookContext) -> None:
        super().__init__(context)
        layout = context.build.layout
        assigned, log = Assignment.of(layout), SpeedLog.of(layout)
        is_measured = assigned is not None and assigned.value == "measured"
        if is_measured:
            _check_measured(context)
        self._num_data, self._gang, self._last = layout.axes.data, context.gang, -2
        self._pace = Pace(log.value if log else (), self._num_data, is_measured=is_measured)
        grid = context.build.grid("", is_student=False)
        self._assigner = Assigner(grid, self._pace, lambda tokens: row_flops(context.members, tokens))
        context.data.batches_of_step = self._assigner.batches
        for member in context.members.values():
            member.attach(self._pace)

    def timed(self, clock: int, times_us: Sequence[int]) -> None:
        """Pass the times on to the pace."""
        before, self._last = self._last, clock
        if before != clock - 1:
            return
        each = self._gang.world // self._num_data
        times = [max(times_us[rank * each : (rank + 1) * each]) / 1e6 for rank in range(self._num_data)]
        self._pace.hear(clock, self._assigner.costs(clock - 1), times)


def _check_measured(context: HookContext) -> None:
    """Raise ConfigError if the ranks' speeds cannot be measured, or if the steps must be repeated bit for
    bit, as in a replay.
    """
    for name, member in context.training.members.items():
        if member.mode == "replay":
            raise ConfigError(
                PLACE,
                f"measured, but {name} is replayed and must give the same bits",
                "use assignment=static and the parallel.speed_log in its record",
            )
    if context.gang.device.type == "cuda":
        refuse_measuring()


def row_flops(members: Mapping[str, RoleState], tokens: int) -> float:
    """FLOPs of a row of `tokens`, over all roles."""
    return tokens * math.fsum(member.flops_per_token(tokens) for member in members.values())
