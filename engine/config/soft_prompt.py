"""A soft prompt: vectors in the place of tokens, learned while the model stays as it is (2104.08691; CPM-2,
2106.10715). Its tokens have the ids behind the vocabulary: V, V + 1 ... Torch-free.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from atelier.engine.config.base import Spec

Place = Literal["front", "middle", "back"]


class SoftPrompt(Spec):
    length: int = Field(default=0, ge=0, le=10_000, description="vectors; 0 = none")
    place: Place = Field(default="front", description="where in the prompt's tokens: front, middle, back")

    def put(self, before: Sequence[int], ids: Sequence[int], first: int) -> list[int]:
        """The prompt's ids with the vectors'. `before`: what begins every text; `first`: the first id."""
        soft = range(first, first + self.length)
        if self.place == "front":
            return [*soft, *before, *ids]
        middle = len(ids) if self.place == "back" else len(ids) // 2
        return [*before, *ids[:middle], *soft, *ids[middle:]]
