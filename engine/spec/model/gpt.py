"""A decoder-only transformer: Llama-like by default (grouped-query attention, RoPE, SwiGLU, RMSNorm),
GPT-2-like by spec. With `num_experts` each block's MLP is a mixture of them.

D hidden, H query heads, K key/value heads, E head_dim, F ffn, V vocab, P max_positions, L num_layers,
X num_experts
"""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from engine.spec.base import Count
from engine.spec.error import ConfigError
from engine.spec.kinds import Limit, ModelSpec

Auto = Literal["auto"]


class GPT(ModelSpec):
    kind: Literal["gpt"] = "gpt"
    num_layers: int = Field(ge=1, le=1000, description="blocks")
    hidden: int = Field(ge=8, description="width D")
    num_heads: int = Field(ge=1, description="query heads; must divide hidden")
    num_kv_heads: Count | Auto = Field(
        default="auto", description="key/value heads, a divisor of num_heads; auto = num_heads"
    )
    ffn: Count | Auto = Field(
        default="auto",
        description=(
            "inner width of the MLP; auto = 8/3 hidden (swiglu) or 4 hidden (gelu), to a multiple of 32"
        ),
    )
    mlp: Literal["swiglu", "gelu"] = Field(default="swiglu", description="swiglu or gelu")
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
    rope_theta: float = Field(default=10000.0, gt=0, description="base of the rotary frequencies")
    norm: Literal["rms", "layer"] = Field(default="rms", description="rms or layer")
    norm_eps: float = Field(default=1e-5, gt=0, description="added to the variance")
    tied: bool = Field(default=True, description="output head shares the embedding")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="probability, on the residual branches")
    init_std: float = Field(
        default=0.02, gt=0, description="normal initialisation; residual outputs by 1/sqrt(2 L) of it"
    )
    vocab: Count | Auto = Field(
        default="auto", description="tokens; auto = from the tokenizer, by hand only to plan on paper"
    )

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.hidden % self.num_heads:
            fits = [h for h in range(1, self.hidden + 1) if self.hidden % h == 0 and self.hidden // h >= 8]
            near = min(fits, key=lambda h: abs(h - self.num_heads))
            raise ValueError(
                f"hidden {self.hidden} is not divisible by num_heads {self.num_heads}; num_heads={near}"
                " would fit"
            )
        if (self.hidden // self.num_heads) % 2 and self.positions == "rope":
            raise ValueError(
                f"rope needs an even head width, hidden/num_heads = {self.hidden // self.num_heads}"
            )
        if self.num_experts and self.experts_per_token > self.num_experts:
            raise ValueError(
                f"experts_per_token {self.experts_per_token} is more than num_experts {self.num_experts}"
            )
        if self.num_experts and self.mlp != "swiglu":
            raise ValueError("experts are of mlp=swiglu; leave mlp away or num_experts at 0")
        if self.num_kv_heads != "auto" and self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not divisible by num_kv_heads {self.num_kv_heads}"
            )
        return self

    @property
    def head_dim(self) -> int:
        return self.hidden // self.num_heads

    @property
    def kv_heads(self) -> int:
        return self.num_heads if self.num_kv_heads == "auto" else self.num_kv_heads

    @property
    def inner(self) -> int:
        if self.ffn != "auto":
            return self.ffn
        return 4 * self.hidden if self.mlp == "gelu" else -(-8 * self.hidden // 3 // 32) * 32

    @property
    def tokens(self) -> int:
        """V, the size of the vocabulary; an error while it is still 'auto'."""
        if self.vocab == "auto":
            raise ConfigError(
                "model.vocab", "is auto", "it comes from the tokenizer; give a number to plan on paper"
            )
        return self.vocab

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

    def num_params(self) -> int:
        total = 0
        for shape in self.shapes().values():
            count = 1
            for size in shape:
                count *= size
            total += count
        return total

    def flops_per_token(self, sequence: int) -> float:
        """Forward and backward FLOPs of one token, causal attention counted in full: 3 x forward, 2 FLOPs a
        multiply-add (PaLM, 2204.02311, appendix B: 6 N + 12 L D T, embedding look-up free, head counted; of
        the experts those that a token meets).
        """
        return sum(self.block_flops(sequence))

    def block_flops(self, sequence: int) -> list[float]:
        """FLOPs of one token in each block, and at last in the head."""
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

    def resolved(self, vocab: int) -> Self:
        """The same model with its vocabulary filled in from the tokenizer; refuses another number given by
        hand.
        """
        if self.vocab not in ("auto", vocab):
            raise ConfigError(
                "model.vocab", f"is {self.vocab}, but the tokenizer has {vocab} tokens", "leave vocab=auto"
            )
        return self.model_copy(update={"vocab": vocab})

    def arguments(self) -> dict[str, Any]:
        """Plain JSON for a model's config.json."""
        return self.model_dump(mode="json")
