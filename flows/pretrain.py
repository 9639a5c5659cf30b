"""pretrain: one model on text, scored, reported, registered.

atelier pretrain model=gpt_nano train.steps=200
"""

from typing import Annotated

from pydantic import Field

from engine.spec.base import parse
from engine.spec.data import Data, Score, Tokenizer
from engine.spec.parallel import Parallel
from engine.spec.registry import Model, Objective, Optim
from engine.spec.role import Role
from engine.spec.train import Train
from flows.corpus import corpus, extras
from tasks.register import register
from tasks.report import report
from tasks.score import score as score_models
from tasks.train import train as train_roles

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="what the model is called")]


def pretrain(
    model: Model,
    objective: dict[str, Objective],
    optim: Optim,
    data: Data,
    tokenizer: Tokenizer,
    train: Train,
    parallel: Parallel,
    score: Score,
    name: Name = "model",
) -> None:
    text = corpus(data, tokenizer)
    role = parse(Role, {"model": model, "objective": objective, "optim": optim}, "")
    models = train_roles(
        {"model": role},
        settings=train,
        tokens=text.tokens,
        weights=text.weights,
        tokenizer=text.tokenizer,
        parallel=parallel,
        extras=extras(text, {"model": role}),
        labels={"model": name},
        prefix="",
    )
    scores = score_models(
        {name: models["model"]}, {}, settings=score, tokens=text.tokens["main"], tokenizer=text.tokenizer
    )
    report({name: models["model"]}, scores, title="pretrain")
    register({name: models["model"]}, scores)
