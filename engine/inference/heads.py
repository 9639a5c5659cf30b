"""Accuracy of class heads on held-out rows, and of simple rules without a network.

B rows, T tokens of a row
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from atelier.engine.config.error import ConfigError
from atelier.engine.config.evaluation import HeadScore
from atelier.engine.config.objective.distance import Distance
from atelier.engine.config.objective.natural import Natural
from atelier.engine.config.objective.reorder import Reorder
from atelier.engine.config.row_classes import RowClasses
from atelier.engine.data.blend import Dataset
from atelier.engine.data.corpus import HELD_OUT, TRAIN
from atelier.engine.data.datasets.load import rows_of
from atelier.engine.data.ngram import Trigram
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.inference.models import TextModel
from atelier.engine.inference.scoring import row_class_logits
from atelier.engine.io.artifact import ArtifactInput

SEED = 0  # of rows, the same for every model
AT_ONCE = 16  # rows per forward pass
TRAINED_ON = 4000  # maximum of training rows for a logistic regression

Batch = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class HeadExam:
    """The rows for scoring heads: the first `number` in a fixed order, by kind of objective."""

    specs: Mapping[str, RowClasses]
    sources: Mapping[str, ArtifactInput]  # by kind of artifact
    vocabulary: Vocabulary
    scratch: Path
    sequence: int
    number: int

    def batches(self, kind: str, split: str = HELD_OUT, most: int = 0) -> Iterator[Batch]:
        spec = self.specs[kind]
        rows: Dataset = rows_of(kind).open_rows(
            spec, self.sources[spec.source], self.vocabulary, self.scratch, split=split,
            sequence=spec.row_tokens(self.sequence), seed=SEED,
        )  # fmt: skip
        order = np.random.default_rng(SEED).permutation(len(rows))[: most or self.number]
        for first in range(0, len(order), AT_ONCE):
            yield rows.batch(np.sort(order[first : first + AT_ONCE]))

    def shares(self, kind: str, said: Callable[[Batch], np.ndarray]) -> HeadScore:
        """The share of rows whose class `said` predicts right."""
        is_right = [said(batch) == batch["classes_B"] for batch in self.batches(kind)]
        return {"right": float(np.concatenate(is_right).mean()), "rows": sum(map(len, is_right))}


def judged(model: TextModel, exam: HeadExam) -> dict[str, HeadScore]:
    """The accuracy of each head of the model, by kind of objective."""
    return {kind: exam.shares(kind, partial(said_by, model, spec)) for kind, spec in exam.specs.items()}


def said_by(model: TextModel, spec: RowClasses, batch: Batch) -> np.ndarray:
    """The class [B] with the largest logit of the model's head."""
    given = {name: torch.from_numpy(values) for name, values in batch.items()}
    return row_class_logits(model, spec, given).argmax(1).cpu().numpy()


def without_network(exam: HeadExam, trigram: Trigram, text_N: np.ndarray) -> dict[str, HeadScore]:
    """The accuracy of a simple rule, and of always predicting one class, by kind of objective; `trigram` was
    trained on `text_N`. Raises ConfigError for a kind without a rule.
    """
    # scikit-learn takes a second to import
    rivals = importlib.import_module("atelier.engine.inference.rivals")
    found: dict[str, HeadScore] = {}
    for kind, spec in exam.specs.items():
        guess = 1 / spec.num_classes
        if isinstance(spec, Reorder):  # a row shows its number of segments
            guess = spec.max_segments / spec.num_classes
            said = partial(rivals.likeliest, spec=spec, nats=rivals.trigram_nats(trigram))
            by = "order of fewest nats by a trigram"
        elif isinstance(spec, Distance):
            overlap = rivals.Overlap(text_N, exam.vocabulary.size)
            said = rivals.by_overlap(overlap, list(exam.batches(kind, TRAIN, TRAINED_ON)))
            by = "logistic regression on overlap"
        elif isinstance(spec, Natural):
            said = rivals.by_bigrams(list(exam.batches(kind, TRAIN, TRAINED_ON)))
            by = "logistic regression on bigrams"
        else:
            raise ConfigError(f"config.heads.{kind}", "no rule to compare it with", "leave it out")
        share = exam.shares(kind, said)
        found[kind] = HeadScore(right=share["right"], rows=share["rows"], by=by, guess=guess)
    return found
