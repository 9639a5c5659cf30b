"""An encoder and a decoder: T5 1.1 (1910.10683, 2002.05202) and CPM-2 (2106.10715). Pre-norm blocks with
RMSNorm and gated GELU; positions are a learned bias of attention scores per bucket of distances, shared by
all blocks of a side; scores are not scaled by the head width. Encoder and decoder rows have separate lengths.

D hidden, H heads, E head width, F ffn, V vocab, R buckets
"""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from atelier.engine.config.batch import ENCODER
from atelier.engine.config.blocks import Auto, MLPKind
from atelier.engine.config.registry import Limit
from atelier.engine.config.text_blocks import TextBlocks

SIDES = ("encoder", "decoder")


class EncDec(TextBlocks):
    inputs: ClassVar[tuple[str, ...]] = ENCODER
    refused_schedules: ClassVar[tuple[str, ...]] = ("zb",)

    kind: Literal["encdec"] = "encdec"
    num_layers: int = Field(ge=1, le=1000, description="blocks of the decoder")
    encoder_layers: Annotated[int, Field(ge=1, le=1000)] | Auto = Field(
        default="auto", description="blocks of the encoder; auto = as in the decoder"
    )
    mlp: MLPKind = Field(default="geglu", description="as in gpt")
    norm_eps: float = Field(default=1e-6, gt=0, description="added to the variance")
    init_std: float = Field(
        default=1.0,
        gt=0,
        description="std of the embedding; of matrices: divided by sqrt(inputs), of queries also by sqrt(E)",
    )
    tied: bool = Field(
        default=False, description="the output head shares the embedding and scales states by 1/sqrt(D)"
    )
    buckets: int = Field(
        default=32,
        ge=4,
        description="R, buckets of distances; the encoder uses half for each direction",
    )
    max_distance: int = Field(
        default=128, ge=2, description="all distances from this one on, in tokens, share a bucket"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.buckets % 4:
            raise ValueError(f"buckets {self.buckets} is not divisible by 4 (2 directions, 2 halves)")
        if self.max_distance <= self.buckets // 2:
            raise ValueError(f"max_distance {self.max_distance} is not above half of buckets {self.buckets}")
        if self.num_kv_heads not in ("auto", self.num_heads):
            raise ValueError(f"num_kv_heads is {self.num_kv_heads}; for encdec it must equal num_heads")
        if self.rope_theta != type(self).model_fields["rope_theta"].default:
            raise ValueError("rope_theta does nothing in an encdec; leave it out")
        return self

    @property
    def is_rotary(self) -> bool:
        return False

    @property
    def num_encoding(self) -> int:
        """Blocks of the encoder; they come first."""
        return self.num_layers if self.encoder_layers == "auto" else self.encoder_layers

    @property
    def num_blocks(self) -> int:
        return self.num_encoding + self.num_layers

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every weight in the plain module. The encoder's blocks come first; its final norm
        is in its last block. The head is `head.weight` unless tied.
        """
        D, wide = self.hidden, self.num_heads * self.head_width
        result: dict[str, tuple[int, ...]] = {"embed.weight": (self.tokens, D)}
        if self.soft_prompt.length:
            result["soft.weight"] = (self.soft_prompt.length, D)
        result |= {f"bias.{side}.weight": (self.num_heads, self.buckets) for side in SIDES}
        leaves = ("weight",) if self.norm == "rms" else ("weight", "bias")
        for i in range(self.num_blocks):
            block, decodes = f"blocks.{i}.", i >= self.num_encoding
            norms = ["norm1", "norm2", *(["norm3"] if decodes else [])]
            norms += ["norm"] if i == self.num_encoding - 1 else []
            result |= {f"{block}{norm}.{leaf}": (D,) for norm in norms for leaf in leaves}
            for attention in ("attention", "cross") if decodes else ("attention",):
                result |= {
                    f"{block}{attention}.{name}.weight": (wide, D) for name in ("query", "key", "value")
                }
                result[f"{block}{attention}.out.weight"] = (D, wide)
            result |= {f"{block}mlp.{name}": shape for name, shape in self.mlp_shapes(i).items()}
        result |= {f"norm.{leaf}": (D,) for leaf in leaves}
        if not self.tied:
            result["head.weight"] = (self.tokens, D)
        return result

    def block_flops(self, sequence: int) -> list[float]:
        """FLOPs of one token in each block, for rows of equal length on both sides; the last entry is the
        head.
        """
        D, wide = self.hidden, self.num_heads * self.head_width
        attention = 6.0 * 4 * D * wide + 12.0 * wide * sequence
        found = [
            6.0 * self.mlp_products(i) + attention * (2 if i >= self.num_encoding else 1)
            for i in range(self.num_blocks)
        ]
        return [*found, 6.0 * self.tokens * D]

    def limits(self) -> list[Limit]:
        """Tensor splits heads, the MLP's width and the vocabulary; expert splits experts; pipeline splits
        blocks; rows are not split.
        """
        vocab = [] if self.vocab == "auto" else [Limit("tensor", "vocab", self.tokens)]
        return [
            Limit("tensor", "num_heads", self.num_heads),
            Limit("tensor", "ffn", self.inner),
            *vocab,
            *self.expert_limits(),
            Limit("context", "kind", 1),
            Limit("stage", "encoder_layers + num_layers", self.num_blocks),
        ]

    @property
    def mixtures(self) -> list[int]:
        return [number for number in range(self.num_blocks) if self.has_experts(number)]
