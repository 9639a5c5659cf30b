"""Audits in reports: questions by status, the places of those that were read, and the scores of models on the
questions that they had not read.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from atelier.engine.config.audit import (
    RESULT,
    STATUSES,
    AuditedQuestion,
    AuditResult,
    RouteReading,
    TextOverlap,
)
from atelier.engine.config.exam_metrics import estimates
from atelier.engine.config.intervals import apart
from atelier.engine.config.record import Record
from atelier.engine.io.storage import join, read_object
from atelier.infra.report.exams import SHORT, ModelExam, interval_text, told
from atelier.infra.report.table import Table
from atelier.infra.store.store import Store

SHOWN = 30  # places in a table
WORDS = {
    "read": "READ",
    "unknown": "unknown",
    "unread": "in a text, but no step reached it",
    "too_short": "too short to tell",
    "clean": "clean",
}
FORMS = {
    "verbatim": "word for word",
    "words": "the same words",
    "near": "a part of it",
    "answer": "the answer alone",
}


def audits_of(found: Mapping[str, Record | None], store: Store) -> dict[str, AuditResult]:
    """The results by model."""
    result: dict[str, AuditResult] = {}
    for key, record in found.items():
        if record is not None:
            entry = next(file for file in record.files if file.path.endswith(f"/{RESULT}"))
            place = join(store.address(record.kind, record.fingerprint), entry.path)
            result[key.removeprefix("audit.")] = cast(AuditResult, read_object(place, "an audit"))
    return result


def audit_tables(audits: Mapping[str, AuditResult]) -> list[Table]:
    """Questions by status of each model and set, and what could not be seen."""
    if not audits:
        return []
    counts, unseen = [], []
    for model, result in audits.items():
        for each in result["sets"]:
            numbers = [str(each["counts"].get(status, 0) or "") for status in STATUSES]
            counts.append([model, each["name"], *numbers, str(each["answers_too_short"] or "")])
        unseen += [[model, words] for words in result["unseen"]]
    head = ("model", "set", "read", "unknown", "not reached", "too short", "clean", "answers too short alone")
    tables = [Table("Audit: questions that the model or its teachers read", head, counts, [""] * len(counts))]
    if unseen:
        tables.append(Table("Audit: what could not be seen", ("model", "what"), unseen, [""] * len(unseen)))
    return tables


def place_tables(audits: Mapping[str, AuditResult]) -> list[Table]:
    """The places of questions that were found, the first `SHOWN`."""
    places = [
        [model, each["name"], *cells]
        for model, result in audits.items()
        for each in result["sets"]
        for question in each["questions"]
        for cells in place_rows(question, result)
    ]
    more = f", the first {SHOWN} of {len(places)}" if len(places) > SHOWN else ""
    head = ("model", "set", "question", "how", "where", "through", "read", "excerpt")
    shown = places[:SHOWN]
    return [Table(f"Audit: places{more}", head, shown, [""] * len(shown))] if places else []


def place_rows(question: AuditedQuestion, result: AuditResult) -> Iterator[list[str]]:
    """Question, form, document, way, readings and excerpt of each place, a row for each way."""
    for overlap in question["overlaps"]:
        for reading in overlap["readings"]:
            yield [
                question["id"],
                form_text(overlap),
                where_text(overlap),
                result["routes"][reading["route"]],
                reading_text(overlap, reading, result),
                overlap["excerpt"],
            ]


def form_text(overlap: TextOverlap) -> str:
    text = FORMS[overlap["form"]]
    return f"{text}, {100 * overlap['share']:.0f} %" if overlap["form"] == "near" else text


def where_text(overlap: TextOverlap) -> str:
    place = f"characters {overlap['begin']} to {overlap['end']}"
    return f"{overlap['kind']} {overlap['artifact']}, {overlap['document']}, {place}"


def question_lines(question: AuditedQuestion, result: AuditResult) -> Iterator[str]:
    """A question for a terminal: how and where it was found, and when that was read."""
    yield f"{question['id']}: {WORDS[question['status']]}"
    for overlap in question["overlaps"]:
        yield f"  {form_text(overlap)} in {where_text(overlap)}"
        yield f"    {overlap['excerpt']}"
        for reading in overlap["readings"]:
            yield f"    {reading_text(overlap, reading, result)}"
            yield f"      through {result['routes'][reading['route']]}"
    if "left_out" in question:
        yield f"  and {question['left_out']} more places"


def reading_text(overlap: TextOverlap, reading: RouteReading, result: AuditResult) -> str:
    """When a place was read, in words."""
    after = f"; {reading['after']} times after the last lesson" if reading["after"] else ""
    if reading["times"] is None:
        return f"unknown: {reading.get('unknown', 'not told')}{after}"
    if overlap["split"] != "train":
        return "never: held out"
    if "its tokenizer" in result["routes"][reading["route"]].partition(":")[0]:
        return "by the tokenizer, which keeps no sentences"
    if not reading["times"]:
        return f"never{after}" if after else "never: no step reached it"
    if reading["first"] is None:
        return "as a whole, without steps"
    times = "once" if reading["times"] == 1 else f"{reading['times']} times"
    return f"{times}, first at step {reading['first']}, last at step {reading['last']}{after}"


def clean_tables(exams: Sequence[ModelExam], audits: Mapping[str, AuditResult]) -> list[Table]:
    """For each exam of an audited model: the main metric on all questions, on those that were read or may
    have been, and on the others, with the difference of the two.
    """
    rows = []
    for each in exams:
        result = audits.get(each.model)
        sets = result["sets"] if result else []
        found = next((one for one in sets if one["base"] == each.exam["set"]), None)
        if found is None or not each.main:
            continue
        dirty = {one["id"] for one in found["questions"] if one["status"] != "unread"}
        kind = each.exam["kind"]
        read = [line for line in each.lines if line["id"] in dirty]
        clean = [line for line in each.lines if line["id"] not in dirty]
        one, other = (estimates(lines, kind).get(each.main) for lines in (read, clean))
        gap = apart(one, other) if one is not None and other is not None else None
        rows.append(
            [
                each.model,
                f"{each.exam['set']}, {each.exam['shots']} shots",
                SHORT[each.main],
                told(each, each.main),
                "" if one is None else interval_text(each.main, one),
                "" if other is None else interval_text(each.main, other),
                "" if gap is None else interval_text(each.main, gap, "+"),
                f"{len(read)} / {len(clean)}",
            ]
        )
    head = ("model", "set", "metric", "all", "read or unknown", "clean", "read - clean", "questions")
    return [Table("Clean scores", head, rows, [""] * len(rows))] if rows else []
