"""convert: a finished model as one of another shape, by a rule: grown, cut, with another tokenizer, as
numbers of another type.
"""

from collections.abc import Mapping

from atelier.engine.config.base import Json
from atelier.engine.config.conversions import Conversion, GrowingSpec
from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.task.convert import ConvertConfig
from atelier.engine.config.train import Train
from atelier.engine.io.machine import num_cores
from atelier.infra.code.code_map import model_kinds
from atelier.infra.dag import Node, Reference, declare_one
from atelier.infra.run.context import RunContext
from atelier.infra.run.gang_request import GangRequest
from atelier.infra.store.trajectory import last_checkpoint, read_trajectory

VERSION = 1
MEASURED = 16384  # held-out tokens of which the loss is measured before and after


def convert(
    model: Reference,
    spec: ModelSpec,
    rule: Conversion,
    *,
    tokens: Reference | None,
    name: str,
    tokenizer: Reference | None = None,
    text: Reference | None = None,
    others: Mapping[str, Reference] | None = None,
    node: str = "convert",
    beside: int = 1,
) -> tuple[Reference, ModelSpec]:
    """The converted model, called `name`, and its spec. `tokens`: its text, for rules that have it read
    some, and to measure its loss before and after; `tokenizer` and `text`: another tokenizer, for rules that
    ask for one, and tokens of it; `others`: the rule's further parents by role; `beside`: how many
    conversions share the cores. Raises ConfigError for a model that the rule is not for.
    """
    made = rule.converted(spec)
    parents = {"model": model, **(others or {})}
    for role, which in rule.others.items():
        if role not in parents:
            raise ConfigError(which.place, f"{which.name} is not given to the rule {rule.kind} here")
    if rule.num_tokens:
        if tokens is None:
            raise ConfigError(
                "convert",
                f"{rule.kind} reads text that {model.name} was trained on, which is not known",
                "a model made here",
            )
        parents["tokens"] = tokens
    if rule.needs_tokenizer:
        if tokenizer is None or text is None:
            raise ConfigError(
                "convert.tokenizer", "is empty", "a finished model whose tokenizer it is to have"
            )
        parents |= {"tokenizer": tokenizer, "tokens.main": text}
    inputs = parents | ({"tokens": tokens} if tokens is not None else {})
    made_of = declare_one(
        "convert",
        "model",
        parents,
        name=name,
        version=VERSION,
        node=node,
        identity={"rule": rule.as_identity()},
        origin={"rule": "convert"},
        kinds=model_kinds(made),
        inputs=inputs,
        config=ConvertConfig(rule=rule, measured=MEASURED),
        layout=Parallel(shard=1, threads=max(1, num_cores() // beside)),
    )
    return made_of, made


def check_kept(rule: Conversion, train: Train, place: str) -> None:
    """Raise ConfigError for a rule that grows the states of a training that keeps none. `place`: the rule's
    configuration key.
    """
    if grows_states(rule) and not train.keep:
        raise ConfigError(f"{place}.optimizer", "grown, and train.keep=0 keeps no states", "train.keep=1")


def grows_states(rule: Conversion) -> bool:
    """Whether the model is also to have its parent's optimiser states, grown."""
    return isinstance(rule, GrowingSpec) and rule.optimizer == "grown"


def run(node: Node, context: RunContext) -> None:
    states: dict[str, Json] = {}
    if grows_states(ConvertConfig.model_validate(node.config).rule):
        parent = context.record(*node.inputs["model"])
        states["states"] = last_checkpoint(context.store, parent, f"{node.name}.optimizer")
        states["optim"] = read_trajectory(context.store, parent.parents["trajectory"]).identity["optim"]
    context.gang(
        GangRequest(
            node=node,
            module="atelier.engine.convert",
            config=lambda fences: {**node.config, **states},
            outputs=context.missing(node),
        )
    )
