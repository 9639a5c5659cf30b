"""Planted questions that came to a model through its teachers, labels, writers and imitations; what is unknown
where records or files are gone; and calls that are refused.
"""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from atelier.engine.config.audit import AuditResult
from atelier.infra.store.store import Store
from tests.flow.audited import TINY, audited, by_way, made_in, questions_of, said_in
from tests.flow.planted import FORMS, World, world
from tests.flow.recounted import Recount

pytestmark = pytest.mark.slow
FINISHED = ("role@roles.teacher=finished", "tokenizer.model=master", "data.held_out=0.02")
NATURAL = "{kind: natural, weight: 0.1, rows: 0.1}"
SPECIALS = 'tokenizer.specials=["<|mask|>","<|cls|>","<|sep|>"]'


class Made(NamedTuple):
    root: Path
    planted: World
    asked: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """master teaches assistant, which teaches student; student is tuned; master writes for reader; ghost,
    which had read master's text, imitates for judge. Each has text of its own.
    """
    root, planted = tmp_path_factory.mktemp("routes"), world(tmp_path_factory.mktemp("texts"))
    text = {name: planted.training(name, "verbatim") for name in ("master", "assistant", "side")}
    text |= {"own": planted.training("own", *FORMS), "clean": planted.training("clean")}
    labels = planted.labels()
    for number in range(4):
        planted.ask(f"none-{number}", is_long=number > 1)
    asked = planted.set("asked.jsonl")
    steps, nano = "train.steps=12", "model=gpt_nano"
    source = {name: f"data.source={path}" for name, path in text.items()}
    made_in(root, "pretrain", *TINY[:3], "name=master", nano, source["master"], steps, "data.held_out=0.02")
    made_in(
        root, "distill", *TINY, *FINISHED, "roles.teacher.init=master", "~roles.student_a",
        "+role@roles.assistant=student", "roles.assistant.start=0", source["assistant"], steps,
    )  # fmt: skip
    made_in(
        root, "distill", *TINY, *FINISHED, "roles.teacher.init=assistant", "~roles.student_a",
        "+role@roles.student=student", "roles.student.start=0", source["own"],
        f"data.blend.side.source={text['side']}",
    )  # fmt: skip
    made_in(root, "finetune", *TINY[:2], "init=student", f"finetune.labels.source={labels}")
    made_in(root, "pretrain", *TINY[:3], "name=reader", nano, source["clean"], "data.written.by=master", steps)
    ernie = "ernie_nano"
    made_in(
        root, "pretrain", *TINY[:3], "name=ghost", f"model={ernie}", source["master"], steps, SPECIALS,
        "data.held_out=0.02",
    )  # fmt: skip
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
        "tokenizer.model=ghost", steps, "imitate.paragraphs=10", "imitate.tokens=64",
        f"finetune.labels.source={labels}",
    )  # fmt: skip
    return Made(root, planted, asked)


def test_a_students_text_its_teachers_and_its_teachers_teachers(made: Made, tmp_path: Path) -> None:
    result = audited(made.root, "student", made.asked, code=3)
    assert set(questions_of(result)) == {
        "master-verbatim", "assistant-verbatim", "side-verbatim", *(f"own-{form}" for form in FORMS),
    }  # fmt: skip
    check(made, result, "master-verbatim", "its teacher, its teacher", "master", tmp_path)
    check(made, result, "assistant-verbatim", "its teacher", "assistant", tmp_path)
    check(made, result, "side-verbatim", "its own text", "student", tmp_path, "tokens.side")
    for form in FORMS:
        check(made, result, f"own-{form}", "its own text", "student", tmp_path)
    assert result["sets"][0]["counts"]["unread"] == 0 and result["unseen"] == []


def check(
    made: Made, result: AuditResult, name: str, way: str, model: str, scratch: Path, source: str = "tokens.main"
) -> None:
    """A question was read through one way, in the steps that a recount of that model's training finds."""
    asked, each = made.planted.questions[name], questions_of(result)[name]
    [overlap] = each["overlaps"]
    assert overlap["document"] == f"{asked.file}:{asked.document + 1}"
    assert (overlap["begin"], overlap["end"]) == (asked.begin, asked.end)
    ways = {key: one for key, one in by_way(result, each).items()}
    assert set(ways) == {way} and each["status"] == "read"
    recount = Recount(made.root, model, scratch)
    steps = recount.steps(source, overlap["document"], (asked.begin, asked.end), 0, 24)
    steps = [step for step in steps if step < recount.last]
    told = ways[way]
    assert (told["times"], told["first"], told["last"]) == (len(steps), steps[0], steps[-1])


def test_examples_of_a_tuning_and_all_that_its_model_had_read(made: Made) -> None:
    tuned = audited(made.root, "student/pretrained-0", made.asked, code=3)
    before = audited(made.root, "student", made.asked, code=3)
    found = questions_of(tuned)
    labels = {name for name in found if name.startswith("label")}
    assert set(found) - labels == set(questions_of(before))
    for name in set(found) - labels:
        [way] = by_way(tuned, found[name])
        assert way.startswith("the model that it started from")
    assert len(labels) == 8
    read = {name for name in labels if found[name]["status"] == "read"}
    assert 0 < len(read) < 8  # 32 of the examples were drawn
    for name in labels:
        [overlap], told = found[name]["overlaps"], by_way(tuned, found[name])["its own text"]
        assert (overlap["kind"], overlap["form"]) == ("labels", "verbatim")
        assert told["times"] == (2 if name in read else 0)  # epochs
        assert overlap["split"] == "train" or name not in read


@pytest.mark.parametrize(
    ("model", "way", "reader"),
    [
        ("reader", "text that a model wrote", "master"),
        ("judge", "imitations that a model wrote, the model that it started from", "ghost"),
    ],
)
def test_what_the_writer_of_a_models_text_had_read(
    made: Made, model: str, way: str, reader: str, tmp_path: Path
) -> None:
    result = audited(made.root, model, made.asked, code=3)
    assert set(questions_of(result)) == {"master-verbatim"}
    check(made, result, "master-verbatim", way, reader, tmp_path)


def test_a_model_that_read_none_of_it_is_clean(made: Made) -> None:
    asked = made.planted.set("none.jsonl", *(f"none-{number}" for number in range(4)))
    for model in ("student", "judge"):
        result = audited(made.root, model, asked, code=0)
        assert result["sets"][0]["counts"]["clean"] == 4 and result["sets"][0]["questions"] == []
