"""Refuse documents that are not in one of some languages, by the naive Bayes model of py3langid (Lui and
Baldwin 2012), which is part of that package.
"""

import importlib
from functools import cache
from importlib.util import find_spec
from typing import Protocol

from atelier.engine.config.error import ConfigError
from atelier.engine.config.filter.language import Language
from atelier.engine.data.filter_text import Check, DocumentText, RefusedText

LIBRARY = "py3langid"
PLACE = "filter.language"


class Identifier(Protocol):
    """The part of py3langid's identifier that is used."""

    @property
    def labels(self) -> list[str]: ...

    def classify(self, instance: str) -> tuple[str, float]: ...


def build(spec: Language) -> Check:
    """Raises ConfigError without py3langid, and for a language that it does not know."""
    identifier = _identifier()
    for language in spec.languages:
        if language not in identifier.labels:
            raise ConfigError(
                f"{PLACE}.languages",
                f"{LIBRARY} knows no language {language!r}",
                f"give ISO 639 codes of: {', '.join(sorted(identifier.labels))}",
            )
    kept = frozenset(spec.languages)

    def check(text: DocumentText) -> RefusedText | None:
        language, probability = identifier.classify(text.text[: spec.max_read_chars])
        numbers = {"measured": float(probability), "limit": spec.min_probability}
        if probability < spec.min_probability:
            return RefusedText("language.min_probability", numbers)
        return None if language in kept else RefusedText(f"language.{language}", numbers)

    return check


@cache
def _identifier() -> Identifier:
    """The identifier with probabilities, loaded once per process (0.6 s)."""
    if find_spec(LIBRARY) is None:
        raise ConfigError(
            PLACE,
            f"this filter needs {LIBRARY}, which is not installed",
            f"pip install {LIBRARY} (the extra curation), or leave the filter out",
        )
    langid = importlib.import_module(f"{LIBRARY}.langid")
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
