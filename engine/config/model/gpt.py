"""A decoder-only transformer: Llama-like by default (grouped-query attention, RoPE, SwiGLU, RMSNorm),
GPT-2-like by spec. With `num_experts` MLPs of blocks are mixtures of them.

D hidden, H query heads, K key/value heads, E head_dim, F ffn, V vocab, P max_positions, L num_layers
"""

from typing import Literal

from pydantic import Field

from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.registry import Limit


class GPT(MixedBlocks):
    kind: Literal["gpt"] = "gpt"
    positions: Literal["rope", "learned"] = Field(default="rope", description="rope or learned")
    max_positions: int = Field(
        default=2048, ge=1, description="longest sequence of learned positions, tokens (unused by rope)"
    )
    tied: bool = Field(default=True, description="output head shares the embedding")

    @property
    def is_rotary(self) -> bool:
        return self.positions == "rope"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight by its name in the plain module, with its shape. The head is `head.weight` unless
        tied.
        """
        D, E = self.hidden, self.head_dim
        result: dict[str, tuple[int, ...]] = {"embed.weight": (self.tokens, D)}
        if self.positions == "learned":
            result["positions.weight"] = (self.max_positions, D)
        norm: list[str] = ["weight"] if self.norm == "rms" else ["weight", "bias"]
        for i in range(self.num_layers):
            block = f"blocks.{i}."
            for name in norm:
                result[f"{block}norm1.{name}"] = (D,)
            result[f"{block}attention.query.weight"] = (self.num_heads * E, D)
            result[f"{block}attention.key.weight"] = (self.kv_heads * E, D)
            result[f"{block}attention.value.weight"] = (self.kv_heads * E, D)
            result[f"{block}attention.out.weight"] = (D, self.num_heads * E)
            for name in norm:
                result[f"{block}norm2.{name}"] = (D,)
            result |= {f"{block}mlp.{name}": shape for name, shape in self.mlp_shapes(i).items()}
        for name in norm:
            result[f"norm.{name}"] = (D,)
        if not self.tied:
            result["head.weight"] = (self.tokens, D)
        return result

    def block_flops(self, sequence: int) -> list[float]:
        """FLOPs of one token in each block; the last entry is the head."""
        D, E = self.hidden, self.head_dim
        attention = D * E * (2 * self.num_heads + 2 * self.kv_heads)
        rest = 6.0 * attention + 12.0 * D * sequence
        blocks = [6.0 * self.mlp_products(number) + rest for number in range(self.num_layers)]
        return [*blocks, 6.0 * self.tokens * D]

    def limits(self) -> list[Limit]:
        """Heads, the MLP's width and the vocabulary are split over tensor, experts over expert, blocks over
        stages.
        """
        vocab = [] if self.vocab == "auto" else [Limit("tensor", "vocab", self.vocab)]
        return [
            Limit("tensor", "num_heads", self.num_heads),
            Limit("tensor", "num_kv_heads", self.kv_heads),
            Limit("tensor", "ffn", self.inner),
            *vocab,
            *self.expert_limits(),
            Limit("stage", "num_layers", self.num_layers),
        ]
