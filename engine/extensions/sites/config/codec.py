"""Codecs of contributions: fewer bits of each number, a part of the numbers, or two thin factors of each
matrix. The tensors of a message are in encoded.py. Torch-free.
"""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from atelier.engine.config.base import Json, Spec

ACTS: dict[str, str] = {
    "int8": "block",
    "int4": "block",
    "int2": "block",
    "topk": "share",
    "powersgd": "rank",
}


class Codec(Spec):
    ABSENT: ClassVar[dict[str, Json]] = {"kind": "none", "block": 256, "share": 0.01, "rank": 4}

    kind: Literal["none", "bf16", "int8", "int4", "int2", "topk", "powersgd"] = Field(
        default="none",
        description=(
            "none; bf16; int8, int4, int2: whole numbers with a scale a block; topk: only the largest"
            " numbers; powersgd: two factors of each matrix (1905.13727)"
        ),
    )
    block: int = Field(
        default=256, ge=8, le=1 << 20, multiple_of=8, description="int8, int4, int2: numbers with one scale"
    )
    share: float = Field(default=0.01, gt=0, le=1, description="topk: share of a tensor's numbers to send")
    rank: int = Field(default=4, ge=1, le=4096, description="powersgd: columns of each factor")

    @model_validator(mode="after")
    def _acts(self) -> "Codec":
        for name in ("block", "share", "rank"):
            if getattr(self, name) != type(self).model_fields[name].default and ACTS.get(self.kind) != name:
                kinds = ", ".join(kind for kind, field in ACTS.items() if field == name)
                raise ValueError(f"codec.{name} does nothing with kind={self.kind}; it is for {kinds}")
        return self

    @property
    def is_lossy(self) -> bool:
        return self.kind != "none"

    @property
    def bits(self) -> int:
        """Bits of a number of int8, int4, int2; 0 for others."""
        return int(self.kind[3:]) if self.kind.startswith("int") else 0

    @property
    def text(self) -> str:
        """For an error: int4 (block 256)."""
        field = ACTS.get(self.kind)
        return f"{self.kind} ({field} {getattr(self, field)})" if field else self.kind
