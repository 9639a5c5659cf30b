"""Next-token prediction in a long document, with the tokens before the row as memory (ERNIE 3.0 Titan,
2112.12731).
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from atelier.engine.config.own_rows import OwnRows


class DocumentLM(OwnRows):
    needs_teacher: ClassVar[bool] = False
    term: ClassVar[str] = "lm"
    reads: ClassVar[str] = "document"

    kind: Literal["document"] = "document"
    weight: float = Field(default=1.0, gt=0, description="share among the role's active objectives; above 0")
    memory: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        default="auto",
        description="tokens of memory at the start of a row, not predicted; auto = a quarter of the row",
    )

    @property
    def least_sequence(self) -> int:
        """Room for the memory and one token to predict."""
        return 2 if self.memory == "auto" else self.memory + 1
