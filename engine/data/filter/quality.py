"""Refuse documents by the score of a quality classifier (engine/data/quality.py)."""

from pathlib import Path

from atelier.engine.config.filter.quality import Quality
from atelier.engine.data.filter_text import Check, DocumentText, RefusedText
from atelier.engine.data.quality import QualityClassifier, pareto


def build(spec: Quality, classifier: Path) -> Check:
    """Raises DataError if the folder `classifier` holds none."""
    return check_with(QualityClassifier.load(classifier), spec)


def check_with(classifier: QualityClassifier, spec: Quality) -> Check:
    """The check of a classifier that is already loaded. The draw depends on spec.seed and the text's key."""

    def check(text: DocumentText) -> RefusedText | None:
        score = classifier.score(text)
        if score < spec.min_score:
            return RefusedText("quality.min_score", {"measured": score, "limit": spec.min_score})
        if spec.alpha and (draw := pareto(text.key, spec.seed, spec.alpha)) <= 1 - score:
            return RefusedText("quality.alpha", {"measured": score, "limit": 1 - draw})
        return None

    return check
