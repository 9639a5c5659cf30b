"""Classify rows without a network, to compare with class heads: orders by likelihood of the text, distances
by overlap of two fragments, natural text by its bigrams.

B rows, T tokens of a row, N tokens of a text, V vocabulary
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from atelier.engine.config.objective.reorder import Reorder, orders
from atelier.engine.data.ngram import Trigram

EDGE = 16  # tokens at the fragments' touching ends

Batch = Mapping[str, np.ndarray]
Nats = Callable[[list[np.ndarray]], np.ndarray]  # of texts of equal length


def segments_of(batch: Batch) -> Iterator[list[np.ndarray]]:
    """The segments of each row."""
    for tokens_T, segments_T in zip(batch["tokens_BT"], batch["segments_BT"], strict=True):
        yield [tokens_T[segments_T == number] for number in range(segments_T.max() + 1)]


def likeliest(batch: Batch, spec: Reorder, nats: Nats) -> np.ndarray:
    """The class [B] whose order gives the text of fewest `nats`."""
    by_class, found = orders(spec.max_segments), []
    for segments in segments_of(batch):
        kinds = [kind for kind, order in enumerate(by_class) if len(order) == len(segments)]
        texts = [
            np.concatenate([segments[by_class[kind].index(n)] for n in range(len(segments))])
            for kind in kinds
        ]
        found.append(kinds[int(nats(texts).argmin())])
    return np.array(found)


def trigram_nats(trigram: Trigram) -> Nats:
    return lambda texts: np.array([-np.log(trigram.probabilities(text)).sum() for text in texts])


class Overlap:
    """Eleven numbers on the overlap of two fragments, weighted by rarity of tokens in `text_N`."""

    def __init__(self, text_N: np.ndarray, vocab: int) -> None:
        text_N = text_N.astype(np.int64)
        self._rarity_V = np.log(len(text_N) / (np.bincount(text_N, minlength=vocab) + 1.0))
        self._rare = float(np.median(self._rarity_V[text_N[:20000]]))

    def numbers(self, batch: Batch) -> np.ndarray:
        """[B, 11]"""
        return np.array([self._of(a.tolist(), b.tolist()) for a, b in segments_of(batch)])

    def _weight(self, tokens: set[int]) -> float:
        return float(self._rarity_V[list(tokens)].sum()) if tokens else 0.0

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


def by_overlap(overlap: Overlap, train: Sequence[Batch]) -> Callable[[Batch], np.ndarray]:
    """A classifier of a row's distance [B]: a logistic regression trained on `train`."""
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    classes = np.concatenate([batch["classes_B"] for batch in train])
    model.fit(np.concatenate([overlap.numbers(batch) for batch in train]), classes)
    return lambda batch: model.predict(overlap.numbers(batch))


def by_bigrams(train: Sequence[Batch]) -> Callable[[Batch], np.ndarray]:
    """A classifier of rows [B]: a logistic regression on tokens and pairs of tokens."""
    model: Pipeline = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\S+", sublinear_tf=True),
        LogisticRegression(C=100.0, max_iter=2000),
    )
    texts = [text for batch in train for text in _words(batch)]
    model.fit(texts, np.concatenate([batch["classes_B"] for batch in train]))
    return lambda batch: model.predict(list(_words(batch)))


def _words(batch: Batch) -> Iterator[str]:
    """Each row's tokens as numbers."""
    for tokens_T, documents_T in zip(batch["tokens_BT"], batch["documents_BT"], strict=True):
        yield " ".join(map(str, tokens_T[documents_T >= 0].tolist()))
