"""Names of held-out measurements, and the config of `python -m atelier.engine.evaluate`. Torch-free."""

from collections.abc import Mapping
from typing import NotRequired, TypedDict

from pydantic import Field

from atelier.engine.config.base import Spec
from atelier.engine.config.data import Score
from atelier.engine.config.registry import Objectives

DIGITS = 12  # of a fingerprint in names


def held_out_name(windows: Mapping[str, int], sequence: int) -> str:
    """Name of a training's held-out windows: number of first windows by fingerprint of their tokens artifact;
    '' for none.
    """
    counts = {source[:DIGITS]: count for source, count in sorted(windows.items()) if count}
    if not counts:
        return ""
    if len(counts) == 1:
        of = next(iter(counts))
    else:
        of = " + ".join(f"{source} ({count})" for source, count in counts.items())
    return f"{sum(counts.values())} windows of {sequence} tokens of {of}"


def scored_name(tokens: str, num_tokens: int, sequence: int) -> str:
    """Name of a scored text: the first `num_tokens` held-out tokens, in windows of `sequence`."""
    return f"{num_tokens} tokens in windows of {sequence} of {tokens[:DIGITS]}"


class HeadScore(TypedDict):
    """Accuracy of a classification head. For a baseline without a network: also its name, and the accuracy of
    guessing.
    """

    right: float
    rows: int
    by: NotRequired[str]
    guess: NotRequired[float]


class Target(Spec):
    """The tests for one model."""

    text: bool = Field(default=True, description="held-out text: loss, bits per byte and a sample")
    labels: bool = Field(default=False, description="labelled test examples, scored by accuracy")
    heads: bool = Field(default=False, description="classification heads")
    shots: int | None = Field(
        default=None,
        ge=0,
        description="number of solved examples in a plain-text prompt (GPT-3, 2005.14165); none = as"
        " fine-tuned: the end token follows the answer",
    )


class Scoring(Spec):
    """What to score, by key: the model is input `model.<key>`, its scores are output `<key>`."""

    score: Score = Field(description="amount of text and length of context")
    targets: dict[str, Target] = Field(description="the tests for each model, by its key")
    heads: Objectives = Field(
        default_factory=dict, description="the classification objectives whose heads are scored"
    )
    threads: int = Field(default=1, ge=1, description="CPU threads")
