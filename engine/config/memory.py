"""Product-key memories beside the MLPs of blocks (1907.05242): a token's query scores the n * n pairs of two
sets of n keys, and the value rows of its K best pairs are summed. Torch-free.

D hidden, H heads, E key width, n keys per half, K pairs per token and head
"""

from typing import NamedTuple, Self

from pydantic import Field, model_validator

from atelier.engine.config.base import Spec
from atelier.engine.config.registry import Limit


class MemorySizes(Spec):
    """The sizes of a memory."""

    keys: int = Field(default=128, ge=2, description="n, keys per half; a memory has n * n value rows")
    heads: int = Field(default=4, ge=1, description="queries per token, each with its own keys")
    per_token: int = Field(default=32, ge=1, description="K, best value rows per token and head")
    width: int = Field(default=64, ge=2, description="E, width of a query; each half of the keys gets half")
    query_norm: bool = Field(default=True, description="RMSNorm of each head's queries")

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.width % 2:
            raise ValueError(f"width {self.width} is odd, but the two halves of the keys share it")
        if self.per_token > self.keys**2:
            raise ValueError(
                f"per_token {self.per_token} is more than the keys * keys = {self.keys**2} value rows"
            )
        return self


class ProductKeyMemory(MemorySizes):
    """The blocks with a memory, and its sizes."""

    blocks: tuple[int, ...] = Field(
        default=(), description="numbers of the blocks with a memory beside the MLP; empty = none"
    )

    @model_validator(mode="after")
    def _has_blocks(self) -> Self:
        given = [
            name for name, field in MemorySizes.model_fields.items() if getattr(self, name) != field.default
        ]
        if given and not self.blocks:
            raise ValueError(f"{given[0]} is given, but blocks is empty: no block has a memory")
        if len(set(self.blocks)) < len(self.blocks):
            raise ValueError("blocks names a block twice")
        return self

    def check_blocks(self, num_layers: int) -> None:
        """Raise ValueError for a block number that is not below `num_layers`."""
        for number in self.blocks:
            if not 0 <= number < num_layers:
                raise ValueError(f"memory.blocks has {number}, but there are {num_layers} blocks")

    def shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """The weights of one memory."""
        half = self.width // 2
        found: dict[str, tuple[int, ...]] = {"queries": (self.heads * self.width, hidden)}
        if self.query_norm:
            found["norm.weight"] = (self.width,)
        return found | {"keys": (2, self.heads, self.keys, half), "values": (self.keys**2, hidden)}

    def products(self, hidden: int) -> int:
        """Multiply-adds of one token: queries, scores of both halves, sum of value rows."""
        each = self.width * hidden + self.keys * self.width + self.per_token * hidden
        return self.heads * each

    def limits(self, hidden: int) -> list[Limit]:
        """The tensor axis splits value rows by columns."""
        return [Limit("tensor", "hidden", hidden)] if self.blocks else []


class MemoryShape(NamedTuple):
    """Cost of one token in an average block: multiply-adds, numbers of value rows read, scores of both
    halves, and 32-bit numbers kept for the backward pass.
    """

    products: float = 0.0
    read: float = 0.0
    scores: float = 0.0
    kept: float = 0.0

    @staticmethod
    def of(memory: ProductKeyMemory, hidden: int, num_layers: int) -> "MemoryShape":
        share, H, K = len(memory.blocks) / num_layers, memory.heads, memory.per_token
        return MemoryShape(
            products=share * memory.products(hidden),
            read=share * H * K * hidden,
            scores=share * 2 * H * memory.keys,
            kept=share * H * (3 * memory.width + 2 * memory.keys + 13 * K),
        )


NO_MEMORY = MemoryShape()
