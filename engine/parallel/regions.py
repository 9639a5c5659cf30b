"""Names of the parts of a step, for a profiler's trace."""

from contextlib import AbstractContextManager, nullcontext

from torch.profiler import record_function

OFF: AbstractContextManager[None] = nullcontext()
MARK = "atelier: "


class Regions:
    """`with regions("forward"):` names what runs inside, while a profiler records; else it does nothing."""

    def __init__(self) -> None:
        self.is_on = False

    def __call__(self, name: str) -> AbstractContextManager[object]:
        return record_function(MARK + name) if self.is_on else OFF
