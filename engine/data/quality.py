"""A classifier of good and bad documents: logistic regression on hashed words and pairs of words, trained by
L-BFGS. The rule that keeps documents by its score is that of GPT-3 (2005.14165, appendix A) with the alpha of
MT-NLG (2201.11990).

Equal inputs give equal bits: no random numbers, and sums in a fixed order.

Shape letters: D documents, F features of all documents, B buckets.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
from safetensors.numpy import load_file, save_file

from atelier.engine.config.base import Json
from atelier.engine.config.error import DataError
from atelier.engine.config.filters import ClassifierSpec
from atelier.engine.config.seed import seed_of
from atelier.engine.data.corpus import fraction
from atelier.engine.data.counter_rng import mixed, uniform
from atelier.engine.data.filter_text import DocumentText

WEIGHTS, ABOUT = "quality.safetensors", "quality.json"
VERSION = 1  # of the features
ALPHA = 3.0  # of MT-NLG
MEMORY = 10  # steps that L-BFGS remembers
SMALL = 1e-7  # the largest entry of a gradient that ends the training
_PAIR = np.uint64(3)
Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]  # a function's value and gradient at a point


class QualityExample(NamedTuple):
    """A document to train on. `source`: name of the collection that it is from."""

    text: str
    source: str = ""


@dataclass(frozen=True)
class QualityClassifier:
    """`weights_B`: float32. `report`: documents and accuracy of the held-out documents by source."""

    spec: ClassifierSpec
    weights_B: np.ndarray
    bias: float
    report: dict[str, Json]

    def score(self, text: DocumentText) -> float:
        """The probability that the document is good, 0 to 1; of its first spec.max_chars characters."""
        if len(text.text) > self.spec.max_chars:
            text = DocumentText(text.text[: self.spec.max_chars])
        buckets = features(text, self.spec.bits)
        margin = float(self.weights_B[buckets].sum(dtype=np.float64)) / math.sqrt(max(1, len(buckets)))
        return float(np.exp(-np.logaddexp(0, -(margin + self.bias))))

    def save(self, folder: Path) -> None:
        """Write quality.safetensors and quality.json."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file({"weights": self.weights_B}, folder / WEIGHTS)
        about = {"version": VERSION, "spec": self.spec.model_dump(mode="json"), "bias": self.bias}
        (folder / ABOUT).write_text(json.dumps({**about, "report": self.report}, indent=1) + "\n")

    @staticmethod
    def load(folder: Path) -> "QualityClassifier":
        """Raises DataError if the folder holds no classifier, or one of another version of this code."""
        place, way_out = f"{folder}", "train the classifier again"
        try:
            about = json.loads((folder / ABOUT).read_text())
            weights_B = load_file(folder / WEIGHTS)["weights"]
            version, bias, report = about["version"], float(about["bias"]), dict(about["report"])
            spec = ClassifierSpec.model_validate(about["spec"])
        except OSError as error:
            raise DataError(f"{place}: no quality classifier ({error.strerror}); {way_out}") from None
        except Exception as error:  # of json, safetensors and pydantic
            raise DataError(f"{place}: damaged quality classifier ({error}); {way_out}") from None
        if version != VERSION:
            raise DataError(f"{place}: quality classifier of version {version}, not {VERSION}; {way_out}")
        if (
            weights_B.shape != (1 << spec.bits,)
            or not math.isfinite(bias)
            or not np.isfinite(weights_B).all()
        ):
            raise DataError(f"{place}: damaged quality classifier {weights_B.shape}; {way_out}")
        return QualityClassifier(spec, weights_B, bias, report)


def train_quality(
    positives: Iterable[QualityExample], negatives: Iterable[QualityExample], spec: ClassifierSpec
) -> QualityClassifier:
    """Train on good and bad documents, both classes with equal weight. Held out are a share of the documents
    by the hash of their text, so that copies fall on one side, and the sources of spec.unseen. Raises
    DataError if a class has no document to train on.
    """
    trained, tested = _Documents(), _Documents()
    for label, examples in ((1, positives), (0, negatives)):
        for example in examples:
            is_tested = example.source in spec.unseen or fraction(example.text) < spec.held_out
            (tested if is_tested else trained).add(example, label, spec)
    for label, name in ((1, "positives"), (0, "negatives")):
        if label not in trained.labels:
            way_out = "give more texts, or fewer unseen sources"
            raise DataError(f"quality: the {name} have no document to train on; {way_out}")
    weights_B, bias = _fitted(trained, spec)
    stored_B = weights_B.astype(np.float32)
    report: dict[str, Json] = {
        "trained": len(trained.labels),
        "without_words": trained.empty + tested.empty,
        "held_out": _accuracies(tested, stored_B, bias, spec.unseen),
    }
    return QualityClassifier(spec, stored_B, bias, report)


def features(text: DocumentText, bits: int) -> np.ndarray:
    """The buckets of the distinct words and pairs of neighbouring words, sorted (int64)."""
    words = text.words
    spelled = (crc32(word.encode(errors="surrogatepass")) for word in words.index)
    hashes_V = mixed(np.fromiter(spelled, dtype=np.uint64, count=len(words.index)))
    hashes_W = hashes_V[words.ids_W]
    pairs = mixed(hashes_W[:-1] * _PAIR + hashes_W[1:])
    return np.unique(np.concatenate([hashes_V, pairs]) >> np.uint64(64 - bits)).astype(np.int64)


class _Documents:
    """Documents as features; those without words are only counted."""

    def __init__(self) -> None:
        self.labels: list[int] = []
        self.sources: list[str] = []
        self.empty = 0
        self._buckets: list[np.ndarray] = []

    def add(self, example: QualityExample, label: int, spec: ClassifierSpec) -> None:
        buckets = features(DocumentText(example.text[: spec.max_chars]), spec.bits)
        if not len(buckets):
            self.empty += 1
            return
        self.labels.append(label)
        self.sources.append(example.source)
        self._buckets.append(buckets.astype(np.int32))

    def matrix(self) -> "_FeatureRows":
        sizes_D = np.array([len(each) for each in self._buckets], dtype=np.int64)
        return _FeatureRows(
            np.concatenate([np.zeros(0, np.int32), *self._buckets]), sizes_D, 1 / np.sqrt(sizes_D)
        )


class _FeatureRows(NamedTuple):
    """Rows of unit length with equal entries in the buckets of each document."""

    buckets_F: np.ndarray
    sizes_D: np.ndarray
    scales_D: np.ndarray

    def times(self, weights_B: np.ndarray) -> np.ndarray:
        """[D]: the product of each row with the weights."""
        begins_D = np.cumsum(self.sizes_D) - self.sizes_D
        return np.add.reduceat(weights_B[self.buckets_F], begins_D, dtype=np.float64) * self.scales_D

    def transposed_times(self, values_D: np.ndarray, buckets: int) -> np.ndarray:
        """[B]: the sum of the rows, each times its value."""
        values_F = np.repeat(values_D * self.scales_D, self.sizes_D)
        return np.bincount(self.buckets_F, weights=values_F, minlength=buckets)


def _fitted(documents: _Documents, spec: ClassifierSpec) -> tuple[np.ndarray, float]:
    """Weights and bias of the least loss."""
    point = minimised(_loss(documents, spec), np.zeros((1 << spec.bits) + 1), spec.rounds)
    return point[:-1], float(point[-1])


def _loss(documents: _Documents, spec: ClassifierSpec) -> Loss:
    """The mean log loss, both classes counted alike, plus weight decay; a function of [weights, bias]."""
    rows, labels_D = documents.matrix(), np.array(documents.labels, dtype=np.float64)
    shares_D = np.where(labels_D == 1, 0.5 / labels_D.sum(), 0.5 / (1 - labels_D).sum())
    buckets = 1 << spec.bits

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        weights_B = point[:-1]
        margins_D = rows.times(weights_B) + point[-1]
        losses_D = np.logaddexp(0, margins_D) - labels_D * margins_D
        errors_D = shares_D * (np.exp(-np.logaddexp(0, -margins_D)) - labels_D)
        slope_B = rows.transposed_times(errors_D, buckets) + spec.l2 * weights_B
        decay = spec.l2 / 2 * _dot(weights_B, weights_B)
        return _dot(shares_D, losses_D) + decay, np.append(slope_B, errors_D.sum())

    return loss


def minimised(function: Loss, point: np.ndarray, rounds: int) -> np.ndarray:
    """The minimum of a convex function, by L-BFGS (Nocedal and Wright
    2006, algorithms 7.4 and 7.5) with halved steps (Armijo).
    """
    value, slope = function(point)
    steps: list[tuple[np.ndarray, np.ndarray]] = []  # step, and change of the gradient
    for _ in range(rounds):
        if float(np.abs(slope).max()) < SMALL:
            break
        direction = -_scaled(slope, steps)
        gain, size = _dot(slope, direction), 1.0 if steps else 1 / math.sqrt(_dot(slope, slope))
        while True:
            new_point = point + size * direction
            new_value, new_slope = function(new_point)
            if new_value <= value + 1e-4 * size * gain:
                break
            size /= 2
            if size < 1e-10:  # no lower value within the numbers' precision
                return point
        step, change = new_point - point, new_slope - slope
        if _dot(step, change) > 0:
            steps = [*steps, (step, change)][-MEMORY:]
        point, value, slope = new_point, new_value, new_slope
    return point


def _scaled(slope: np.ndarray, steps: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """The gradient times the approximate inverse of the Hessian."""
    result, factors = slope.copy(), list[float]()
    for step, change in reversed(steps):
        factors.append(_dot(step, result) / _dot(step, change))
        result -= factors[-1] * change
    if steps:
        step, change = steps[-1]
        result *= _dot(step, change) / _dot(change, change)
    for step, change in steps:
        result += (factors.pop() - _dot(change, result) / _dot(step, change)) * step
    return result


def _dot(one: np.ndarray, other: np.ndarray) -> float:
    """The scalar product. Other than a BLAS, the same bits on any number of threads."""
    return float((one * other).sum())


def _accuracies(
    documents: _Documents, weights_B: np.ndarray, bias: float, unseen: Sequence[str]
) -> dict[str, Json]:
    """By source: how many held-out documents are good and bad, and the share that the classifier tells
    rightly at a score of one half.
    """
    if not documents.labels:
        return {}
    labels_D = np.array(documents.labels)
    is_right_D = (documents.matrix().times(weights_B) + bias > 0) == (labels_D == 1)
    sources_D, found = np.array(documents.sources), dict[str, Json]()
    for source in sorted(set(documents.sources)):
        is_from_D = sources_D == source
        found[source] = {
            "good": int(labels_D[is_from_D].sum()),
            "bad": int((1 - labels_D[is_from_D]).sum()),
            "accuracy": float(is_right_D[is_from_D].mean()),
            "unseen": source in unseen,
        }
    return found


def keeps(score: float, key: str, seed: int, alpha: float = ALPHA) -> bool:
    """Whether a document with this score is kept: if a Pareto draw exceeds 1 - score. The draw is a pure
    function of seed and key.
    """
    return pareto(key, seed, alpha) > 1 - score


def pareto(key: str, seed: int, alpha: float) -> float:
    """A draw of np.random.pareto(alpha), the Lomax distribution: P(draw > x) = (1 + x)^-alpha."""
    keys = np.array([seed_of(seed, "quality", key)], dtype=np.uint64)
    return float((1 - uniform(keys, 0, 0)[0]) ** (-1 / alpha) - 1)


def expected_refused(scores: Sequence[float] | np.ndarray, alpha: float = ALPHA) -> float:
    """The share of documents with these scores that `keeps` refuses in the mean of all draws."""
    scores_D = np.asarray(scores, dtype=np.float64)
    return float((1 - (2 - scores_D) ** -alpha).mean()) if len(scores_D) else 0.0
