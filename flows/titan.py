"""titan: the DAG of ERNIE 3.0 Titan (2112.12731): a role trained ahead imitates the text; a teacher, its
assistant and students are trained online in one pass; all are scored zero-shot, few-shot and fine-tuned,
beside same-seed controls.

atelier titan experiment=laptop
"""

from atelier.engine.config.base import parse
from atelier.engine.config.data import Data, Finetune, Score, Tokenizer
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.generation import Imitate
from atelier.engine.config.mixture import sources
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import ObjectiveSpec
from atelier.engine.config.role import Role
from atelier.engine.config.row_classes import RowClasses
from atelier.engine.config.train import Ahead, Train
from atelier.flows.controls import alone, constant, control_of, controls_of, fewer, layout_of_one
from atelier.flows.corpus import extras, text_of
from atelier.infra.dag import Reference
from atelier.infra.store.existing_model import beginnings
from atelier.tasks.extract_adapter import extract_adapters, low_rank
from atelier.tasks.finetune import finetune as finetune_model
from atelier.tasks.imitate import imitate as imitate_text
from atelier.tasks.label import label
from atelier.tasks.register import register
from atelier.tasks.report import report
from atelier.tasks.score import score as score_models
from atelier.tasks.train import train as train_roles


def titan(
    roles: dict[str, Role],
    data: Data,
    tokenizer: Tokenizer,
    train: Train,
    parallel: Parallel,
    finetune: Finetune,
    score: Score,
    ahead: Ahead = Ahead(),  # noqa: B008 - frozen
    imitate: Imitate = Imitate(),  # noqa: B008 - frozen
    companions: dict[str, Role] = {},  # noqa: B006 - read only; a typed default is what the form shows
) -> None:
    text = text_of(data, tokenizer, [*roles.values(), *companions.values()])
    examples = label(finetune.labels)
    feed = {
        "tokens": text.tokens,
        "weights": text.weights,
        "sharing": text.sharing,
        "tokenizer": text.tokenizer,
        "parallel": parallel,
    }
    more = extras(text, roles)
    begun = beginnings({**roles, **companions}, text.tokenizer)
    first: dict[str, Reference] = {}
    if ahead.role:
        lone = {ahead.role: before_all(ahead, roles)}
        settings = train.model_copy(update={"steps": ahead.steps, "tokens": 0.0})
        how = {"settings": settings, "name": "train.ahead", "labels": {ahead.role: f"{ahead.role}-ahead"}}
        how["inits"] = {name: begun[name] for name in lone if name in begun}
        first = train_roles(lone, **feed | {"parallel": fewer(parallel, lone)}, extras=more, **how)
    if "imitations" in sources(roles):
        more["imitations"] = {
            name: imitate_text(name, imitate, model=generator(first), tokens=tokens, tokenizer=text.tokenizer)
            for name, tokens in text.tokens.items()
        }
    feed |= {"settings": train, "extras": more, "phases": text.phases}
    models = train_roles(roles, **feed, companions=companions, inits=begun | first)
    extract_adapters(models, low_rank(roles, begun))
    students = {name: role for name, role in roles.items() if role.teacher and score.controls}
    by_themselves = controls_of(students)
    feed |= {"parallel": fewer(parallel, by_themselves)}
    same = {control_of(name): begun[name] for name in students if name in begun}
    controls = train_roles(by_themselves, **feed, inits=same, name="train.controls") if students else {}
    tuned = {
        f"{name}/{key}": model
        for name, role in roles.items()
        for key, model in finetune_model(
            models[name],
            role.model,
            settings=finetune.model_copy(update={"scratch": finetune.scratch and name in last(roles)}),
            train=train,
            labels=examples,
            tokenizer=text.tokenizer,
            parallel=layout_of_one(parallel, name, role),
        ).items()
    }
    asked = {f"{name}/{way}": shots for name in models for way, shots in shots_of(score).items()}
    held_out, vocabulary = text.tokens["main"], text.tokenizer
    roots = [name for name, role in roles.items() if not role.teacher]
    scores = score_models(
        {**models, **controls},
        {},
        settings=score,
        tokens=held_out,
        tokenizer=vocabulary,
        heads=heads_of([roles[name] for name in roots]) if score.rows else {},
        judged=roots,
        imitations=more.get("imitations", {}).get("main"),
    ) | score_models(
        {},
        tuned | {key: models[key.rpartition("/")[0]] for key in asked},
        settings=score.model_copy(update={"sequence": finetune.sequence}),
        tokens=held_out,
        tokenizer=vocabulary,
        labels=examples,
        shots=asked,
        name="score.labels",
    )
    report(
        {**models, **controls, **tuned},
        scores,
        title="titan",
        teachers={name: role.teacher for name, role in roles.items()},
        controls={n: control_of(n) for n in students},
    )
    first_draws = {f"{name}-{finetune.labels.task}": tuned[f"{name}/pretrained-0"] for name in roles}
    register({**models, **controls, **first_draws}, scores)


def heads_of(roles: list[Role]) -> dict[str, ObjectiveSpec]:
    """The row-classification objectives of these roles, by kind."""
    specs = [spec for role in roles for spec in role.objective.values()]
    return {spec.kind: spec for spec in specs if isinstance(spec, RowClasses)}


def shots_of(score: Score) -> dict[str, int]:
    """Number of solved examples in the prompt of untuned models, by evaluation."""
    return {"zero-shot": 0, "few-shot": score.shots}


def last(roles: dict[str, Role]) -> set[str]:
    """The roles without students."""
    return set(roles) - {role.teacher for role in roles.values()}


def before_all(ahead: Ahead, roles: dict[str, Role]) -> Role:
    """The role as it is trained ahead, alone, without teacher or imitations. Raises ConfigError for an
    unknown role, and for an objective that needs one of these.
    """
    name = ahead.role
    if name not in roles:
        near = nearest(name, roles)
        raise ConfigError("ahead.role", f"there is no role {name!r}", f"did you mean {near}?" if near else "")
    for key, spec in ahead.objective.items():
        if type(spec).needs_teacher or type(spec).source == "imitations":
            what = "a teacher" if type(spec).needs_teacher else "imitations"
            raise ConfigError(
                f"ahead.objective.{key}", f"{spec.kind} needs {what}, and there is none yet", "leave it out"
            )
    role = alone(name, roles[name])
    own = {key: constant(spec) for key, spec in role.objective.items() if type(spec).source != "imitations"}
    chosen = ahead.objective or own or {"lm": LM()}
    optim = ahead.optim or role.optim
    lone = role.model_copy(update={"objective": chosen, "optim": optim, "start": 0, "end": 0})
    return parse(Role, lone.model_dump(mode="json"), "ahead")


def generator(first: dict[str, Reference]) -> Reference:
    """The model that writes imitations: the one trained ahead. Raises ConfigError if there is none."""
    if not first:
        raise ConfigError(
            "ahead.role",
            "is empty, but an objective distinguishes natural text from an earlier model's text",
            "ahead=teacher trains that role first",
        )
    return next(iter(first.values()))
