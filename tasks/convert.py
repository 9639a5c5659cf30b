"""convert: make a model of another shape from a finished one, by a rule: grown, merged, with another
tokenizer or number format.
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
MEASURED = 16384  # held-out tokens for the loss before and after


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
    place: str = "convert",
    beside: int = 1,
) -> tuple[Reference, ModelSpec]:
    """The converted model, called `name`, and its spec. `tokens`: its text, for rules that read text, and for
    the loss before and after. `tokenizer`, `text`: another tokenizer and its tokens, for rules that need one.
    `others`: further parents of the rule, by role. `place`: configuration key of the rule, for plans and
    errors. `beside`: number of conversions that share the cores.
    Raises ConfigError for a model to which the rule does not apply.
    """
    made = rule.converted(spec)
    parents = {"model": model, **(others or {})}
    for role, which in rule.others.items():
        if role not in parents:
            raise ConfigError(which.place, f"{which.name} is not given to the rule {rule.kind} here")
    if rule.num_tokens:
        if tokens is None:
            raise ConfigError(
                place,
                f"{rule.kind} reads the training text of {model.name}, which is not known",
                "give a model that was trained here",
            )
        parents["tokens"] = tokens
    if rule.needs_tokenizer:
        if tokenizer is None or text is None:
            raise ConfigError(
                f"{place}.tokenizer", "is empty", "give a finished model that has the new tokenizer"
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
        origin={"rule": place},
        kinds=model_kinds(made),
        inputs=inputs,
        config=ConvertConfig(rule=rule, measured=MEASURED),
        layout=Parallel(shard=1, threads=max(1, num_cores() // beside)),
    )
    return made_of, made


def check_kept(rule: Conversion, train: Train, place: str) -> None:
    """Raises ConfigError if the rule grows optimiser states that the training does not keep. `place`: the
    rule's configuration key.
    """
    if grows_states(rule) and not train.keep:
        raise ConfigError(f"{place}.optimizer", "grown, but train.keep=0 keeps no states", "train.keep=1")


def grows_states(rule: Conversion) -> bool:
    """Whether the parent's optimiser states are grown, too."""
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
