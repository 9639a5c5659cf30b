"""The quality classifier: equal inputs give equal bits, its gradient is right, its draws are Pareto's."""

import json
import math
import random

import numpy as np
import pytest

from atelier.engine.config.error import DataError
from atelier.engine.config.filter.quality import Quality
from atelier.engine.config.filters import ClassifierSpec
from atelier.engine.data import quality
from atelier.engine.data.filter.quality import build
from atelier.engine.data.filter_text import DocumentText
from atelier.engine.data.quality import (
    QualityClassifier,
    QualityExample,
    expected_refused,
    keeps,
    minimised,
    pareto,
    train_quality,
)

SPEC = ClassifierSpec(bits=12, held_out=0.3, unseen=("c",))
GOOD = ["the", "cat", "sat", "on", "a", "mat", "and", "slept", "well"]
BAD = ["buy", "now", "cheap", "pills", "click", "here", "win", "cash"]


def examples(words: list[str], number: int, seed: int) -> list[QualityExample]:
    rng = random.Random(seed)
    mixed = words * 3 + GOOD + BAD
    return [QualityExample(" ".join(rng.choices(mixed, k=20)), rng.choice("abc")) for _ in range(number)]


@pytest.fixture(scope="module")
def trained() -> QualityClassifier:
    return train_quality(examples(GOOD, 300, 1), examples(BAD, 300, 2), SPEC)


def test_good_words_score_above_bad_ones_on_held_out_documents_of_every_source(trained) -> None:
    found = trained.report["held_out"]
    assert set(found) == {"a", "b", "c"} and [found[name]["unseen"] for name in "abc"] == [False, False, True]
    assert all(each["accuracy"] > 0.9 for each in found.values())
    counted = sum(each["good"] + each["bad"] for each in found.values())
    assert counted + trained.report["trained"] == 600
    assert (
        trained.score(DocumentText("the cat slept"))
        > 0.9
        > 0.1
        > trained.score(DocumentText("click here now"))
    )


def test_words_without_meaning_for_the_class_are_not_told(trained) -> None:
    same = train_quality(examples(GOOD, 300, 1), examples(GOOD, 300, 3), SPEC)
    assert all(abs(each["accuracy"] - 0.5) < 0.15 for each in same.report["held_out"].values())


def test_training_twice_and_a_saved_classifier_give_the_same_bits(trained, tmp_path) -> None:
    again = train_quality(iter(examples(GOOD, 300, 1)), iter(examples(BAD, 300, 2)), SPEC)
    assert np.array_equal(again.weights_B, trained.weights_B) and again.bias == trained.bias
    trained.save(tmp_path)
    loaded = QualityClassifier.load(tmp_path)
    texts = [DocumentText(one.text) for one in examples(GOOD, 20, 5)]
    assert [loaded.score(text) for text in texts] == [trained.score(text) for text in texts]
    assert loaded.report == trained.report and loaded.spec == SPEC
    assert b"pickle" not in (tmp_path / quality.WEIGHTS).read_bytes()[:200]


def test_a_missing_damaged_or_other_classifier_is_refused_with_the_way_out(trained, tmp_path) -> None:
    with pytest.raises(DataError, match=r"no quality classifier.*train"):
        QualityClassifier.load(tmp_path)
    trained.save(tmp_path)
    about = json.loads((tmp_path / quality.ABOUT).read_text())
    for change in ({"version": 2}, {"bias": "x"}, {"spec": {"bits": 13}}):
        (tmp_path / quality.ABOUT).write_text(json.dumps(about | change))
        with pytest.raises(DataError, match="train the classifier again"):
            QualityClassifier.load(tmp_path)


def test_a_class_without_documents_is_refused() -> None:
    with pytest.raises(DataError, match="negatives have no document"):
        train_quality(examples(GOOD, 30, 1), [QualityExample("a b", "c"), QualityExample(" ", "a")], SPEC)


def loss_of(times: int, spec: ClassifierSpec) -> quality.Loss:
    """The loss of some documents, the bad ones several times."""
    documents = quality._Documents()
    for label, some in ((1, examples(GOOD, 9, 1)), (0, examples(BAD, 3, 2) * times)):
        for example in some:
            documents.add(example, label, spec)
    return quality._loss(documents, spec)


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    loss, rng = loss_of(1, ClassifierSpec(bits=8, l2=0.1)), np.random.default_rng(0)
    point = rng.normal(size=257)
    for _ in range(5):
        step = rng.normal(size=257) * 1e-5
        slope = (loss(point + step)[0] - loss(point - step)[0]) / 2
        assert math.isclose(slope, float(loss(point)[1] @ step), rel_tol=1e-6)


def test_a_rare_class_counts_as_much_as_a_frequent_one() -> None:
    point = np.random.default_rng(0).normal(size=257)
    once, often = (loss_of(times, ClassifierSpec(bits=8))(point) for times in (1, 5))
    assert math.isclose(once[0], often[0]) and np.allclose(once[1], often[1])


def test_the_training_ends_at_the_minimum_of_a_quadratic() -> None:
    rng = np.random.default_rng(0)
    scales, best = np.exp(rng.normal(size=30) * 2), rng.normal(size=30)

    def function(point: np.ndarray) -> tuple[float, np.ndarray]:
        return float((scales * (point - best) ** 2).sum() / 2), scales * (point - best)

    assert np.allclose(minimised(function, np.zeros(30), 300), best, atol=1e-5)


def test_draws_are_those_of_the_pareto_distribution_and_a_function_of_seed_and_key() -> None:
    draws = np.array([pareto(str(key), 7, 3.0) for key in range(6_000)])
    for x in (0.0, 0.1, 0.5, 1.0, 3.0):
        assert abs((draws > x).mean() - (1 + x) ** -3) < 0.02
    assert pareto("a", 7, 3.0) == pareto("a", 7, 3.0) != pareto("a", 8, 3.0) != pareto("b", 8, 3.0)


def test_the_share_refused_is_the_expected_one() -> None:
    scores = np.random.default_rng(1).random(6_000)
    for alpha in (3.0, 9.0):
        refused = np.mean([not keeps(score, str(key), 0, alpha) for key, score in enumerate(scores)])
        assert abs(refused - expected_refused(scores, alpha)) < 0.02
    assert expected_refused([1.0], 3.0) == 0 and expected_refused([0.0], 3.0) == 1 - 2**-3


def test_the_filter_refuses_by_draw_and_by_score(trained, tmp_path) -> None:
    trained.save(tmp_path)
    texts = [DocumentText(one.text, key=str(n)) for n, one in enumerate(examples(BAD, 200, 9))]
    check = build(Quality(seed=4), tmp_path)
    expected = [keeps(trained.score(text), text.key, 4) for text in texts]
    assert [check(text) is None for text in texts] == expected and 0 < sum(expected) < 200
    found = build(Quality(alpha=0, min_score=0.5), tmp_path)(texts[0])
    assert found and found.reason == "quality.min_score" and math.isclose(found.numbers["limit"], 0.5)
