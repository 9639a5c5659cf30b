"""Fields shared by models made of equal transformer blocks. Torch-free.

D hidden, H query heads, K key/value heads, E head width, F ffn, V vocab, L num_layers
"""

from math import prod
from typing import Literal, Self

from pydantic import Field, model_validator

from atelier.engine.config.base import Count
from atelier.engine.config.divisors import divisors
from atelier.engine.config.error import ConfigError
from atelier.engine.config.registry import ModelSpec

Auto = Literal["auto"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
MLPKind = Literal["swiglu", "geglu", "geglu_exact", "reglu", "gelu", "gelu_exact", "silu", "relu", "relu2"]
MLPS: dict[MLPKind, tuple[Activation, bool]] = {  # activation, and whether the MLP is gated (2002.05202)
    "swiglu": ("silu", True),
    "geglu": ("gelu_tanh", True),
    "geglu_exact": ("gelu", True),
    "reglu": ("relu", True),
    "gelu": ("gelu_tanh", False),
    "gelu_exact": ("gelu", False),
    "silu": ("silu", False),
    "relu": ("relu", False),
    "relu2": ("relu2", False),
}


class Blocks(ModelSpec):
    num_layers: int = Field(ge=1, le=1000, description="blocks")
    hidden: int = Field(ge=8, description="width D")
    num_heads: int = Field(ge=1, description="query heads; must divide hidden")
    num_kv_heads: Count | Auto = Field(
        default="auto", description="key/value heads, a divisor of num_heads; auto = num_heads"
    )
    ffn: Count | Auto = Field(
        default="auto",
        description=(
            "inner width of the MLP; auto = 8/3 hidden (gated) or 4 hidden, rounded to a multiple of 32"
        ),
    )
    mlp: MLPKind = Field(
        default="swiglu",
        description="gated: swiglu, geglu (tanh approximation), geglu_exact, reglu; not gated: gelu (tanh"
        " approximation), gelu_exact, silu, relu, relu2",
    )
    rope_theta: float = Field(default=10000.0, gt=0, description="base of the rotary frequencies")
    norm: Literal["rms", "layer"] = Field(default="rms", description="rms or layer")
    norm_eps: float = Field(default=1e-5, gt=0, description="added to the variance in norms")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="probability, on residual branches")
    init_std: float = Field(
        default=0.02, gt=0, description="std of initial weights; residual outputs: divided by sqrt(2 L)"
    )
    vocab: Count | Auto = Field(
        default="auto", description="vocabulary size; auto = the tokenizer's; a number only to plan on paper"
    )

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.has_even_heads:
            check_heads(self.hidden, self.num_heads, is_rotary=self.is_rotary)
        if self.num_kv_heads != "auto" and self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not divisible by num_kv_heads {self.num_kv_heads}"
            )
        return self

    @property
    def is_rotary(self) -> bool:
        """Whether positions are encoded by rotating queries and keys (RoPE)."""
        return True

    @property
    def has_even_heads(self) -> bool:
        """Whether the head width is hidden / num_heads."""
        return True

    @property
    def head_width(self) -> int:
        """E."""
        return self.hidden // self.num_heads

    @property
    def biased(self) -> tuple[str, ...]:
        """The matrices with a bias: qkv, out, mlp."""
        return ()

    @property
    def has_gate(self) -> bool:
        """Whether the MLP is gated."""
        return MLPS[self.mlp][1]

    @property
    def kv_heads(self) -> int:
        return self.num_heads if self.num_kv_heads == "auto" else self.num_kv_heads

    @property
    def inner(self) -> int:
        if self.ffn != "auto":
            return self.ffn
        return -(-8 * self.hidden // 3 // 32) * 32 if self.has_gate else 4 * self.hidden

    @property
    def tokens(self) -> int:
        """The vocabulary size V. Raises ConfigError while it is 'auto'."""
        if self.vocab == "auto":
            raise ConfigError(
                "model.vocab", "is auto", "it comes from the tokenizer; give a number to plan on paper"
            )
        return self.vocab

    def num_params(self) -> int:
        return sum(prod(shape) for shape in self.shapes().values())

    def flops_per_token(self, sequence: int) -> float:
        """Forward and backward FLOPs of one token: 3 x forward, 2 FLOPs per multiply-add, causal attention
        counted in full (PaLM, 2204.02311, appendix B: 6 N + 12 L D T). Embedding look-up is free, the head
        counts, and of the experts only those of a token.
        """
        return sum(self.block_flops(sequence))

    def resolved(self, vocab: int) -> Self:
        """The same model with `vocab` filled in from the tokenizer. Raises ConfigError if another number was
        configured.
        """
        if self.vocab not in ("auto", vocab):
            raise ConfigError(
                "model.vocab", f"is {self.vocab}, but the tokenizer has {vocab} tokens", "leave vocab=auto"
            )
        return self.model_copy(update={"vocab": vocab})


def check_heads(hidden: int, num_heads: int, *, is_rotary: bool = True, place: str = "") -> None:
    """Raise ValueError unless num_heads divides hidden and, with RoPE, the head width is even."""
    if hidden % num_heads:
        fits = [h for h in divisors(hidden, hidden) if hidden // h >= 8]
        near = min(fits or [1], key=lambda h: abs(h - num_heads))
        raise ValueError(
            f"{place}hidden {hidden} is not divisible by {place}num_heads {num_heads};"
            f" {place}num_heads={near} would fit"
        )
    if is_rotary and (hidden // num_heads) % 2:
        raise ValueError(
            f"rope needs an even head width, {place}hidden/{place}num_heads = {hidden // num_heads}"
        )
