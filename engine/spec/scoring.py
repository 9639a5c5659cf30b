"""What `python -m atelier.engine.evaluate` is told. Torch-free."""

from pydantic import Field

from atelier.engine.spec.base import Spec
from atelier.engine.spec.data import Score


class Target(Spec):
    """What one model is scored on."""

    text: bool = Field(default=True, description="held-out text: loss, bits per byte and a sample")
    labels: bool = Field(default=False, description="labelled test examples: accuracy")
    shots: int | None = Field(
        default=None,
        ge=0,
        description="asked as text goes on, behind so many solved examples (GPT-3, 2005.14165); "
        "none = as a fine-tuned model is: behind the answer stands the end token",
    )


class Scoring(Spec):
    """Models by key: the input of each is `model.<key>`, its output `<key>`."""

    score: Score = Field(description="how much is scored, and in which context")
    targets: dict[str, Target] = Field(description="key of a model -> what it is scored on")
    threads: int = Field(default=1, ge=1, description="CPU threads")
