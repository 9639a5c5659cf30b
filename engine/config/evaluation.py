"""Names of held-out measurements, and the config of `python -m atelier.engine.evaluate`. Torch-free."""

from collections.abc import Mapping
from typing import NotRequired, TypedDict

from pydantic import Field

from atelier.engine.config.base import Spec
from atelier.engine.config.data import Score
from atelier.engine.config.registry import Objectives

DIGITS = 12  # of a fingerprint


def held_out_name(windows: Mapping[str, int], sequence: int) -> str:
    """Name of the held-out windows of a training: so many first windows of the held-out split of each tokens
    artifact, by fingerprint; '' for none.
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
    """Name of a scored text: so many first held-out tokens of a tokens artifact, in windows of `sequence`."""
    return f"{num_tokens} tokens in windows of {sequence} of {tokens[:DIGITS]}"


class HeadScore(TypedDict):
    """The share of right rows of an objective of classes; of a baseline without a network also its name, and
    the share by guessing.
    """

    right: float
    rows: int
    by: NotRequired[str]
    guess: NotRequired[float]


class Target(Spec):
    """The tests that one model is scored on."""

    text: bool = Field(default=True, description="held-out text: loss, bits per byte and a sample")
    labels: bool = Field(default=False, description="labelled test examples: accuracy")
    heads: bool = Field(default=False, description="its heads of classes")
    shots: int | None = Field(
        default=None,
        ge=0,
        description="prompted as plain text, behind so many solved examples (GPT-3, 2005.14165); "
        "none = as a fine-tuned model: the end token follows the answer",
    )


class Scoring(Spec):
    """Models by key: the input of each is `model.<key>`, its output `<key>`."""

    score: Score = Field(description="how much is scored, and in which context")
    targets: dict[str, Target] = Field(description="key of a model -> what it is scored on")
    heads: Objectives = Field(
        default_factory=dict, description="the objectives of classes whose heads are judged"
    )
    threads: int = Field(default=1, ge=1, description="CPU threads")
