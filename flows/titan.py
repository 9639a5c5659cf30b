"""titan: corpus, tokenizer, tokens; a teacher with students online; each student fine-tuned; all scored
beside same-seed controls.

atelier titan experiment=laptop
"""

from engine.spec.data import Data, Finetune, Score, Tokenizer
from engine.spec.objective.lm import LM
from engine.spec.parallel import Parallel
from engine.spec.role import Role
from engine.spec.train import Train
from flows.corpus import corpus, triples
from tasks.finetune import finetune as finetune_model
from tasks.label import label
from tasks.register import register
from tasks.report import report
from tasks.score import score as score_models
from tasks.train import train as train_roles


def titan(
    roles: dict[str, Role],
    data: Data,
    tokenizer: Tokenizer,
    train: Train,
    parallel: Parallel,
    finetune: Finetune,
    score: Score,
    companions: dict[str, Role] = {},  # noqa: B006 - read only; a typed default is what the form shows
) -> None:
    text = corpus(data, tokenizer)
    examples = label(finetune.labels)
    feed = {
        "settings": train,
        "tokens": text.tokens,
        "weights": text.weights,
        "tokenizer": text.tokenizer,
        "parallel": parallel,
        "triples": triples(text, roles),
    }
    models = train_roles(roles, **feed, companions=companions)
    students = {name: role for name, role in roles.items() if role.teacher}
    controls = train_roles(
        {control_of(n): alone(n, role) for n, role in students.items()}, **feed, name="train.controls"
    )
    tuned = {
        f"{name}/{key}": model
        for name, role in students.items()
        for key, model in finetune_model(
            models[name],
            role.model,
            settings=finetune,
            train=train,
            labels=examples,
            tokenizer=text.tokenizer,
            parallel=parallel,
        ).items()
    }
    held_out, vocabulary = text.tokens["main"], text.tokenizer
    scores = score_models(
        {**models, **controls}, {}, settings=score, tokens=held_out, tokenizer=vocabulary
    ) | score_models(
        {},
        tuned,
        settings=score.model_copy(update={"sequence": finetune.sequence}),
        tokens=held_out,
        tokenizer=vocabulary,
        labels=examples,
        name="score.labels",
    )
    teachers = {name: role.teacher for name, role in roles.items()}
    report(
        {**models, **controls, **tuned},
        scores,
        title="titan",
        teachers=teachers,
        controls={n: control_of(n) for n in students},
    )
    first = {f"{name}-{finetune.labels.task}": tuned[f"{name}/pretrained-0"] for name in students}
    register({**models, **controls, **first}, scores)


def control_of(name: str) -> str:
    return f"{name}-alone"


def alone(name: str, student: Role) -> Role:
    """The same-seed control of a student: same network, seed and tokens, no teacher."""
    own = {name: spec for name, spec in student.objective.items() if not type(spec).needs_teacher}
    return student.model_copy(
        update={
            "objective": own or {"lm": LM()},
            "teacher": "",
            "gate": "open",
            "attach": "refuse",
            "seed_name": student.seed_name or name,
        }
    )
