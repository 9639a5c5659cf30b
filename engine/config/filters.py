"""Specs of corpus curation: document filters and the quality classifier. Filter `c4` of group `filter` is
engine/config/filter/c4.py, and its function engine/data/filter/c4.py. Torch-free.
"""

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, SerializeAsAny

from atelier.engine.config.base import Kind, Spec
from atelier.engine.config.registry import KindChooser


class FilterSpec(Kind):
    """Rules that refuse a document by its text alone. Limits are called `min_` or `max_`; 0 = off."""

    needs: ClassVar[tuple[str, ...]] = ()  # artifacts that its check reads: classifier

    kind: str


Filter = Annotated[SerializeAsAny[FilterSpec], BeforeValidator(KindChooser("filter"))]


class ClassifierSpec(Spec):
    """Training of the quality classifier: logistic regression on hashed words and pairs of words."""

    bits: int = Field(
        default=18, ge=8, le=24, description="words and pairs are hashed into 2^bits buckets, 4 bytes each"
    )
    l2: float = Field(
        default=1e-5, gt=0, le=1, description="weight decay: half of the sum of squares, times this"
    )
    rounds: int = Field(default=60, ge=1, le=1000, description="iterations of L-BFGS at most")
    max_chars: int = Field(
        default=100_000, ge=100, description="characters read from the beginning of each document"
    )
    held_out: float = Field(
        default=0.1, gt=0, lt=0.9, description="share of documents held out for testing, by their hash"
    )
    unseen: tuple[str, ...] = Field(
        default=(), description="sources that are held out as a whole, to test on sources not trained on"
    )
