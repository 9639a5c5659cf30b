"""What stands beside the class heads in benchmarks/objectives.py: orders by a text's likelihood, and
distances by a logistic regression on what two fragments have in common.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from study import Batch, Study, tensors

from atelier.engine.config.batch import NOT_SCORED
from atelier.engine.config.objective.reorder import Reorder, orders
from atelier.engine.data.ngram import Trigram
from atelier.engine.data.tokens import TokenText
from atelier.engine.inference.scoring import label_nats

EDGE = 16  # tokens at the ends of fragments, next to each other where they are adjacent
BATCH = 100


def segments_of(batch: Batch) -> Iterator[list[np.ndarray]]:
    """The segments of each row."""
    for tokens_T, segments_T in zip(batch["tokens_BT"], batch["segments_BT"], strict=True):
        yield [tokens_T[segments_T == number] for number in range(segments_T.max() + 1)]


def likeliest(batch: Batch, spec: Reorder, nats: Callable[[list[np.ndarray]], np.ndarray]) -> np.ndarray:
    """The class [B] whose order gives the text of fewest `nats`, of texts of equal length."""
    by_class, found = orders(spec.max_segments), []
    for segments in segments_of(batch):
        kinds = [kind for kind, order in enumerate(by_class) if len(order) == len(segments)]
        texts = [
            np.concatenate([segments[by_class[kind].index(n)] for n in range(len(segments))])
            for kind in kinds
        ]
        found.append(kinds[int(nats(texts).argmin())])
    return np.array(found)


def by_teacher(study: Study) -> Callable[[list[np.ndarray]], np.ndarray]:
    """Nats of texts, read as the model reads text."""

    @torch.inference_mode()
    def nats(texts: list[np.ndarray]) -> np.ndarray:
        tokens_BT = np.stack([np.concatenate([[study.vocabulary.end_id], text]) for text in texts])
        labels_BT = np.concatenate([tokens_BT[:, 1:], np.full((len(texts), 1), NOT_SCORED)], 1)
        places_BT = np.tile(np.arange(tokens_BT.shape[1]), (len(texts), 1))
        rows = {"tokens_BT": tokens_BT, "labels_BT": labels_BT, "positions_BT": places_BT}
        batch = tensors(rows | {"documents_BT": np.zeros_like(tokens_BT)})
        return label_nats(study.model, batch).numpy().reshape(len(texts), -1).sum(1)

    return nats


def by_trigram(study: Study) -> Callable[[list[np.ndarray]], np.ndarray]:
    """Nats of texts, by a trigram over all tokens of the training text."""
    trigram = Trigram(training_text(study), study.vocabulary.size, study.vocabulary.end_id)
    return lambda texts: np.array([-np.log(trigram.probabilities(text)).sum() for text in texts])


def training_text(study: Study) -> np.ndarray:
    return TokenText(study.only("tokens"), study.scratch, "train").tokens_N.astype(np.int64)


class Overlap:
    """Eleven numbers of what two fragments have in common, weighted by how rare tokens are in the training
    text, for a logistic regression.
    """

    def __init__(self, study: Study) -> None:
        text = training_text(study)
        self._rarity_V = np.log(len(text) / (np.bincount(text, minlength=study.vocabulary.size) + 1.0))
        self._rare = float(np.median(self._rarity_V[text[:20000]]))

    def _weight(self, tokens: set[int]) -> float:
        return float(self._rarity_V[list(tokens)].sum()) if tokens else 0.0

    def numbers(self, batch: Batch) -> np.ndarray:
        """[B, 11]"""
        return np.array([self._of(a.tolist(), b.tolist()) for a, b in segments_of(batch)])

    def _of(self, a: list[int], b: list[int]) -> list[float]:
        mine, other = set(a), set(b)
        both, either = mine & other, mine | other
        near = set(a[-EDGE:]) & set(b[:EDGE])
        pairs, others = set(pairwise(a)), set(pairwise(b))
        return [
            len(both) / len(either),
            self._weight(both) / max(self._weight(either), 1e-9),
            len(both) / len(mine),
            len(both) / len(other),
            len(pairs & others) / max(1, len(pairs | others)),
            sum(self._rarity_V[token] > self._rare for token in both),
            max((self._rarity_V[token] for token in both), default=0.0),
            len(a),
            len(b),
            len(near),
            self._weight(near),
        ]


def by_overlap(study: Study, train: Any, held_out: list[Batch], most: int) -> np.ndarray:
    """The classes of the rows `held_out`, by a logistic regression that learned from `most` rows of
    `train`.
    """
    overlap = Overlap(study)
    places = np.random.default_rng(0).permutation(len(train))[:most]
    rows = [train.batch(places[n : n + BATCH]) for n in range(0, len(places), BATCH)]
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    classes = np.concatenate([batch["classes_B"] for batch in rows])
    model.fit(np.concatenate([overlap.numbers(batch) for batch in rows]), classes)
    return model.predict(np.concatenate([overlap.numbers(batch) for batch in held_out]))
