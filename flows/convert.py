"""convert: make another model from a finished one without training, and score both: grow depth, width,
experts or vocabulary; merge experts to fewer or none; average models; merge an adapter; change the number
format.

atelier convert init=teacher convert=merge_experts convert.num_experts=4 name=teacher-4
"""

from atelier.engine.config.base import ModelName, Name
from atelier.engine.config.conversions import Conversion
from atelier.engine.config.data import Score
from atelier.engine.config.error import ConfigError
from atelier.infra.dag import Reference
from atelier.infra.store.existing_model import Existing, adapter_of, check_ids, existing_model
from atelier.tasks.convert import convert as convert_model
from atelier.tasks.convert import grows_states
from atelier.tasks.register import register
from atelier.tasks.report import report
from atelier.tasks.score import score as score_models


def convert(init: ModelName, convert: Conversion, score: Score, name: Name = "converted") -> None:
    """Raises ConfigError if there is no model `init`, or the rule does not apply to it."""
    parent = existing_model(init, "init")
    if name == parent.reference.name:
        raise ConfigError(
            "name", f"is {name}, which is the model's name", f"name={name}-{convert.kind.replace('_', '-')}"
        )
    convert.converted(parent.spec)
    if grows_states(convert):
        parent.check_states()
    other, others = _other_tokenizer(convert), _others(convert, parent)
    made, _ = convert_model(
        parent.reference,
        parent.spec,
        convert,
        tokens=parent.text[0] if parent.text else None,
        tokenizer=other.tokenizer if other else None,
        text=other.tokens if other else None,
        others=others,
        name=name,
    )
    models = {name: made, parent.reference.name: parent.reference}
    models |= {each.name: each for each in others.values() if each.kind == "model"}
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
    """The model whose tokenizer the rule converts to."""
    if not rule.needs_tokenizer:
        return None
    return existing_model(getattr(rule, "tokenizer", ""), "convert.tokenizer")


def _others(rule: Conversion, parent: Existing) -> dict[str, Reference]:
    """Further parents of the rule, by role. Raises ConfigError for one that does not fit the first."""
    found: dict[str, Reference] = {}
    for role, which in rule.others.items():
        if which.kind == "adapter":
            found[role] = adapter_of(parent, which.name, which.place)
            continue
        other = existing_model(which.name, which.place)
        if other.reference in (parent.reference, *found.values()):
            raise ConfigError(
                which.place, f"{which.name} is given twice", "use convert.weights to weight one more"
            )
        rule.check_other(parent.spec, other.spec, which)
        check_ids(parent, other, which.place)
        found[role] = other.reference
    return found
