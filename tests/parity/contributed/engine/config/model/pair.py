"""An encoder and a decoder of blocks of their own; each decoder block has a mixture of experts whose router
has a z-loss (2202.08906, equation 5) and a bias that balances it without a loss (2408.15664).

D hidden, F inner width, V vocabulary, X experts
"""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.batch import ENCODER
from atelier.engine.config.blocks import Blocks
from atelier.engine.config.registry import Limit


class Pair(Blocks):
    inputs: ClassVar[tuple[str, ...]] = ENCODER

    kind: Literal["pair"] = "pair"
    encoder_layers: int = Field(default=2, ge=1, description="blocks of the encoder; the rest decode")
    num_experts: int = Field(default=4, ge=2, description="experts of a decoder block")
    z_weight: float = Field(default=0.01, ge=0, description="weight of the router's z-loss")
    bias_rate: float = Field(default=0.01, gt=0, description="how far a step moves a router's bias")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, F, X = self.hidden, self.inner, self.num_experts
        found: dict[str, tuple[int, ...]] = {"embed.weight": (self.tokens, D)}
        square = ("query", "key", "value", "out")
        for i in range(self.num_layers):
            block = f"blocks.{i}."
            found |= {f"{block}norm1.weight": (D,)}
            found |= {f"{block}attention.{name}.weight": (D, D) for name in square}
            if i >= self.encoder_layers:
                found |= {f"{block}norm3.weight": (D,)}
                found |= {f"{block}cross.{name}.weight": (D, D) for name in square}
            found |= {f"{block}norm2.weight": (D,)}
            if i < self.encoder_layers:
                found |= {f"{block}mlp.up.weight": (F, D), f"{block}mlp.down.weight": (D, F)}
            else:
                found |= {f"{block}mlp.bias": (X,), f"{block}mlp.router.weight": (X, D)}
                found |= {f"{block}mlp.experts.{name}": (X, F, D) for name in ("gate", "up")}
                found |= {f"{block}mlp.experts.down": (X, D, F)}
        return found | {"norm.weight": (D,)}

    def block_flops(self, sequence: int) -> list[float]:
        D, F = self.hidden, self.inner
        encoder, decoder = 4 * D * D + 2 * D * F, 8 * D * D + 3 * D * F + D * self.num_experts
        layers = [encoder] * self.encoder_layers + [decoder] * (self.num_layers - self.encoder_layers)
        return [6.0 * each + 12.0 * D * sequence for each in layers] + [6.0 * self.tokens * D]

    def limits(self) -> list[Limit]:
        vocab = [] if self.vocab == "auto" else [Limit("tensor", "vocab", self.vocab)]
        return [
            Limit("tensor", "num_heads", self.num_heads),
            Limit("tensor", "ffn", self.inner),
            *vocab,
            Limit("expert", "num_experts", self.num_experts),
            Limit("stage", "num_layers", self.num_layers),
        ]
