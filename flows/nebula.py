"""nebula: pretraining and translation over sites that share no disk (Nebula-I, 2205.09470).

All sites pretrain one model of two languages. It goes on as a generator at home; a detector at another site
learns to find the tokens that it replaces. That detector is then tuned on translations, and teaches the
pretrained model, which has an adapter at home. Both are asked for translations of held-out sentences.

atelier nebula experiment=tiny
"""

from atelier.engine.config.base import parse
from atelier.engine.config.data import Data, Score, Tokenizer, Transfer
from atelier.engine.config.detect import DETECTOR, GENERATOR, Detect
from atelier.engine.config.exam import Examine
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import Model, Objective, Optim
from atelier.engine.config.role import Role, Trainable
from atelier.engine.config.sections import for_roles_alone, is_here
from atelier.engine.config.train import Train
from atelier.engine.config.tune import ALL_WEIGHTS, FULL_STUDENT, STUDENT, TEACHER, Tune
from atelier.flows.controls import control_of, controls_of, fewer
from atelier.flows.corpus import Text, text_of
from atelier.flows.evals import scored
from atelier.flows.ways import (
    PRETRAINED,
    SOURCE,
    like,
    pairs_for,
    pretrain,
    pretrain_pair,
    translate,
    translations,
    ways_of,
)
from atelier.infra.dag import Reference
from atelier.tasks.examine import examine as examine_model
from atelier.tasks.extract_adapter import extract_adapters, low_rank
from atelier.tasks.finetune import finetune as tune_on_labels
from atelier.tasks.label import label
from atelier.tasks.pose import pose_answered
from atelier.tasks.register import register
from atelier.tasks.report import report
from atelier.tasks.score import score as score_models
from atelier.tasks.train import train as train_roles

PATH_ONLY = "path only: these trainings are too short for their scores to say anything about the models"
NO_CONTROL = "the student has no control here: score.controls=true trains it without a teacher, to compare"
QUESTIONS = "translation"


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
    own, *ways = ways_of(train, detect, tune)
    pretrained = pretrain(own, first, text, parallel)
    detecting = pretrain_pair(own, pair, pretrained, text, parallel)
    roles = teacher_and_student(tune, first.model, detect.detector)
    chats = pairs_for(own, pretrained)
    given = translations(chats, text)
    begun = dict.fromkeys(roles, pretrained) | {TEACHER: detecting[DETECTOR]}
    both = {name: roles[name] for name in (TEACHER, STUDENT)}
    tuned = translate(own, roles, begun, given, parallel)
    here = [name for name in roles if is_here(tune, name)]
    alone = controls_of(both) if score.controls and STUDENT in here else {}
    if alone:
        tuned |= train_roles(
            alone, settings=like(train, "tune", for_roles_alone(tune), sequence=tune.sequence),
            parallel=fewer(parallel, alone), inits=dict.fromkeys(alone, pretrained), name="tune.controls",
            **given,
        )  # fmt: skip
    extract_adapters(tuned, low_rank({**roles, **alone}, begun | dict.fromkeys(alone, pretrained)))

    before = {PRETRAINED: pretrained}
    taught: dict[str, str] = {STUDENT: TEACHER, FULL_STUDENT: TEACHER}
    for way in ways:
        before[way.of(PRETRAINED)] = base = pretrain(way, first, text, parallel)
        begun = {TEACHER: pretrain_pair(way, pair, base, text, parallel)[DETECTOR], STUDENT: base}
        given = translations(pairs_for(way, base), text)
        made = translate(way, both, begun, given, parallel)
        tuned |= {way.of(name): each for name, each in made.items()}
        taught[way.of(STUDENT)] = way.of(TEACHER)

    models = {**before, **detecting, **tuned}
    sets = {QUESTIONS: pose_answered(chats, name=QUESTIONS, limit=tune.asked, most=tune.answer)}
    exams = {
        name: examine_model(each, sets, examine, trained=tune.sequence)[QUESTIONS]
        for name, each in tuned.items()
    }
    scores = score_models(
        {**before, **detecting},
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
        teachers={name: teacher for name, teacher in taught.items() if name in tuned},
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
    `tune.trainable` is trained, and as a control one that is trained whole. Raises ConfigError for objectives
    that do not fit them.
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
    whole = {**student, "trainable": Trainable(kind="full"), "seed_name": STUDENT}
    return {
        TEACHER: parse(Role, {"model": large, "objective": own, "optim": tune.optim}, "tune"),
        STUDENT: parse(Role, student, "tune"),
        **({FULL_STUDENT: parse(Role, whole, "tune")} if ALL_WEIGHTS in tune.controls else {}),
    }
