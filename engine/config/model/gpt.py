"""A decoder-only transformer: Llama-like by default (grouped-query attention, RoPE, SwiGLU, RMSNorm),
GPT-2-like by spec. With `num_experts` each block's MLP is a mixture of them.

D hidden, H query heads, K key/value heads, E head_dim, F ffn, V vocab, P max_positions, L num_layers,
X num_experts
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from atelier.engine.config.blocks import Blocks
from atelier.engine.config.registry import Limit


class GPT(Blocks):
    kind: Literal["gpt"] = "gpt"
    num_experts: int = Field(
        default=0, ge=0, description="experts of each block, every one an MLP of width ffn; 0 = one dense MLP"
    )
    experts_per_token: int = Field(
        default=2,
        ge=1,
        description="experts that compute each token (unused without experts); none is dropped",
    )
    positions: Literal["rope", "learned"] = Field(default="rope", description="rope or learned")
    max_positions: int = Field(
        default=2048, ge=1, description="longest sequence of learned positions, tokens (unused by rope)"
    )
    tied: bool = Field(default=True, description="output head shares the embedding")

    @model_validator(mode="after")
    def _mixes(self) -> Self:
        if self.num_experts and self.experts_per_token > self.num_experts:
            raise ValueError(
                f"experts_per_token {self.experts_per_token} is more than num_experts {self.num_experts}"
            )
        if self.num_experts and self.mlp != "swiglu":
            raise ValueError("experts are of mlp=swiglu; leave mlp away or num_experts at 0")
        return self

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
            result |= {f"{block}mlp.{name}": shape for name, shape in self._mlp_shapes().items()}
        for name in norm:
            result[f"norm.{name}"] = (D,)
        if not self.tied:
            result["head.weight"] = (self.tokens, D)
        return result

    def _mlp_shapes(self) -> dict[str, tuple[int, ...]]:
        D, F, X = self.hidden, self.inner, self.num_experts
        if X:
            return {
                "router.weight": (X, D),
                "experts.gate": (X, F, D),
                "experts.up": (X, F, D),
                "experts.down": (X, D, F),
            }
        gate = {"gate.weight": (F, D)} if self.mlp == "swiglu" else {}
        return {**gate, "up.weight": (F, D), "down.weight": (D, F)}

    def block_flops(self, sequence: int) -> list[float]:
        """FLOPs of one token in each block; the last entry is the head."""
        D, E = self.hidden, self.head_dim
        mlp = (3 if self.mlp == "swiglu" else 2) * D * self.inner
        if self.num_experts:
            mlp = mlp * self.experts_per_token + self.num_experts * D
        attention = D * E * (2 * self.num_heads + 2 * self.kv_heads)
        block = 6.0 * (mlp + attention) + 12.0 * D * sequence
        return [block] * self.num_layers + [6.0 * self.tokens * D]

    def limits(self) -> list[Limit]:
        """Heads, the MLP's width and the vocabulary are split over tensor, experts over expert, blocks over
        stages.
        """
        vocab = [] if self.vocab == "auto" else [Limit("tensor", "vocab", self.vocab)]
        experts = [Limit("expert", "num_experts", self.num_experts)] if self.num_experts else []
        return [
            Limit("tensor", "num_heads", self.num_heads),
            Limit("tensor", "num_kv_heads", self.kv_heads),
            Limit("tensor", "ffn", self.inner),
            *vocab,
            *experts,
            Limit("stage", "num_layers", self.num_layers),
        ]
