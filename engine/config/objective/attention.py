"""Distillation of attention: KL(A_teacher || A_student) of the last layers' attention, mean over heads
(MiniLM, 2002.10957, equation 7; ERNIE 3.0 Titan, 2112.12731, section 5).
"""

from math import gcd
from typing import Literal

from pydantic import Field

from atelier.engine.config.base import Count
from atelier.engine.config.blocks import Blocks
from atelier.engine.config.divisors import largest_divisor
from atelier.engine.config.error import ConfigError
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.taught import Taught


class Attention(Taught):
    kind: Literal["attention"] = "attention"
    weight: float = Field(default=0.5, gt=0, description="share among the role's active objectives; above 0")
    relation_heads: Count | Literal["auto"] = Field(
        default="auto",
        description="relation heads into which both sides' queries and keys are split (2012.15828); auto ="
        " the student's heads",
    )
    auxiliary: bool = Field(
        default=True,
        description="compare an extra layer on top of the student, dropped at the end; false = its last"
        " block, whose MLP and output matrix then get no gradient from it",
    )

    def check(self, place: str, key: str, model: ModelSpec, teacher: tuple[str, ModelSpec] | None) -> None:
        if teacher is None:
            return
        place, (name, taught_by) = f"{place}objective.{key}.relation_heads", teacher
        heads = self.relation_heads
        if heads == "auto":
            heads = getattr(model, "num_heads", 0)
        hidden = [spec for spec in (model, taught_by) if spec.reads_encoder or not hasattr(spec, "num_heads")]
        if hidden or not heads:
            kind = hidden[0].kind if hidden else model.kind
            raise ConfigError(
                place, f"a model of kind {kind} exposes no attention", "compare logits or hidden states"
            )
        for whose, spec in (("the student", model), (name, taught_by)):
            scale = getattr(getattr(spec, "multipliers", None), "scores", "auto")
            if scale != "auto":
                raise ConfigError(
                    place.replace(".relation_heads", ""),
                    f"{whose} scales scores by {scale}, but relations need the scale of the head width",
                    "compare logits or hidden states",
                )
        own, its = _window(model), _window(taught_by)
        if own != its:
            raise ConfigError(
                place.replace(".relation_heads", ""),
                f"{name} attends to {its or 'all'} tokens in its last block, the student to {own or 'all'}",
                "use the same window, or compare logits or hidden states",
            )
        mine, theirs = _width(model), _width(taught_by)
        for whose, width in (("the student's", mine), (f"{name}'s", theirs)):
            if width % heads:
                near = largest_divisor(gcd(mine, theirs), heads)
                raise ConfigError(
                    place, f"{heads} does not divide {whose} width {width}", f"{near} would fit"
                )

    def added(self, model: ModelSpec, teacher_hidden: int) -> dict[str, tuple[int, ...]]:
        if not self.auxiliary or not isinstance(model, Blocks):
            return {}
        norm = ["weight"] if model.norm == "rms" else ["weight", "bias"]
        heads = {"query": model.num_heads, "key": model.kv_heads}
        return {f"auxiliary.norm.{name}": (model.hidden,) for name in norm} | {
            f"auxiliary.attention.{name}.weight": (number * model.head_width, model.hidden)
            for name, number in heads.items()
        }

    def divided_by_tensor(self, teacher: tuple[str, ModelSpec]) -> dict[str, int]:
        return {} if self.relation_heads == "auto" else {"{key}.relation_heads": self.relation_heads}


def _window(model: ModelSpec) -> int:
    """The attention window of the last block, in tokens; 0 = all."""
    sees = getattr(model, "has_window", None)
    return getattr(model, "window", 0) if sees is not None and sees(model.num_layers - 1) else 0


def _width(model: ModelSpec) -> int:
    """The width of all heads together."""
    heads, each = getattr(model, "num_heads", 0), getattr(model, "head_width", 0)
    return heads * each or model.hidden
