"""Two tiny DAGs of real flows on planted texts, for audits."""

from pathlib import Path
from typing import NamedTuple

from tests.flow.audited import TINY, made_in
from tests.flow.planted import FORMS, World, world

START, END, STEPS = 6, 12, 24  # of the student that trains beside its teacher, and the teacher's
FINISHED = ("role@roles.teacher=finished", "tokenizer.model=master", "data.held_out=0.02")
NATURAL = "{kind: natural, weight: 0.1, rows: 0.1}"
SPECIALS = 'tokenizer.specials=["<|mask|>","<|cls|>","<|sep|>"]'
TAUGHT = (
    "distill", *TINY, "~roles.teacher", "~roles.student_a", "+role@roles.elder=teacher",
    "model@roles.elder.model=gpt_nano", "+role@roles.pupil=student", "roles.pupil.teacher=elder",
    f"roles.pupil.start={START}", f"roles.pupil.end={END}", "data.held_out=0.1", "data.blend.side.weight=0.2",
)  # fmt: skip


class Made(NamedTuple):
    """A store, its texts, and a file with all questions."""

    root: Path
    planted: World
    asked: str


def with_none(planted: World) -> str:
    """The file of all questions, and of four that are in no text."""
    for number in range(4):
        planted.ask(f"none-{number}", is_long=number > 1)
    return planted.set("asked.jsonl")


def beside(root: Path, folder: Path) -> Made:
    """pupil trains beside elder in some of its steps, on more text than they read."""
    planted = world(folder)
    side = f"data.blend.side.source={planted.training('side', 'verbatim')}"
    made_in(root, *TAUGHT, f"data.source={planted.long()}", side)
    return Made(root, planted, with_none(planted))


def in_line(root: Path, folder: Path) -> Made:
    """master teaches assistant, which teaches student; student is tuned; master writes for reader; ghost,
    which had read master's text, imitates for judge. Each has text of its own.
    """
    planted = world(folder)
    text = {name: planted.training(name, "verbatim") for name in ("master", "assistant", "side")}
    text |= {"own": planted.training("own", *FORMS), "clean": planted.training("clean")}
    labels = f"finetune.labels.source={planted.labels()}"
    source = {name: f"data.source={path}" for name, path in text.items()}
    steps, nano, alone, all_train = "train.steps=12", "model=gpt_nano", TINY[:3], "data.held_out=0.02"
    made_in(root, "pretrain", *alone, "name=master", nano, source["master"], steps, all_train)
    made_in(
        root, "distill", *TINY, *FINISHED, "roles.teacher.init=master", "~roles.student_a",
        "+role@roles.assistant=student", "roles.assistant.start=0", source["assistant"], steps,
    )  # fmt: skip
    made_in(
        root, "distill", *TINY, *FINISHED, "roles.teacher.init=assistant", "~roles.student_a",
        "+role@roles.student=student", "roles.student.start=0", source["own"],
        f"data.blend.side.source={text['side']}",
    )  # fmt: skip
    made_in(root, "finetune", *TINY[:2], "init=student", labels)
    made_in(root, "pretrain", *alone, "name=reader", nano, source["clean"], "data.written.by=master", steps)
    ernie = "ernie_nano"
    made_in(
        root, "pretrain", *alone, "name=ghost", f"model={ernie}", source["master"], steps, SPECIALS, all_train
    )
    roles = [
        word
        for role in ("scribe", "judge")
        for word in (
            f"+role@roles.{role}=teacher", f"model@roles.{role}.model={ernie}",
            f"+roles.{role}.objective.natural={NATURAL}",
        )
    ]  # fmt: skip
    gone = [f"~roles.{role}" for role in ("teacher", "assistant", "student_a", "student_b")]
    made_in(
        root, "titan", *TINY, *gone, *roles, "roles.scribe.init=ghost", "ahead.role=scribe", source["clean"],
        "tokenizer.model=ghost", steps, "imitate.paragraphs=10", "imitate.tokens=64", labels,
    )  # fmt: skip
    return Made(root, planted, with_none(planted))
