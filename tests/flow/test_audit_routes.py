"""Planted questions that came to a model through its teachers, labels, writers and imitations; what is
unknown where records or files are gone; and calls that are refused.
"""

import shutil
from pathlib import Path

import pytest

from atelier.engine.config.audit import AuditResult
from atelier.infra.store.store import Store
from tests.flow.audited import TINY, audited, by_way, made_in, questions_of, said_in
from tests.flow.planted import FORMS
from tests.flow.planted_dags import Made, in_line
from tests.flow.recounted import Recount

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return in_line(tmp_path_factory.mktemp("routes"), tmp_path_factory.mktemp("texts"))


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
    made: Made,
    result: AuditResult,
    name: str,
    way: str,
    model: str,
    scratch: Path,
    source: str = "tokens.main",
) -> None:
    """A question was read through one way, in the steps that a recount of that model's training finds."""
    asked, each = made.planted.questions[name], questions_of(result)[name]
    [overlap] = each["overlaps"]
    assert overlap["document"] == f"{asked.file}:{asked.document + 1}"
    assert (overlap["begin"], overlap["end"]) == (asked.begin, asked.end)
    ways = by_way(result, each)
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


@pytest.fixture
def copy(made: Made, tmp_path: Path) -> Made:
    """The same store, to be damaged; with the indices that were made, without the audits."""
    shutil.copytree(made.root, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "audit", ignore_errors=True)
    return Made(tmp_path / "copy", made.planted, made.asked)


def place_of(made: Made, kind: str, name: str) -> Path:
    store = Store(str(made.root))
    [record] = [each for each in store.records(kind) if each.name == name]
    return Path(store.address(kind, record.fingerprint))


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_teacher_without_a_record_is_unknown_and_named(copy: Made, damage: str) -> None:
    place = place_of(copy, "model", "master")
    shutil.rmtree(place)
    if damage == "damaged":
        place.mkdir()
        (place / "record.json").write_text("{}")
    none = copy.planted.set("none.jsonl", "none-0", "none-1")
    result = audited(copy.root, "student", none, code=4)
    assert result["sets"][0]["counts"]["unknown"] == 2
    [unseen] = result["unseen"]
    assert unseen.startswith("its teacher, its teacher: ") and unseen.endswith("is missing or damaged")
    assert place.name[:8] in unseen
    found = questions_of(audited(copy.root, "student", copy.asked, code=3))
    assert found["own-verbatim"]["status"] == "read" and found["none-0"]["status"] == "unknown"
    assert found["master-verbatim"]["status"] == "unknown"  # a tokenizer learned from it; who else read it?


@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
def test_a_corpus_that_cannot_be_read_is_unknown_and_named(copy: Made, damage: str) -> None:
    place = place_of(copy, "corpus", "own")
    [file] = place.glob("payload-*/documents.jsonl")
    whole = file.read_bytes()
    damaged = {"cut": whole[:-9], "changed": whole[:200] + b"x" + whole[201:]}
    file.write_bytes(damaged.get(damage, b""))
    if damage == "missing":
        file.unlink()
    result = audited(copy.root, "student", copy.asked, code=3)
    found = questions_of(result)
    [unseen] = result["unseen"]
    assert unseen.startswith("corpus own: ") and file.name in unseen
    assert found["side-verbatim"]["status"] == found["master-verbatim"]["status"] == "read"
    assert found["own-verbatim"]["status"] == found["none-0"]["status"] == "unknown"
    if damage != "changed":  # another size: the audit is made again when the file is back
        file.write_bytes(whole)
        assert questions_of(audited(copy.root, "student", copy.asked, code=3))["own-verbatim"]["overlaps"]


def test_a_corpus_with_changed_bytes_and_no_index_ends_the_audit_with_its_name(copy: Made) -> None:
    shutil.rmtree(copy.root / "word_index")
    [file] = place_of(copy, "corpus", "own").glob("payload-*/documents.jsonl")
    whole = file.read_bytes()
    file.write_bytes(whole[:200] + b"x" + whole[201:])
    said = said_in(copy.root, "audit", "student", copy.asked)
    assert said.code == 1 and file.name in said.err and "does not match its digest" in said.err


def test_what_an_adopted_ancestor_had_read_is_unknown_and_never_clean(copy: Made, tmp_path: Path) -> None:
    out, none = str(tmp_path / "out"), copy.planted.set("none.jsonl", "none-0", "none-1")
    made_in(copy.root, "export", "master", out)
    made_in(copy.root, "adopt", f"source={out}", "name=guest", "tracker=none")
    made_in(
        copy.root, "distill", *TINY, "role@roles.teacher=finished", "roles.teacher.init=guest",
        "roles.student_a.start=0", "tokenizer.model=guest", "train.steps=8",
        f"data.source={copy.planted.folder / 'clean.jsonl'}",
    )  # fmt: skip
    for model in ("guest", "student_a"):
        result = audited(copy.root, model, none, code=4)
        assert result["sets"][0]["counts"]["unknown"] == 2
        assert any("comes from outside" in words for words in result["unseen"])


def test_bad_calls_are_refused_and_short_questions_are_not_called_clean(made: Made, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    other = made.planted.set("other.jsonl", "none-0")
    twin = str(shutil.copy(other, tmp_path / "more" / "asked.jsonl"))
    short = tmp_path / "short.jsonl"
    short.write_text('{"question": "How deep is it?", "answer": "seven"}\n')
    known = "asked.0"  # of the store
    said_in(made.root, "audit", "student", made.asked)
    for words, why in {
        ("nobody", made.asked): "no model called 'nobody'",
        ("student", made.asked, twin): "two sets are called asked.0",
        ("student", known, twin): "two sets are called asked.0",
        ("student", str(tmp_path / "missing.jsonl")): "does not exist",
        ("student",): "none is given",
    }.items():
        said = said_in(made.root, "audit", *words)
        assert said.code == 2 and why in said.err and "Traceback" not in said.err
    result = audited(made.root, "student", str(short), code=4)
    assert result["sets"][0]["counts"]["too_short"] == 1
