"""imitate: write continuations of paragraphs with a trained model, beside the natural ones, for an
adversarial objective.
"""

from atelier.engine.config.generation import Imitate
from atelier.engine.io.machine import num_cores
from atelier.infra.dag import Reference, declare_one, of_source

VERSION = 1
MODULE = "atelier.engine.imitate"


def imitate(
    name: str, settings: Imitate, *, model: Reference, tokens: Reference, tokenizer: Reference
) -> Reference:
    """The imitations of one text source. The model must use the same tokenizer."""
    identity = settings.as_identity()
    return declare_one(
        "imitate",
        "imitations",
        {"model": model, "tokens": tokens, "tokenizer": tokenizer},
        name=tokens.name,
        version=VERSION,
        node=of_source("imitate", name),
        identity=identity,
        origin={key: f"imitate.{key}" for key in identity},
        config=settings,
        layout=settings.parallel(max(1, num_cores() // settings.ranks)),
        ranks=settings.ranks,
    )
