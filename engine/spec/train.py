"""How long, how much at once, how precisely: the numbers of a training that all its roles share."""

from typing import Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from atelier.engine.spec.base import Count, Spec
from atelier.engine.spec.error import ConfigError
from atelier.engine.spec.health import Health
from atelier.engine.spec.progressive import Progressive

LAYOUT: JsonDict = {"layout": True}


class Train(Spec):
    steps: int = Field(
        default=0, ge=0, description="optimiser steps; or give tokens", json_schema_extra=LAYOUT
    )  # where it ends: schedules say when that matters
    tokens: float = Field(
        default=0,
        ge=0,
        description="training tokens, rounded up to whole steps; or give steps",
        json_schema_extra=LAYOUT,
    )
    global_batch: int = Field(ge=1, description="sequences a step, over all ranks")
    micro_batch: Count | Literal["auto"] = Field(
        default="auto", description="sequences a rank computes at once", json_schema_extra=LAYOUT
    )
    sequence: int = Field(ge=8, description="tokens a sequence")
    precision: Literal["bf16", "fp32", "fp64", "fp8"] = Field(
        default="bf16",
        description="of the arithmetic: bf16 (fp32 master weights), fp32, fp64, or fp8 (bf16 with float8 "
        "products in blocks: torchao and a GPU that has them)",
    )
    seed: int = Field(default=1, ge=0, description="of data order and initial weights")
    checkpoint_every: Count | Literal["auto"] = Field(
        default=100,
        description="steps between checkpoints; auto = by how often the pool's devices fail (engine/plan/"
        "goodput.py)",
        json_schema_extra=LAYOUT,
    )
    keep: int = Field(
        default=2,
        ge=0,
        description="checkpoints kept besides those at branch points; 0 = none once the model is finished",
        json_schema_extra=LAYOUT,
    )
    keep_every: int = Field(
        default=0,
        ge=0,
        description="checkpoints at multiples of so many steps are kept for good; 0 = none",
        json_schema_extra=LAYOUT,
    )
    keep_best: int = Field(
        default=0,
        ge=0,
        description="checkpoints of each trajectory kept for their held-out loss, the lowest ones; 0 = none",
        json_schema_extra=LAYOUT,
    )
    eval_every: int = Field(
        default=0,
        ge=0,
        description="steps between held-out losses in training; 0 = at checkpoints",
        json_schema_extra=LAYOUT,
    )
    eval_sequences: int = Field(
        default=32, ge=1, description="held-out sequences a look", json_schema_extra=LAYOUT
    )
    progressive: Progressive = Field(
        default=Progressive(), description="how sequences, batches, learning rates and dropout grow at first"
    )
    health: Health = Field(default=Health(), description="what happens when a step or a rank goes wrong")

    @model_validator(mode="after")
    def _length(self) -> "Train":
        if bool(self.steps) == bool(self.tokens):
            raise ValueError("give either steps or tokens (above 0)")
        return self

    @model_validator(mode="after")
    def _retention(self) -> "Train":
        if self.checkpoint_every == "auto":
            return self
        if self.keep_every % self.checkpoint_every:
            raise ValueError(
                f"keep_every={self.keep_every} is no multiple of checkpoint_every={self.checkpoint_every}: "
                "there would be nothing to keep at most of these steps"
            )
        if self.keep_best and self.eval_every and self.checkpoint_every % self.eval_every:
            raise ValueError(
                f"keep_best={self.keep_best} needs the held-out loss of every checkpoint, but "
                f"eval_every={self.eval_every} does not divide checkpoint_every={self.checkpoint_every}; "
                "eval_every=0 looks at checkpoints"
            )
        return self

    @property
    def save_every(self) -> int:
        """Steps between checkpoints; ConfigError while they are `auto`."""
        if self.checkpoint_every == "auto":
            raise ConfigError("train.checkpoint_every", "is auto", "plan it against a pool first")
        return self.checkpoint_every

    @property
    def num_steps(self) -> int:
        if self.steps:
            return self.steps
        grown, whole = self.progressive.steps, self.global_batch * self.sequence
        before = self.progressive.tokens_before(grown, self.global_batch, self.sequence)
        if self.tokens >= before:
            return grown - (-int(self.tokens - before) // whole)
        return next(
            step
            for step in range(1, grown + 1)
            if self.progressive.tokens_before(step, self.global_batch, self.sequence) >= self.tokens
        )

    def at(self, step: int) -> "Train":
        """The same with the batch and the sequence of this step."""
        sizes = {
            "global_batch": self.progressive.batch_at(step, self.global_batch),
            "sequence": self.progressive.sequence_at(step, self.sequence),
        }
        return self.model_copy(update=sizes) if self.progressive.steps else self
