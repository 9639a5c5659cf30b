"""One input of what a training learns from, and the order in which several are drawn from. Torch-free."""

from collections.abc import Iterable

from pydantic import Field

from atelier.engine.spec.base import Spec
from atelier.engine.spec.registry import Objective


class Stream(Spec):
    """One input of a blend: windows of packed documents, labelled examples (loss on the completion only), or
    the rows of an objective (a kind of engine/data/rows).
    """

    input: str = Field(description="key in `inputs`")
    weight: float = Field(default=1.0, gt=0)
    kind: str = "windows"
    rows: Objective | None = Field(default=None, description="the objective whose numbers make the rows")
    num_examples: int = Field(default=0, description="examples: how many are drawn; 0 = all")
    draw: int = Field(default=0, description="examples: which draw")


def in_order(streams: Iterable[Stream]) -> tuple[Stream, ...]:
    """By kind of rows and input: what is drawn from a stream depends on its place among them."""
    return tuple(sorted(streams, key=lambda stream: (stream.kind, stream.input, stream.draw)))
