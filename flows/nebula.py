"""nebula: one run over sites that share no disk (Nebula-I, 2205.09470). All sites pretrain a model; then one
tunes it on prompts and answers, and a small model at another site learns from its outputs.

atelier nebula experiment=tiny
"""

from atelier.engine.config.base import parse
from atelier.engine.config.data import Data, Score, Tokenizer
from atelier.engine.config.extensions import kinds_of
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import Model, Objective, Optim
from atelier.engine.config.role import Role
from atelier.engine.config.sections import for_roles_alone, is_here
from atelier.engine.config.train import Train
from atelier.engine.config.tune import STUDENT, TEACHER, Tune
from atelier.flows.controls import control_of, controls_of, fewer
from atelier.flows.corpus import corpus, extras
from atelier.tasks.register import register
from atelier.tasks.render import render
from atelier.tasks.report import report
from atelier.tasks.score import score as score_models
from atelier.tasks.train import train as train_roles

PRETRAINED, SOURCE = "pretrained", "main"


def nebula(
    model: Model,
    objective: dict[str, Objective],
    optim: Optim,
    data: Data,
    tokenizer: Tokenizer,
    train: Train,
    tune: Tune,
    parallel: Parallel,
    score: Score,
) -> None:
    text = corpus(data, tokenizer)
    role = parse(Role, {"model": model, "objective": objective, "optim": optim}, "")
    pretrained = train_roles(
        {"model": role},
        settings=train,
        tokens=text.tokens,
        weights=text.weights,
        phases=text.phases,
        sharing=text.sharing,
        tokenizer=text.tokenizer,
        parallel=parallel,
        extras=extras(text, {"model": role}),
        labels={"model": PRETRAINED},
        prefix="",
    )["model"]

    roles = roles_of(tune, model)
    pairs = {
        "tokens": {},
        "weights": {SOURCE: 1.0},
        "tokenizer": text.tokenizer,
        "extras": {
            "chats": {SOURCE: render(tune.chats, pretrained, tune.sequence, "tune.chats", "tune.sequence")}
        },
        "prefix": "tune.",
        "section": "tune",
    }
    tuned = train_roles(
        roles,
        settings=tuning(train, tune),
        parallel=parallel,
        inits={TEACHER: pretrained},
        name="tune",
        **pairs,
    )
    here = [name for name in roles if is_here(tune, name)]
    alone = controls_of(roles) if score.controls and STUDENT in here else {}
    if alone:
        tuned |= train_roles(
            alone,
            settings=tuning(train, for_roles_alone(tune)),
            parallel=fewer(parallel, alone),
            name="tune.controls",
            **pairs,
        )
    scores = score_models(
        {PRETRAINED: pretrained}, {}, settings=score, tokens=text.tokens["main"], tokenizer=text.tokenizer
    )
    models = {PRETRAINED: pretrained, **tuned}
    report(
        models,
        scores,
        title="nebula",
        teachers={STUDENT: TEACHER} if STUDENT in tuned else {},
        controls={STUDENT: control_of(STUDENT)} if alone else {},
    )
    register(models, scores)


def roles_of(tune: Tune, model: Model) -> dict[str, Role]:
    """Roles of the second training: the pretrained model and the small one. Raises ConfigError for objectives
    that do not fit them.
    """
    own = {name: spec for name, spec in tune.objective.items() if not type(spec).needs_teacher}
    student = {
        "model": tune.student,
        "objective": tune.objective,
        "optim": tune.optim,
        "teacher": TEACHER,
        "attach": "replay",
    }
    return {
        TEACHER: parse(Role, {"model": model, "objective": own, "optim": tune.optim}, "tune"),
        STUDENT: parse(Role, student, "tune"),
    }


def tuning(train: Train, tune: Tune) -> Train:
    """Settings of the second training: those of the first, with its own length and link. Raises ConfigError
    for a link that does not fit.
    """
    own = {"steps": tune.steps, "tokens": 0, "sequence": tune.sequence, "micro_batch": "auto"}
    sections = {
        key: getattr(tune, key) for key in kinds_of("config/tune").keys() & kinds_of("config/train").keys()
    }
    return parse(Train, {**train.model_dump(), **own, **sections}, "tune")
