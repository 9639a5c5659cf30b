"""A soft prompt: learned vectors in place of tokens, with the model unchanged (2104.08691; CPM-2,
2106.10715). Their ids follow the vocabulary: V, V + 1 ... Torch-free.
"""

from collections.abc import Sequence
from math import gcd
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from atelier.engine.config.base import Spec

PLACES = ("front", "middle", "back")
Parts = Annotated[int, Field(ge=0, le=10_000)]
Mask = Literal["none", "prompt_to_text", "text_to_prompt", "both"]


def _named(given: str | tuple[int, int, int]) -> str | tuple[int, int, int]:
    """The place as it is written shortest: one place by its name, three parts without a common divisor."""
    if isinstance(given, str):
        return given
    if not any(given):
        raise ValueError("has no part above 0")
    if sum(part > 0 for part in given) == 1:
        return PLACES[next(n for n, part in enumerate(given) if part)]
    front, middle, back = (part // gcd(*given) for part in given)
    return front, middle, back


Place = Annotated[
    Literal["front", "middle", "back"] | tuple[Parts, Parts, Parts],
    AfterValidator(_named),
]


class SoftPrompt(Spec):
    length: int = Field(default=0, ge=0, le=10_000, description="number of vectors; 0 = none")
    place: Place = Field(
        default="front",
        description="position in the prompt: front, middle, back, or three numbers: the parts in front, in"
        " the middle and at the back",
    )
    mask: Mask = Field(
        default="none",
        description="what the encoder hides: the text from the vectors (prompt_to_text), the vectors from the"
        " text (text_to_prompt), both, none",
    )

    def counts(self) -> tuple[int, int, int]:
        """The number of vectors in front, in the middle and at the back: by largest remainder, ties to the
        first.
        """
        parts = [int(self.place == name) for name in PLACES] if isinstance(self.place, str) else self.place
        found = [self.length * part // sum(parts) for part in parts]
        rests = [self.length * part % sum(parts) for part in parts]
        for n in sorted(range(3), key=lambda n: -rests[n])[: self.length - sum(found)]:
            found[n] += 1
        front, middle, back = found
        return front, middle, back

    def put(self, before: Sequence[int], ids: Sequence[int], first: int) -> list[int]:
        """Insert the vectors' ids in the prompt. `before`: ids before every text; `first`: first new id."""
        front, middle, back = self.counts()
        soft, half = range(first, first + self.length), len(ids) // 2
        end = front + middle
        return [
            *soft[:front],
            *before,
            *ids[:half],
            *soft[front:end],
            *ids[half:],
            *soft[end : end + back],
        ]
