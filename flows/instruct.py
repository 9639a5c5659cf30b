"""instruct: fine-tune a finished model on the assistant's messages of conversations.

atelier instruct init=guest chats.source='talks/*.jsonl'
"""

from atelier.engine.config.base import ModelName, Name, parse
from atelier.engine.config.chats import Chats
from atelier.engine.config.data import Tokenizer
from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import Model, Objective, Optim
from atelier.engine.config.role import Role, Trainable
from atelier.engine.config.train import Train
from atelier.infra.store.existing_model import beginnings, existing_model
from atelier.tasks.extract_adapter import extract_adapters, low_rank
from atelier.tasks.register import register
from atelier.tasks.render import render
from atelier.tasks.report import report
from atelier.tasks.train import train as train_roles

SOURCE = "main"


def instruct(
    init: ModelName,
    chats: Chats,
    model: Model,
    objective: dict[str, Objective],
    optim: Optim,
    trainable: Trainable,
    tokenizer: Tokenizer,
    train: Train,
    parallel: Parallel,
    name: Name = "instruct",
) -> None:
    parent = existing_model(init, "init")
    if parent.reference.name == name:
        raise ConfigError("name", f"is {name}, which is the name of the initial model", f"name={name}-on")
    given = {"model": model, "objective": objective, "optim": optim, "init": init, "trainable": trainable}
    role = parse(Role, given, "")
    if not role.moves:
        raise ConfigError("trainable.kind", "is none: no parameter would be trained", "full, or lora")
    begun = beginnings({"model": role}, parent.tokenizer, "")
    models = train_roles(
        {"model": role},
        settings=train,
        tokens={},
        weights={SOURCE: 1.0},
        tokenizer=parent.tokenizer,
        parallel=parallel,
        extras={"chats": {SOURCE: render(chats, parent.reference, train.sequence)}},
        inits=begun,
        labels={"model": name},
        prefix="",
    )
    extract_adapters(models, low_rank({"model": role}, begun))
    report({name: models["model"]}, {}, title="instruct")
    register({name: models["model"]}, {})
