"""pretrain: train one model on text; score, report and register it.

atelier pretrain model=gpt_nano train.steps=200
atelier pretrain model=auto init=guest tokenizer.model=guest
"""

from atelier.engine.config.base import ModelName, Name, parse
from atelier.engine.config.data import Data, Score, Tokenizer
from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import Model, Objective, Optim
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.flows.corpus import extras, text_of
from atelier.flows.evals import Evals
from atelier.infra.store.existing_model import beginnings, existing_model
from atelier.tasks.extract_adapter import extract_adapters, low_rank
from atelier.tasks.register import register
from atelier.tasks.report import report
from atelier.tasks.score import score as score_models
from atelier.tasks.train import train as train_roles


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
    init: ModelName = "",
) -> None:
    one_model(model, objective, optim, data, tokenizer, train, parallel, score, name, init, title="pretrain")


def one_model(
    model: Model,
    objective: dict[str, Objective],
    optim: Optim,
    data: Data,
    tokenizer: Tokenizer,
    train: Train,
    parallel: Parallel,
    score: Score,
    name: str,
    init: str,
    *,
    title: str,
    evals: Evals | None = None,
) -> None:
    """Read or curate the text, train one model on it, score, examine, audit, report and register it."""
    if init and existing_model(init, "init").reference.name == name:
        raise ConfigError("name", f"is {name}, which is the name of the initial model", f"name={name}-on")
    role = parse(Role, {"model": model, "objective": objective, "optim": optim, "init": init}, "")
    text = text_of(data, tokenizer, [role])
    begun = beginnings({"model": role}, text.tokenizer, "")
    models = train_roles(
        {"model": role},
        settings=train,
        tokens=text.tokens,
        weights=text.weights,
        phases=text.phases,
        sharing=text.sharing,
        tokenizer=text.tokenizer,
        parallel=parallel,
        extras=extras(text, {"model": role}),
        inits=begun,
        labels={"model": name},
        prefix="",
    )
    extract_adapters(models, low_rank({"model": role}, begun))
    scores = score_models(
        {name: models["model"]}, {}, settings=score, tokens=text.tokens["main"], tokenizer=text.tokenizer
    )
    curated = text.corpora if data.curation is not None else None
    exams, audits = evals.of(models["model"], train.sequence, text.corpora.values()) if evals else ({}, {})
    report({name: models["model"]}, scores, title=title, corpora=curated, exams=exams, audits=audits)
    register({name: models["model"]}, scores)
