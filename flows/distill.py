"""distill: train a teacher and its students in one process group; score, report and register them. With
score.controls=true also train the same students without a teacher.

atelier distill experiment=tiny roles.student_a.start=0.25 score.controls=true
"""

from atelier.engine.config.data import Data, Score, Tokenizer
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.role import Role
from atelier.engine.config.sections import for_roles_alone, is_here
from atelier.engine.config.train import Train
from atelier.flows.controls import control_of, controls_of, fewer
from atelier.flows.corpus import extras, text_of
from atelier.infra.store.existing_model import beginnings
from atelier.tasks.extract_adapter import extract_adapters, low_rank
from atelier.tasks.register import register
from atelier.tasks.report import report
from atelier.tasks.score import score as score_models
from atelier.tasks.train import train as train_roles


def distill(
    roles: dict[str, Role],
    data: Data,
    tokenizer: Tokenizer,
    train: Train,
    parallel: Parallel,
    score: Score,
    companions: dict[str, Role] = {},  # noqa: B006 - read only; a typed default is what the form shows
) -> None:
    text = text_of(data, tokenizer, [*roles.values(), *companions.values()])
    begun = beginnings({**roles, **companions}, text.tokenizer)
    models = train_roles(
        roles,
        settings=train,
        tokens=text.tokens,
        weights=text.weights,
        phases=text.phases,
        sharing=text.sharing,
        tokenizer=text.tokenizer,
        parallel=parallel,
        companions=companions,
        inits=begun,
        extras=extras(text, roles),
    )
    extract_adapters(models, low_rank(roles, begun))
    here = {name: role for name, role in roles.items() if is_here(train, name)}
    taught = {name: role for name, role in here.items() if role.teacher and not role.reads_changed}
    students = [*taught] if score.controls else []
    by_themselves = controls_of(taught) if students else {}
    if by_themselves:
        models = models | train_roles(
            by_themselves,
            settings=for_roles_alone(train),
            tokens=text.tokens,
            weights=text.weights,
            phases=text.phases,
            sharing=text.sharing,
            tokenizer=text.tokenizer,
            parallel=fewer(parallel, by_themselves),
            inits=beginnings(by_themselves, text.tokenizer),
            extras=extras(text, by_themselves),
            name="train.controls",
        )
    predicting = {name: model for name, model in models.items() if name not in roles or roles[name].predicts}
    scores = score_models(
        predicting, {}, settings=score, tokens=text.tokens["main"], tokenizer=text.tokenizer
    )
    report(
        models,
        scores,
        title="distill",
        teachers={name: role.teacher for name, role in here.items()},
        controls={name: control_of(name) for name in students},
    )
    register(models, scores)
