"""Setting parallel.assignment: how a step's samples are assigned to data ranks. Torch-free."""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.section import PlainSection


class Assignment(PlainSection):
    chooses_batches: ClassVar[bool] = True

    value: Literal["rows", "static", "measured"] = Field(
        default="rows",
        description="samples of a data rank: rows = equal numbers, padded to train.sequence; static ="
        " equal predicted cost, padded to the longest of a micro-batch; measured = also by"
        " measured speed",
    )
