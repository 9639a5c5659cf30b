"""Which samples of a step each data rank takes. Torch-free."""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.section import PlainSection


class Assignment(PlainSection):
    chooses_batches: ClassVar[bool] = True

    value: Literal["rows", "static", "measured"] = Field(
        default="rows",
        description="a step's samples by data rank: rows = equally many, padded to train.sequence; static = "
        "equal predicted cost, padded to the longest of a micro-batch; measured = also by the ranks' pace",
    )
