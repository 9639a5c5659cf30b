"""Setting parallel.speed_log: the speeds by which samples are assigned. Torch-free."""

from typing import ClassVar

from pydantic import Field

from atelier.engine.config.section import PlainSection


class SpeedLog(PlainSection):
    names_ranks: ClassVar[bool] = True

    value: tuple[tuple[float, ...], ...] = Field(
        default=(),
        description="relative speeds of the data ranks for assigning samples: [[step, speed, ...], ...],"
        " each from its step on; the record of a model with assignment=measured contains it",
    )
