"""Replaced-token detection: which tokens of a masked row has a generator put in the place of the hidden ones?
Binary cross-entropy of every token (ELECTRA, 2003.10555, section 2; XLM-E, 2106.16138).

The role's `teacher` is the generator: it learns mlm, and is not reached by any gradient. Here both have
embeddings of their own, so that they can live at different sites; the paper's share them.
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
        le=64,  # the drawn tokens of so many steps are in memory and in each checkpoint of the generator
        description="steps d: its step s learns from the rows and the drawn tokens of its generator's s - d",
    )

    @property
    def steps_behind(self) -> int:
        """As the base's: its `delay`."""
        return self.delay

    def check(self, place: str, key: str, model: ModelSpec, teacher: tuple[str, ModelSpec] | None) -> None:
        """As the base's: the model needs a head of one logit."""
        heads: dict[str, int] = getattr(model, "classes", {})
        if heads.get(self.kind) != 1:
            known = ", ".join(f"{name}: {size}" for name, size in heads.items()) or "none"
            raise ConfigError(
                f"{place}model.classes",
                f"objective {self.kind} needs a head of one logit of that name; heads: {known}",
                f"+{place}model.classes.{self.kind}=1" if hasattr(model, "classes") else "model=ernie_nano",
            )
        if teacher is None or "auto" in (model.vocab, teacher[1].vocab):
            return
        if model.ids != teacher[1].ids:
            raise ConfigError(
                f"{place}objective.{key}",
                f"reads tokens of {teacher[0]}'s vocabulary of {teacher[1].ids}, and has {model.ids}",
                "give both the same tokenizer",
            )
