"""Settings of outer steps: their kind, and which sites take part. Torch-free."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from atelier.engine.config.base import Json, Spec

LAYOUT: JsonDict = {"layout": True}


class Outer(Spec):
    ABSENT: ClassVar[dict[str, Json]] = {"decay": 0.95}

    kind: Literal["average", "nesterov", "sparse"] = Field(
        default="average",
        description=(
            "average of the sites' weights; nesterov: Nesterov momentum over their deltas (DiLoCo); sparse:"
            " the largest numbers of each delta, with a decaying residual (SparseLoCo, 2508.15706)"
        ),
    )
    lr: float = Field(default=1.0, gt=0, description="nesterov, sparse: outer learning rate; DiLoCo's is 0.7")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="nesterov: DiLoCo's is 0.9")
    decay: float = Field(
        default=0.95,
        gt=0,
        le=1,
        description="sparse: factor of the residual in each round; in place of a momentum",
    )

    @model_validator(mode="after")
    def _fits(self) -> "Outer":
        acts = {"lr": ("nesterov", "sparse"), "momentum": ("nesterov",), "decay": ("sparse",)}
        fields = type(self).model_fields
        for name, kinds in acts.items():
            if self.kind not in kinds and getattr(self, name) != fields[name].default:
                raise ValueError(
                    f"outer.{name} does nothing with kind={self.kind}; it is for {', '.join(kinds)}"
                )
        return self


class Membership(Spec):
    """Which sites take part in an outer step. Those that did are in the round log (round_log.py)."""

    ABSENT: ClassVar[dict[str, Json]] = {"kind": "strict", "minimum": 1}

    kind: Literal["strict", "elastic"] = Field(
        default="strict",
        description="strict: an outer step waits for all sites; elastic: late or silent sites are left out,"
        " and their samples are assigned again",
    )
    minimum: int = Field(default=1, ge=1, description="elastic: sites that an outer step needs")
    deadline: float = Field(
        default=120.0,
        gt=0,
        description="elastic: seconds to wait for the other sites once `minimum` have contributed",
        json_schema_extra=LAYOUT,  # who was in is in the round log
    )
    grace: float = Field(
        default=60.0,
        gt=0,
        description="elastic: seconds of silence after which a site is not waited for; above its longest"
        " step",
        json_schema_extra=LAYOUT,
    )
    coordinator: str = Field(
        default="",
        description="elastic: the site that decides who is in a round (default: the first by name); any ="
        " whichever comes first, where all sites reach one mailbox without agents",
        json_schema_extra=LAYOUT,
    )

    @model_validator(mode="after")
    def _fits(self) -> "Membership":
        fields = type(self).model_fields
        for name in fields if self.kind == "strict" else ():
            if getattr(self, name) != fields[name].default:
                raise ValueError(f"{name} does nothing in a strict membership; kind=elastic has it")
        return self
