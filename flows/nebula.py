"""nebula: pretraining and translation over sites that share no disk (Nebula-I, 2205.09470).

All sites pretrain one model of two languages. It goes on as a generator at home; a detector at another site
learns to find the tokens that it replaces. That detector is then tuned on translations, and teaches the
pretrained model, which has an adapter at home. Both are asked for translations of held-out sentences.

atelier nebula experiment=tiny
"""

from collections.abc import Mapping
from typing import TypedDict

from atelier.engine.config.base import Spec, parse
from atelier.engine.config.data import Data, Score, Tokenizer, Transfer
from atelier.engine.config.detect import DETECTOR, GENERATOR, Detect
from atelier.engine.config.error import ConfigError
from atelier.engine.config.exam import Examine
from atelier.engine.config.extensions import kinds_of
from atelier.engine.config.mixture import Phase, Sharing
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import Model, Objective, Optim
from atelier.engine.config.role import Role
from atelier.engine.config.sections import for_roles_alone, is_here
from atelier.engine.config.train import Train
from atelier.engine.config.tune import STUDENT, TEACHER, Tune
from atelier.flows.controls import control_of, controls_of, fewer
from atelier.flows.corpus import Text, extras, text_of
from atelier.flows.evals import scored
from atelier.infra.dag import Reference
from atelier.tasks.examine import examine as examine_model
from atelier.tasks.extract_adapter import extract_adapters, low_rank
from atelier.tasks.finetune import finetune as tune_on_labels
from atelier.tasks.label import label
from atelier.tasks.pose import pose_answered
from atelier.tasks.register import register
from atelier.tasks.render import render
from atelier.tasks.report import report
from atelier.tasks.score import score as score_models
from atelier.tasks.train import train as train_roles

PATH_ONLY = "path only: these trainings are too short for their scores to say anything about the models"
NO_CONTROL = "the student has no control here: score.controls=true trains it without a teacher, to compare"
PRETRAINED, SOURCE, QUESTIONS = "pretrained", "main", "translation"


def nebula(
    model: Model,
    objective: dict[str, Objective],
    optim: Optim,
    data: Data,
    tokenizer: Tokenizer,
    train: Train,
    detect: Detect,
    tune: Tune,
    transfer: Transfer,
    parallel: Parallel,
    score: Score,
    examine: Examine,
) -> None:
    first = parse(Role, {"model": model, "objective": objective, "optim": optim}, "")
    pair = generator_and_detector(detect, first)
    text = text_of(data, tokenizer, [first, *pair.values()])
    pretrained = train_roles(
        {"model": first}, settings=train, parallel=parallel, labels={"model": PRETRAINED}, prefix="",
        **read(text, {"model": first}),
    )["model"]  # fmt: skip

    detecting = train_roles(
        pair, settings=like(train, "detect", detect), parallel=parallel, inits={GENERATOR: pretrained},
        name="detect", prefix="detect.", section="detect", **read(text, pair),
    )  # fmt: skip

    if DETECTOR not in detecting:
        raise ConfigError(
            "detect.link",
            "puts the detector at another site, but the next training begins from it",
            "sites=[a,b] plans all sites together",
        )
    roles = teacher_and_student(tune, first.model, detect.detector)
    chats = render(tune.chats, pretrained, tune.sequence, "tune.chats", "tune.sequence", pairs=True)
    translations = {
        "tokens": {},
        "weights": {SOURCE: 1.0},
        "tokenizer": text.tokenizer,
        "extras": {"chats": {SOURCE: chats}},
        "prefix": "tune.",
        "section": "tune",
    }
    begun = {TEACHER: detecting[DETECTOR], STUDENT: pretrained}
    tuned = train_roles(
        roles, settings=like(train, "tune", tune, sequence=tune.sequence), parallel=parallel, inits=begun,
        name="tune", **translations,
    )  # fmt: skip
    here = [name for name in roles if is_here(tune, name)]
    alone = controls_of(roles) if score.controls and STUDENT in here else {}
    if alone:
        tuned |= train_roles(
            alone, settings=like(train, "tune", for_roles_alone(tune), sequence=tune.sequence),
            parallel=fewer(parallel, alone), inits=dict.fromkeys(alone, pretrained), name="tune.controls",
            **translations,
        )  # fmt: skip
    extract_adapters(tuned, low_rank({**roles, **alone}, begun | dict.fromkeys(alone, pretrained)))

    models = {PRETRAINED: pretrained, **detecting, **tuned}
    sets = {QUESTIONS: pose_answered(chats, name=QUESTIONS, limit=tune.asked, most=tune.answer)}
    exams = {
        name: examine_model(each, sets, examine, trained=tune.sequence)[QUESTIONS]
        for name, each in tuned.items()
    }
    scores = score_models(
        {name: models[name] for name in (PRETRAINED, *detecting)},
        {},
        settings=score,
        tokens=text.tokens[SOURCE],
        tokenizer=text.tokenizer,
    )
    scores |= transferred(detecting[DETECTOR], detect.detector, text, transfer, train, parallel, score)
    report(
        models,
        scores,
        title="nebula",
        teachers={STUDENT: TEACHER} if STUDENT in tuned else {},
        controls={STUDENT: control_of(STUDENT)} if alone else {},
        exams=exams,
        note=PATH_ONLY if tune.path_only else "" if alone else NO_CONTROL,
    )
    register(models, scores)


def transferred(
    model: Reference,
    spec: Model,
    text: Text,
    transfer: Transfer,
    train: Train,
    parallel: Parallel,
    score: Score,
) -> dict[str, Reference]:
    """Scores of the model, and of the same network from random weights, tuned on pairs of sentences in one
    language: in that language, and in others.
    """
    examples = label(transfer.labels, section="transfer")
    tuned = tune_on_labels(
        model, spec, settings=transfer, train=train, labels=examples, tokenizer=text.tokenizer,
        parallel=parallel, section="transfer",
    )  # fmt: skip
    others = {
        name: label(other, name=name, tuned=examples, section="transfer")
        for name, other in transfer.also.items()
    }
    return scored(
        DETECTOR, tuned, {"": examples, **others},
        settings=score.model_copy(update={"sequence": transfer.sequence}), tokens=None,
        tokenizer=text.tokenizer, name="score.transfer",
    )  # fmt: skip


class PretrainingInputs(TypedDict):
    """The inputs of a pretraining."""

    tokens: dict[str, Reference]
    weights: dict[str, float]
    phases: dict[str, Phase]
    sharing: Sharing
    tokenizer: Reference
    extras: dict[str, dict[str, Reference]]


def read(text: Text, roles: Mapping[str, Role]) -> PretrainingInputs:
    """The inputs of a pretraining of these roles."""
    return {
        "tokens": text.tokens,
        "weights": text.weights,
        "phases": text.phases,
        "sharing": text.sharing,
        "tokenizer": text.tokenizer,
        "extras": extras(text, roles),
    }


def generator_and_detector(detect: Detect, first: Role) -> dict[str, Role]:
    """Roles of the second training: the pretrained model goes on, and draws tokens for the detector. Raises
    ConfigError for objectives that do not fit them.
    """
    detector = {
        "model": detect.detector,
        "objective": detect.objective,
        "optim": detect.optim,
        "teacher": GENERATOR,
        "attach": "replay",
    }
    return {
        GENERATOR: first.model_copy(update={"optim": detect.optim}),
        DETECTOR: parse(Role, detector, "detect"),
    }


def teacher_and_student(tune: Tune, small: Model, large: Model) -> dict[str, Role]:
    """Roles of the third training: the detector, tuned whole, teaches the pretrained model, of which only
    `tune.trainable` is trained. Raises ConfigError for objectives that do not fit them.
    """
    own = {name: spec for name, spec in tune.objective.items() if not type(spec).needs_teacher}
    student = {
        "model": small,
        "objective": tune.objective,
        "optim": tune.student_optim,
        "trainable": tune.trainable,
        "teacher": TEACHER,
        "attach": "replay",
    }
    return {
        TEACHER: parse(Role, {"model": large, "objective": own, "optim": tune.optim}, "tune"),
        STUDENT: parse(Role, student, "tune"),
    }


def like(train: Train, place: str, section: Spec, **other: object) -> Train:
    """The settings of the first training with a section's own length and link. Raises ConfigError for a link
    that does not fit. `place`: the section's name; `other`: what else differs.
    """
    own = {"steps": getattr(section, "steps", 0), "tokens": 0, "micro_batch": "auto", **other}
    keys = kinds_of(f"config/{place}").keys() & kinds_of("config/train").keys()
    links = {key: getattr(section, key) for key in keys}
    return parse(Train, {**train.model_dump(), **own, **links}, place)
