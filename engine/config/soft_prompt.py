"""A soft prompt: learned vectors in place of tokens, with the model unchanged (2104.08691; CPM-2,
2106.10715). Their ids follow the vocabulary: V, V + 1 ... Torch-free.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from atelier.engine.config.base import Spec

Place = Literal["front", "middle", "back"]


class SoftPrompt(Spec):
    length: int = Field(default=0, ge=0, le=10_000, description="number of vectors; 0 = none")
    place: Place = Field(default="front", description="position in the prompt: front, middle, back")

    def put(self, before: Sequence[int], ids: Sequence[int], first: int) -> list[int]:
        """Insert the vectors' ids in the prompt. `before`: ids before every text; `first`: first new id."""
        soft = range(first, first + self.length)
        if self.place == "front":
            return [*soft, *before, *ids]
        middle = len(ids) if self.place == "back" else len(ids) // 2
        return [*before, *ids[:middle], *soft, *ids[middle:]]
