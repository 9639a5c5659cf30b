"""Planted questions of a student that trains beside its teacher: found in each form, in the right place, and
read in the steps in which a recount of all batches finds them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from atelier.engine.config.audit import AuditResult
from atelier.flows.run import execute
from tests.flow.audited import audited, by_way, questions_of
from tests.flow.planted import FORMS
from tests.flow.planted_dags import END, START, STEPS, Made, beside
from tests.flow.recounted import Recount


class Audited(NamedTuple):
    made: Made
    pupil: AuditResult


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    made = beside(tmp_path_factory.mktemp("audit"), tmp_path_factory.mktemp("texts"))
    return Audited(made, audited(made.root, "pupil", made.asked, code=3))


def test_each_form_is_found_in_its_place_and_nothing_else_is(both: Audited) -> None:
    found, planted = questions_of(both.pupil), both.made.planted.questions
    assert both.pupil["unseen"] == [] and both.pupil["sets"][0]["counts"]["clean"] == 4
    assert set(found) == {name for name in planted if not name.startswith("none")}
    for name, each in found.items():
        asked, [overlap] = planted[name], each["overlaps"]
        assert overlap["document"] == f"{asked.file}:{asked.document + 1}"
        assert overlap["begin"] in (asked.begin, asked.again) and overlap["share"] == 1
        assert overlap["end"] - overlap["begin"] == asked.end - asked.begin
        form = FORMS[asked.document % 4] if name.startswith("long") else "verbatim"
        assert overlap["form"] == ("verbatim" if form == "inside" else form)
        words = asked.answer if form == "answer" else " ".join(asked.question.split()[6:12])
        assert words in overlap["excerpt"]


def test_the_command_needs_no_server(both: Audited, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "embed", None)  # which would start one
    again = tmp_path / "again.jsonl"
    again.write_bytes(Path(both.made.asked).read_bytes())
    found = audited(both.made.root, "pupil", str(again), code=3)
    assert found["sets"][0]["counts"] == both.pupil["sets"][0]["counts"]


def test_steps_are_those_of_a_recount_and_count_up_to_the_last_lesson(both: Audited, tmp_path: Path) -> None:
    recount = Recount(both.made.root, "elder", tmp_path)
    seen = {"own": 0, "before": 0, "after": 0}
    for name, steps in steps_of(both, recount, both.pupil).items():
        each = questions_of(both.pupil)[name]
        own = [step for step in steps if START <= step < END]
        taught = [step for step in steps if step < END - 1]  # its weights in the last lesson had read these
        later = [step for step in steps if step >= END - 1]
        ways = by_way(both.pupil, each)
        assert set(ways) == {"its own text", "its teacher"}
        for way, counted in (("its own text", own), ("its teacher", taught)):
            first, last = (counted[0], counted[-1]) if counted else (None, None)
            told = ways[way]
            assert (told["times"], told["first"], told["last"]) == (len(counted), first, last), name
        assert (ways["its own text"]["after"], ways["its teacher"]["after"]) == (0, len(later))
        assert each["status"] == ("read" if own or taught else "unread")
        seen["own"] += bool(own)
        seen["before"] += bool(taught) and taught[-1] < START
        seen["after"] += bool(later) and not own and not taught
    assert min(seen.values()) > 2, seen


@pytest.mark.slow
def test_what_no_step_reached_and_what_was_held_out_is_not_read(both: Audited, tmp_path: Path) -> None:
    """Of the teacher alone: no lessons, and all of its steps count."""
    result, recount = (
        audited(both.made.root, "elder", both.made.asked, code=3),
        Recount(both.made.root, "elder", tmp_path),
    )
    found, unread = questions_of(result), set()
    for name, steps in steps_of(both, recount, result).items():
        reading = by_way(result, found[name])["its own text"]
        assert (reading["times"], reading["after"]) == (len(steps), 0)
        assert found[name]["status"] == ("read" if steps else "unread")
        unread |= set() if steps else {found[name]["overlaps"][0]["split"]}
    assert unread == {"train", "held_out"}


def test_of_two_places_in_one_document_one_that_was_read_is_told(both: Audited, tmp_path: Path) -> None:
    recount, seen = Recount(both.made.root, "elder", tmp_path), set()
    for name, each in questions_of(both.pupil).items():
        asked, [overlap] = both.made.planted.questions[name], each["overlaps"]
        if asked.again < 0 or overlap["split"] != "train":
            continue
        size = asked.end - asked.begin
        read = {
            begin
            for begin in (asked.begin, asked.again)
            # by the teacher before its last lesson, or by the student in that step
            if recount.steps("tokens.main", overlap["document"], (begin, begin + size), 0, END)
        }
        assert overlap["begin"] in (read or {asked.begin})
        assert each["status"] == ("read" if read else "unread")
        seen.add((asked.begin in read, asked.again in read))
    assert (False, True) in seen  # the first place alone would be called unread


def steps_of(both: Audited, recount: Recount, result: AuditResult) -> Mapping[str, list[int]]:
    """The steps of the teacher's training that read each question, where the audit found it."""
    found = {}
    for name, each in questions_of(result).items():
        asked, [overlap] = both.made.planted.questions[name], each["overlaps"]
        source = "tokens.side" if asked.file == "side.jsonl" else "tokens.main"
        place = overlap["begin"], overlap["begin"] + asked.end - asked.begin
        found[name] = recount.steps(source, overlap["document"], place, 0, STEPS)
    return found
