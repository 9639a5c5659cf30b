"""Replaced-token detection: classify each token of a masked row as original or drawn by a generator. Binary
cross-entropy of every token (ELECTRA, 2003.10555, section 2; XLM-E, 2106.16138).

The role's `teacher` is the generator: it learns mlm and gets no gradient from here. Unlike in the paper, both
have their own embeddings, so that they can be at different sites.
"""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.error import ConfigError
from atelier.engine.config.objective.mlm import MLM
from atelier.engine.config.registry import ModelSpec, ObjectiveSpec


class Replaced(ObjectiveSpec):
    needs_teacher: ClassVar[bool] = True
    reads: ClassVar[str] = MLM.reads
    extras: ClassVar[tuple[str, ...]] = MLM.extras
    lesson: ClassVar[str] = "drawings"
    predicts: ClassVar[bool] = False
    is_of_every_token: ClassVar[bool] = True

    kind: Literal["replaced"] = "replaced"
    weight: float = Field(default=1.0, gt=0, description="share among the role's active objectives; above 0")
    delay: int = Field(
        default=0,
        ge=0,
        le=64,  # memory and the generator's checkpoints hold the drawn tokens of these steps
        description="steps d: step s learns from rows and drawn tokens of its generator's step s - d",
    )

    @property
    def steps_behind(self) -> int:
        """The `delay`."""
        return self.delay

    def check(self, place: str, key: str, model: ModelSpec, teacher: tuple[str, ModelSpec] | None) -> None:
        """Raise ConfigError if the model lacks a head of one logit, or the generator's vocabulary."""
        heads: dict[str, int] = getattr(model, "classes", {})
        if heads.get(self.kind) != 1:
            known = ", ".join(f"{name}: {size}" for name, size in heads.items()) or "none"
            raise ConfigError(
                f"{place}model.classes",
                f"objective {self.kind} needs a head of its name with one logit; heads: {known}",
                f"+{place}model.classes.{self.kind}=1" if hasattr(model, "classes") else "model=ernie_nano",
            )
        if teacher is None or "auto" in (model.vocab, teacher[1].vocab):
            return
        if model.ids != teacher[1].ids:
            raise ConfigError(
                f"{place}objective.{key}",
                f"reads tokens of {teacher[0]}'s vocabulary of {teacher[1].ids}, but has {model.ids}",
                "give both the same tokenizer",
            )
