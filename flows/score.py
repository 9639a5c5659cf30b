"""score: score finished models on held-out text, beside gzip, xz and a trigram.

atelier score models=[teacher,student_a] score.max_tokens=100000
"""

from atelier.engine.config.data import Score
from atelier.engine.config.error import ConfigError
from atelier.infra.store.existing_model import existing_model
from atelier.tasks.report import report
from atelier.tasks.score import score as score_models


def score(models: list[str], score: Score) -> None:
    """Raises ConfigError without models, and for models trained on different tokens."""
    if not models:
        raise ConfigError(
            "models", "is empty", "name one or more finished models; `atelier models` lists them"
        )
    found = {name: existing_model(name, "models") for name in models}
    texts = {one.tokens.fingerprint for one in found.values()}
    if len(texts) > 1:
        raise ConfigError(
            "models",
            "they were trained on different tokens, so their held-out text differs",
            f"atelier examine {' '.join(models)} evals=[corpus:<name>] compares bits per byte on one text",
        )
    first = next(iter(found.values()))
    settings = score if score.sequence != "auto" else score.model_copy(update={"sequence": first.sequence})
    references = {name: one.reference for name, one in found.items()}
    scores = score_models(references, {}, settings=settings, tokens=first.tokens, tokenizer=first.tokenizer)
    report(references, scores, title="score")
