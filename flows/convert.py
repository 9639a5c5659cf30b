"""convert: a finished model as another, without training: grown in depth, width, experts or vocabulary, its
experts merged to fewer or none, its weights as other numbers; scored beside what it was.

atelier convert init=teacher convert=merge_experts convert.num_experts=4 name=teacher-4
"""

from atelier.engine.config.base import ModelName, Name
from atelier.engine.config.conversions import Conversion
from atelier.engine.config.data import Score
from atelier.engine.config.error import ConfigError
from atelier.infra.store.existing_model import Existing, existing_model
from atelier.tasks.convert import convert as convert_model
from atelier.tasks.register import register
from atelier.tasks.report import report
from atelier.tasks.score import score as score_models


def convert(init: ModelName, convert: Conversion, score: Score, name: Name = "converted") -> None:
    """Raises ConfigError without a model called `init`, or one that the rule is not for."""
    parent = existing_model(init, "init")
    if name == parent.reference.name:
        raise ConfigError(
            "name", f"is {name}, as the model's own", f"name={name}-{convert.kind.replace('_', '-')}"
        )
    other = _other_tokenizer(convert)
    made, _ = convert_model(
        parent.reference,
        parent.spec,
        convert,
        tokens=parent.text[0] if parent.text else None,
        tokenizer=other.tokenizer if other else None,
        text=other.tokens if other else None,
        name=name,
    )
    models = {name: made, parent.reference.name: parent.reference}
    settings = score if score.sequence != "auto" else score.model_copy(update={"sequence": parent.sequence})
    scores = score_models(
        models if other is None else {parent.reference.name: parent.reference},
        {},
        settings=settings,
        tokens=parent.tokens,
        tokenizer=parent.tokenizer,
    )
    if other is not None:
        scores |= score_models(
            {name: made},
            {},
            settings=settings,
            tokens=other.tokens,
            tokenizer=other.tokenizer,
            name="score.other",
        )
    report(models, scores, title="convert")
    register({name: made}, scores)


def _other_tokenizer(rule: Conversion) -> Existing | None:
    """The model whose tokenizer a rule is to."""
    if not rule.needs_tokenizer:
        return None
    return existing_model(getattr(rule, "tokenizer", ""), "convert.tokenizer")
