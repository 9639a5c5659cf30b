"""convert: a finished model as another, without training: grown in depth, width, experts or vocabulary, its
experts merged to fewer or none, averaged with others, an adapter merged, its weights as other numbers; scored
beside what it was.

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
    """Raises ConfigError without a model called `init`, or one that the rule is not for."""
    parent = existing_model(init, "init")
    if name == parent.reference.name:
        raise ConfigError(
            "name", f"is {name}, as the model's own", f"name={name}-{convert.kind.replace('_', '-')}"
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
    """The model whose tokenizer a rule is to."""
    if not rule.needs_tokenizer:
        return None
    return existing_model(getattr(rule, "tokenizer", ""), "convert.tokenizer")


def _others(rule: Conversion, parent: Existing) -> dict[str, Reference]:
    """The rule's further parents, by role. Raises ConfigError for one that does not go with the first."""
    found: dict[str, Reference] = {}
    for role, which in rule.others.items():
        if which.kind == "adapter":
            found[role] = adapter_of(parent, which.name, which.place)
            continue
        other = existing_model(which.name, which.place)
        if other.reference in (parent.reference, *found.values()):
            raise ConfigError(
                which.place, f"{which.name} is there twice", "convert.weights counts one for more"
            )
        rule.check_other(parent.spec, other.spec, which)
        check_ids(parent, other, which.place)
        found[role] = other.reference
    return found
