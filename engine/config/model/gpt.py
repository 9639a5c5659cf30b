"""A decoder-only transformer: by default like Llama (grouped-query attention, RoPE, SwiGLU, RMSNorm), by
fields also like GPT-2 and forms between. With `num_experts`, MLPs become mixtures of experts.

D hidden, H query heads, K key/value heads, E head width, F ffn, V vocab, P max_positions, L num_layers
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from atelier.engine.config.base import Spec
from atelier.engine.config.blocks import Auto
from atelier.engine.config.memory import ProductKeyMemory
from atelier.engine.config.registry import Limit
from atelier.engine.config.rope import Rope
from atelier.engine.config.text_blocks import TextBlocks

Biased = Literal["qkv", "out", "mlp"]


class Multipliers(Spec):
    """Constants that scale parts of a model (MiniCPM, 2404.06395; Granite; muP, 2203.03466)."""

    embedding: float = Field(default=1.0, gt=0, description="factor of embedded tokens")
    residual: float = Field(default=1.0, gt=0, description="factor of the outputs of attention and MLP")
    scores: float | Auto = Field(default="auto", description="factor of queries times keys; auto = 1/sqrt(E)")
    logits: float = Field(default=1.0, gt=0, description="factor of logits")


class GPT(TextBlocks):
    kind: Literal["gpt"] = "gpt"
    positions: Literal["rope", "learned"] = Field(default="rope", description="rope or learned")
    max_positions: int = Field(
        default=2048, ge=1, description="longest sequence for learned positions, in tokens (unused by rope)"
    )
    tied: bool = Field(default=True, description="the output head shares the embedding")
    bias: tuple[Biased, ...] = Field(default=(), description="matrices with a bias: qkv, out, mlp")
    qk_norm: bool = Field(default=False, description="RMSNorm of each head's queries and keys (2302.05442)")
    rope: Rope = Field(default=Rope(), description="frequencies of rotary positions")
    window: int = Field(default=0, ge=0, description="tokens that attention sees, own included; 0 = all")
    window_blocks: Literal["all"] | tuple[int, ...] = Field(
        default="all", description="numbers of the blocks with the window"
    )
    multipliers: Multipliers = Field(default=Multipliers(), description="constants that scale parts")

    memory: ProductKeyMemory = Field(
        default=ProductKeyMemory(), description="product-key memories beside the MLPs of some blocks"
    )
    base_width: int = Field(
        default=0,
        ge=0,
        description="muP: width for which lr and init_std are given; other widths scale them; 0 = off",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.head_dim != "auto" and self.is_rotary and self.head_dim % 2:
            raise ValueError(f"rope needs an even head width, head_dim = {self.head_dim}")
        if len(set(self.bias)) < len(self.bias):
            raise ValueError("bias has a matrix twice")
        if self.rope != Rope() and not self.is_rotary:
            raise ValueError("rope is given, but positions are learned")
        self.memory.check_blocks(self.num_layers)
        if self.window_blocks != "all":
            if not self.window:
                raise ValueError("window_blocks is given, but window is 0")
            for number in self.window_blocks:
                if not 0 <= number < self.num_layers:
                    raise ValueError(f"window_blocks has {number}, but there are {self.num_layers} blocks")
        return self

    @property
    def is_rotary(self) -> bool:
        return self.positions == "rope"

    @property
    def biased(self) -> tuple[str, ...]:
        return self.bias

    @property
    def score_scale(self) -> float:
        """Factor of queries times keys."""
        scale = self.multipliers.scores
        return self.head_width**-0.5 if scale == "auto" else scale

    @property
    def width_ratio(self) -> float:
        """m = hidden / base_width (MiniCPM, 2404.06395, appendix A); 1 without base_width."""
        return self.hidden / self.base_width if self.base_width else 1.0

    @property
    def logit_scale(self) -> float:
        """Factor of the logits; muP divides them by m."""
        return self.multipliers.logits / self.width_ratio

    def lr_factors(self) -> dict[str, float]:
        """Learning-rate factors of muP for Adam (2203.03466, table 8): 1 / m for matrices inside blocks, 1
        for embedding, head and vectors.
        """
        if self.width_ratio == 1.0:
            return {}
        found = self.shapes().items()
        inside = [name for name, shape in found if name.startswith("blocks.") and len(shape) > 1]
        return dict.fromkeys(inside, 1 / self.width_ratio)

    def has_window(self, number: int) -> bool:
        """Whether the attention of block `number` is limited to `window` tokens."""
        return bool(self.window) and (self.window_blocks == "all" or number in self.window_blocks)

    def has_memory(self, number: int) -> bool:
        """Whether block `number` has a product-key memory."""
        return number in self.memory.blocks

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every weight in the plain module. The head is `head.weight` unless tied."""
        D, E = self.hidden, self.head_width
        result: dict[str, tuple[int, ...]] = {"embed.weight": (self.tokens, D)}
        if self.soft_prompt.length:
            result["soft.weight"] = (self.soft_prompt.length, D)
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
            for which, names in (("qkv", ("query", "key", "value")), ("out", ("out",))):
                for name in names if which in self.bias else ():
                    rows = result[f"{block}attention.{name}.weight"][0]
                    result[f"{block}attention.{name}.bias"] = (rows,)
            for name in ("query_norm", "key_norm") if self.qk_norm else ():
                result[f"{block}attention.{name}.weight"] = (E,)
            for name in norm:
                result[f"{block}norm2.{name}"] = (D,)
            result |= {f"{block}mlp.{name}": shape for name, shape in self.mlp_shapes(i).items()}
            if self.has_memory(i):
                result |= {f"{block}memory.{name}": shape for name, shape in self.memory.shapes(D).items()}
        for name in norm:
            result[f"norm.{name}"] = (D,)
        if not self.tied:
            result["head.weight"] = (self.tokens, D)
        return result

    def block_flops(self, sequence: int) -> list[float]:
        """FLOPs of one token in each block; the last entry is the head."""
        D, E = self.hidden, self.head_width
        attention = D * E * (2 * self.num_heads + 2 * self.kv_heads)
        rest = 6.0 * attention + 12.0 * self.num_heads * E * sequence
        blocks = [6.0 * self.mlp_products(number) + rest for number in range(self.num_layers)]
        for number in self.memory.blocks:
            blocks[number] += 6.0 * self.memory.products(D)
        return [*blocks, 6.0 * self.tokens * D]

    def limits(self) -> list[Limit]:
        """Tensor splits heads, the MLP's width and the vocabulary; expert splits experts; pipeline splits
        blocks.
        """
        vocab = [] if self.vocab == "auto" else [Limit("tensor", "vocab", self.tokens)]
        return [
            Limit("tensor", "num_heads", self.num_heads),
            Limit("tensor", "num_kv_heads", self.kv_heads),
            Limit("tensor", "ffn", self.inner),
            *vocab,
            *self.expert_limits(),
            *self.memory.limits(self.hidden),
            Limit("stage", "num_layers", self.num_layers),
        ]
