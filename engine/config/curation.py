"""Specs of corpus curation (MT-NLG 530B, 2201.11990, section 3.1): filters, near-duplicates, overlaps with
evaluation questions. Torch-free.
"""

from typing import Literal, TypedDict

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from atelier.engine.config.base import Spec
from atelier.engine.config.error import nearest
from atelier.engine.config.filters import ClassifierSpec, Filter

LAYOUT: JsonDict = {"layout": True}
READ, KEPT = "read", "kept"  # reasons of the first and the last row of a waterfall
NGRAM = 13  # words of an overlap
MOST_HASHES = 4096  # of a document


class WaterfallStep(TypedDict):
    """A row of a waterfall: documents and UTF-8 bytes that a task removed for a reason; of reasons that cut
    text out of kept documents, 0 documents.
    """

    stage: str  # the task; '' for the first and the last row
    reason: str
    documents: int
    bytes: int


class LearnedQuality(Spec):
    """Training of the classifier of the filter `quality`."""

    positives: tuple[str, ...] = Field(min_length=1, description="sources of good text")
    negatives: tuple[str, ...] = Field(min_length=1, description="sources of text to judge, or of bad text")
    most: int = Field(default=100_000, ge=1, description="documents per source, chosen by their hash")
    classifier: ClassifierSpec = Field(default=ClassifierSpec(), description="features and training")


class Deduplicate(Spec):
    """Removal of exact copies and near-copies over all sources."""

    bands: int = Field(default=14, ge=1, le=256, description="MinHash bands; documents that share one are"
                       " compared")  # fmt: skip
    rows: int = Field(
        default=8,
        ge=1,
        le=64,
        description="hashes per band; 14 x 8 finds 92 % of the pairs at Jaccard 0.8, 20 x 13 finds 68 %",
    )
    threshold: float = Field(
        default=0.8, gt=0, le=1, description="least Jaccard similarity of word 5-grams of a near-copy"
    )
    keep: Literal["verified", "component"] = Field(
        default="verified",
        description="verified: remove documents similar to a kept one; component: keep one document of"
        " each connected component (the paper's rule), where members may be dissimilar",
    )
    compared: int = Field(
        default=64, ge=1, description="most kept documents that one is compared with; others are counted"
    )
    most_removed: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="share of a source's documents; if more are near-copies, the run stops with examples",
        json_schema_extra=LAYOUT,
    )

    @model_validator(mode="after")
    def _hashes(self) -> "Deduplicate":
        if self.bands * self.rows > MOST_HASHES:
            raise ValueError(
                f"{self.bands} bands of {self.rows} rows are more than {MOST_HASHES} hashes; give fewer"
            )
        return self


class Questions(Spec):
    """An evaluation set: rows with a question and perhaps an answer, or a set as models are asked it."""

    source: str = Field(
        default="",
        description="path or glob of .jsonl or .parquet files; atelier:<path> = a file of Atelier",
    )
    set: str = Field(
        default="",
        description="in place of source: an evaluation set, as a name in conf/questions or a path of a .yaml"
        " or of rows; its passages, questions and right answers are searched for",
    )
    fields: tuple[str, ...] = Field(
        default=("question", "answer"), min_length=1, description="text fields; missing ones are left out"
    )

    @model_validator(mode="after")
    def _has_one(self) -> "Questions":
        if bool(self.source) == bool(self.set):
            raise ValueError("needs either source or set")
        return self


class Decontaminate(Spec):
    """Removal of text that overlaps with evaluation questions."""

    questions: dict[str, Questions] = Field(min_length=1, description="evaluation sets by name")
    ngram: int = Field(default=NGRAM, ge=8, le=64, description="words of an overlap")
    margin: int = Field(default=200, ge=0, description="characters removed on each side of an overlap")
    shortest: int = Field(default=200, ge=1, description="characters; shorter remaining pieces are removed")
    most_pieces: int = Field(
        default=10, ge=1, description="remaining pieces; a document with more is removed whole"
    )
    common: int = Field(
        default=10, ge=2, description="an n-gram found this often in the corpus is ignored, and listed"
    )


class Curation(Spec):
    """How the sources of a corpus are curated together."""

    filters: dict[str, Filter] = Field(default={}, description="filters by name, applied in this order")
    filtered: tuple[str, ...] = Field(default=(), description="sources to filter; empty = all")
    quality: LearnedQuality | None = Field(
        default=None, description="training of the classifier of a filter of kind quality"
    )
    repair: bool = Field(default=False, description="repair broken encodings (ftfy; extra curation)")
    personal: bool = Field(default=False, description="mask e-mail and IP addresses")
    deduplicate: Deduplicate | None = Field(default=Deduplicate(), description="remove copies; null = keep")
    decontaminate: Decontaminate | None = Field(
        default=None, description="remove overlaps with evaluation questions; null = keep"
    )
    priority: tuple[str, ...] = Field(
        default=(), description="sources whose copies are kept first; others follow, main first"
    )
    workers: int = Field(default=2, ge=1, le=1024, description="processes per task", json_schema_extra=LAYOUT)
    shards: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="shards per source; 0 = one per 32 MB, at least 8 where there are as many files",
        json_schema_extra=LAYOUT,
    )

    def check_sources(self, sources: list[str]) -> None:
        """Raise ValueError for a name that is none of the sources."""
        learned = self.quality or LearnedQuality(positives=("main",), negatives=("main",))
        named = {
            "filtered": self.filtered,
            "priority": self.priority,
            "quality.positives": learned.positives,
            "quality.negatives": learned.negatives,
            "quality.classifier.unseen": learned.classifier.unseen,
        }
        for key, names in named.items():
            for name in names:
                if name not in sources:
                    near = nearest(name, sources)
                    way_out = f"did you mean {near}?" if near else f"there are: {', '.join(sources)}"
                    raise ValueError(f"curation.{key}: there is no source {name!r}; {way_out}")

    def ranked(self, sources: list[str]) -> list[str]:
        """The sources by descending priority."""
        return [*self.priority, *(name for name in sources if name not in self.priority)]

    @model_validator(mode="after")
    def _has_classifier(self) -> "Curation":
        needs = [name for name, spec in self.filters.items() if "classifier" in spec.needs]
        if needs and self.quality is None:
            raise ValueError(
                f"curation.filters.{needs[0]} needs a classifier; give curation.quality.positives and"
                " curation.quality.negatives, names of sources"
            )
        if self.quality is not None and not needs:
            raise ValueError("curation.quality trains a classifier, but no filter of kind quality uses it")
        return self

    @model_validator(mode="after")
    def _once(self) -> "Curation":
        for key in ("filtered", "priority"):
            names = getattr(self, key)
            if len(set(names)) < len(names):
                raise ValueError(f"curation.{key}: {', '.join(names)} holds a name twice")
        return self
