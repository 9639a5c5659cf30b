"""Tables of exams: scores, paired differences over draws, spread, clean scores."""

from typing import Any, cast

import pytest

from atelier.engine.config.audit import AuditResult
from atelier.engine.config.exam import AnswerLine, ExamResult, Interval
from atelier.engine.config.exam_metrics import difference, estimates, f1, is_exact
from atelier.infra.report.audits import audit_tables, clean_tables, place_tables, reading_text
from atelier.infra.report.exams import ModelExam, exam_tables, exams_png


def lines(rights: list[int], nats: float = 1.0) -> list[AnswerLine]:
    return [
        AnswerLine(
            id=str(n), group=str(n), nats=[nats, 2.0], tokens=[1, 2], bytes=[4, 8], best=[True, False],
            answer=0, right=float(right), length=9, cut=0,
        )
        for n, right in enumerate(rights)
    ]  # fmt: skip


def exam(model: str, rights: list[int], *, shots: int = 0, seed: int = 0, name: str = "quiz") -> ModelExam:
    found = lines(rights, nats=1.0 + shots)
    metrics = {
        key: Interval(value=e.value, low=e.low, high=e.high) for key, e in estimates(found, "choice").items()
    }
    result = ExamResult(
        set=name, kind="choice", shots=shots, seed=seed, questions=len(found), groups=len(found), cut=0,
        metrics=metrics,
    )  # fmt: skip
    return ModelExam(model, "f", result, found)


def cells(tables: list[Any], title: str) -> list[list[str]]:
    return [list(row) for table in tables if table.title.startswith(title) for row in table.rows]


def test_models_are_compared_on_the_same_questions_and_shots_with_the_fewest():
    same = [1, 0] * 20
    exams = [
        exam("a", same), exam("b", [1] * 40),
        exam("a", same, shots=5, seed=1), exam("a", same, shots=5, seed=2),
    ]  # fmt: skip
    tables = exam_tables(exams)
    rows = cells(tables, "Differences")
    assert rows[0][:3] == ["b - a", "quiz, 0 shots", "accuracy"] and rows[0][4] == "better"
    assert rows[0][3].startswith("+50.0 (")
    shots = [row for row in rows if row[1] == "quiz, 5 - 0 shots"]
    assert [row[0] for row in shots] == ["a", "a"]
    assert shots[0][3] == "+0.0 (+0.0 to +0.0) %" and shots[0][4] == "within chance"
    assert shots[1][4] == "worse"  # more bits a byte
    assert cells(tables, "Spread")[0][:4] == ["a", "quiz", "5", "2"]
    assert exams_png(exams).startswith(b"\x89PNG")


def test_each_metric_of_options_is_computed_from_the_likelihoods():
    line = lines([1])[0] | {
        "nats": [3.0, 2.0],
        "alone": [2.9, 0.1],
        "bytes": [6, 3],
        "tokens": [3, 1],
        "answer": 0,
    }
    found = estimates([cast(AnswerLine, line)], "choice")
    assert found["accuracy_bytes"].value == 1.0  # 0.5 a byte below 0.67
    assert found["accuracy_tokens"].value == 1.0  # 1 a token below 2
    assert found["accuracy_prior"].value == 1.0  # 0.1 below 1.9
    assert found["bits_per_byte"].value == pytest.approx(3.0 / 0.6931471805599453 / 6)


def test_a_difference_needs_questions_that_both_answered():
    assert difference(lines([1]), [], "accuracy") is None
    found = difference(lines([1, 1, 0]), lines([0, 1]), "accuracy")
    assert found is not None and found.value == 0.5


def test_free_answers_are_compared_as_the_set_says():
    assert is_exact(" Paris\n", "Paris", ignore_case=False, ignore_punctuation=False)
    assert not is_exact("paris.", "Paris", ignore_case=True, ignore_punctuation=False)
    assert is_exact("paris.", "Paris", ignore_case=True, ignore_punctuation=True)
    assert f1("the cat sat", "a cat sat down") == pytest.approx(0.8)
    assert f1("", "x") == 0.0


def audit(statuses: dict[str, str], unseen: list[str] | None = None) -> AuditResult:
    questions = []
    for number, status in statuses.items():
        reading = {"route": 0, "times": 2, "whole": 1, "first": 3, "last": 9, "after": 1}
        overlap = {
            "form": "near", "share": 0.8, "artifact": "text 1234abcd", "kind": "corpus", "document": "d.txt",
            "split": "train", "begin": 4, "end": 90, "excerpt": "some text", "readings": [reading],
        }  # fmt: skip
        questions.append({"id": number, "status": status, "overlaps": [overlap]})
    made = {
        "name": "quiz.0",
        "base": "quiz",
        "fingerprint": "f",
        "counts": {"read": 1},
        "answers_too_short": 2,
    }
    result = {
        "model": "a", "fingerprint": "f", "sets": [made | {"questions": questions}],
        "routes": ["its own text: model a"], "unseen": unseen or [],
    }  # fmt: skip
    return cast(AuditResult, result)


def test_clean_scores_leave_out_what_was_read_or_may_have_been():
    audits = {"a": audit({"0": "read", "1": "unknown", "2": "unread"})}
    [row] = cells(clean_tables([exam("a", [1, 1, 0, 0])], audits), "Clean")
    assert row[-1] == "2 / 2"
    assert row[4].startswith("100.0") and row[5].startswith("0.0") and row[6].startswith("+100.0")
    assert clean_tables([exam("other", [1])], audits) == []


def test_places_tell_how_often_and_when():
    result = audit({"7": "read"}, unseen=["model guest comes from outside"])
    [place] = cells(place_tables({"a": result}), "Audit")
    assert place[2:4] == ["7", "a part of it, 80 %"]
    assert "d.txt, characters 4 to 90" in place[4] and "its own text" in place[5]
    assert place[6] == "2 times, first at step 3, last at step 9; 1 times after the last lesson"
    assert cells(audit_tables({"a": result}), "Audit: what")[0] == ["a", "model guest comes from outside"]
    overlap = result["sets"][0]["questions"][0]["overlaps"][0]
    told: Any = overlap["readings"][0]
    differ = told | {"times": None, "unknown": "rows differ"}
    assert reading_text(overlap, differ, result).startswith("unknown: rows differ")
    assert reading_text(overlap, told | {"times": 0, "after": 0}, result) == "never: no step reached it"
    held_out: Any = overlap | {"split": "held_out"}
    assert reading_text(held_out, told, result) == "never: held out"
