"""Read evaluation questions from a file with one question a row, or from rows that a probe generates.

A row has `question`, or `context` or `prompt`, and its right answer: `answer` with `options` (or `choices`),
or `answer` (or `answers`) alone. What is asked is

  <passage>\\n                    if the row has one
  Question: <question>\\nAnswer:  of `question`; `context` and `prompt` are asked as they are

and each option or answer follows with a blank before it, unless it or the end of what is asked has one. Rows
of the split train are the pool of solved examples, each with a blank line behind it. `values` in place of an
answer: a number for each option. `slice`, `item` and `group`: as of a QuestionLine.
"""

from dataclasses import replace

from atelier.engine.config.base import Json, parse
from atelier.engine.config.error import DataError, nearest
from atelier.engine.config.evaluation_set import QuestionKind
from atelier.engine.config.evaluation_source import ProbedRow, ProbeSource, RowSource, metrics_of
from atelier.engine.config.task.prepare import PoseConfig
from atelier.engine.data.evaluation.questions import (
    AskedQuestion,
    PosedRow,
    QuestionSource,
    check_options,
    parts_of,
    rows_of,
)
from atelier.engine.data.row import fields_of, kind_of, text_problem
from atelier.engine.data.source_reader import SourceReader
from atelier.engine.io.evaluation_files import QUESTIONS

ASKED = ("question", "context", "prompt")
OPTIONS, ANSWERS = ("options", "choices"), ("answer", "answers")
VALUES, LARGEST = "values", 1_000_000
OF_US = ("id", "group", "item", "slice")  # fields that say nothing of what is asked
TRAIN = "train"
BETWEEN = "\n\n"  # behind a solved example
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def read(config: PoseConfig, reader: SourceReader) -> QuestionSource:
    """The questions of the rows, and those of the split train as the pool. Raises DataError with file and row
    for what cannot be asked.
    """
    if "probe" in config.source:
        return _of_probe(config, reader)
    settings = parse(RowSource, {"source": config.place, **config.source}, config.place)
    rows = rows_of(list(config.files[QUESTIONS]), reader)
    kind = settings.kind or _kind_of(rows)
    made = [(row, _question(number, row, kind)) for number, row in enumerate(rows, start=1)]
    return QuestionSource(
        kind=kind,
        questions=[one for row, one in made if row.values.get("split") != TRAIN],
        pool=[one for row, one in made if row.values.get("split") == TRAIN],
        pool_name="the rows with split: train",
        description=settings.description,
        until=settings.until if kind == "free" else (),
        max_tokens=settings.max_tokens,
        metrics=metrics_of(kind),
    )


def _of_probe(config: PoseConfig, reader: SourceReader) -> QuestionSource:
    """The questions that a probe makes, from rows of a file if it names one."""
    probe = parse(ProbeSource, config.source, config.place).probe
    given = rows_of(list(config.files.get(QUESTIONS, ())), reader)
    known: dict[str, tuple[PosedRow, AskedQuestion]] = {}
    for number, row in enumerate(given, start=1):
        one = _question(number, row, "choice")
        if one.id in known:
            raise DataError(f"{row.where}: its id {one.id!r} is also that of {known[one.id][0].where}")
        if row.values.get("split") != TRAIN:
            known[one.id] = row, one
    of = [
        ProbedRow(name, _passage(row) + _text(row, ASKED), one.options, one.answer)
        for name, (row, one) in known.items()
    ]
    place = f"{config.place}.probe"
    rows = [
        PosedRow(f"{place}: row {number}", row) for number, row in enumerate(probe.rows(of, place), start=1)
    ]
    kind = _kind_of(rows)
    questions: list[AskedQuestion] = []
    for number, row in enumerate(rows, start=1):
        question = _question(number, row, kind)
        if question.item in known:  # what is searched for in text are the row's own words
            _, own = known[question.item]
            question = replace(
                question, parts=own.parts, answer_text=own.answer_text, shared=own.shared, group=own.group
            )
        questions.append(question)
    return QuestionSource(kind=kind, questions=questions, pool=[], metrics=metrics_of(kind))


def _kind_of(rows: list[PosedRow]) -> QuestionKind:
    """The kind that the first row shows."""
    first = rows[:1]
    if not any(_has(row, OPTIONS) for row in first):
        return "free"
    return "valued" if any(_has(row, (VALUES,)) and not _has(row, ANSWERS) for row in first) else "choice"


def _has(row: PosedRow, names: tuple[str, ...]) -> str:
    """The first of the names that the row has a value of; '' if none."""
    return next((name for name in names if row.values.get(name) is not None), "")


def _question(number: int, row: PosedRow, kind: QuestionKind) -> AskedQuestion:
    where, name = row.where, _name(row, "id") or str(number)
    if kind == "text":
        text = _text(row, ("text",))
        return AskedQuestion(where=where, id=name, targets=(text,), answer_text=text, parts=(text,))
    context, options = _context(row), _has(row, OPTIONS)
    if bool(options) != (kind in ("choice", "valued")):
        why = "has options" if options else "has no options"
        raise DataError(
            f"{where}: {why}, but the questions of this set are of kind {kind}; put other kinds into a file"
            f" of their own (fields there: {fields_of(row.values)})"
        )
    parts, shared = parts_of({key: one for key, one in row.values.items() if key not in OF_US}, context)
    blank = "" if not context or context[-1].isspace() else " "
    values: tuple[float, ...] = ()
    if options:
        listed = row.values[options]
        if not isinstance(listed, list):
            raise DataError(f"{where}: {options} is {kind_of(listed)}, not a list of texts")
        texts = check_options(listed, where)
        values = _values(row, texts) if kind == "valued" else ()
        answer = 0 if values else _place(row, texts)
        continued = tuple(_after(blank, text) for text in texts)
        answers = [""] if values else [texts[answer]]
    else:
        answers, answer = _answers(row), 0
        if kind == "cloze" and len(answers) > 1:
            raise DataError(f"{where}: has {len(answers)} answers; a cloze has one")
        continued = (_after(blank, answers[0]),)
    return AskedQuestion(
        where=where,
        id=name,
        context=context,
        options=continued if kind != "free" else (),
        answer=answer,
        targets=tuple(answers) if kind == "free" else (),
        answer_text=answers[0].strip(),
        parts=parts,
        shared=_text(row, ("passage",)) if _has(row, ("passage",)) else shared,
        shot="" if values else f"{context}{continued[answer]}{BETWEEN}",
        group=_name(row, "group"),
        item=_name(row, "item"),
        slice=_name(row, "slice"),
        values=values,
    )


def _name(row: PosedRow, field: str) -> str:
    """Text or a whole number as a name; '' if there is none."""
    given = row.values.get(field)
    if isinstance(given, bool) or not isinstance(given, str | int | None) or (field == "id" and given == ""):
        raise DataError(f"{row.where}: {field} is {kind_of(given)}, which is no name; give text or a number")
    return "" if given is None else str(given)


def _values(row: PosedRow, options: list[str]) -> tuple[float, ...]:
    given = row.values.get(VALUES)
    numbers = [
        float(one)
        for one in (given if isinstance(given, list) else [])
        if isinstance(one, int | float) and not isinstance(one, bool) and -LARGEST <= one <= LARGEST
    ]
    if not isinstance(given, list) or len(numbers) != len(given) or len(numbers) != len(options):
        raise DataError(
            f"{row.where}: {VALUES} must be {len(options)} numbers up to {LARGEST:,}, one for each option; it"
            f" is {str(given)[:80]}"
        )
    return tuple(numbers)


def _after(blank: str, text: str) -> str:
    return text if text[0].isspace() else f"{blank}{text}"


def _text(row: PosedRow, names: tuple[str, ...]) -> str:
    """The text of the first of these fields that is there."""
    name = _has(row, names)
    if not name:
        near = next((found for one in row.values if (found := nearest(one, names, 0.7))), "")
        advice = f"; did you mean {near}?" if near else ""
        raise DataError(
            f"{row.where}: has no {' or '.join(names)}; fields there: {fields_of(row.values)}{advice}"
        )
    problem = text_problem(row.values, name)
    if not problem and not str(row.values[name]).strip():
        problem = f"field '{name}' is empty"
    if problem:
        raise DataError(f"{row.where}: {problem}")
    return str(row.values[name])


def _context(row: PosedRow) -> str:
    text = _text(row, ASKED)
    if _has(row, ASKED) == "question":
        text = f"Question: {text}\nAnswer:"
    return _passage(row) + text


def _passage(row: PosedRow) -> str:
    """The row's passage with the end of its line; '' if it has none."""
    return f"{_text(row, ('passage',))}\n" if _has(row, ("passage",)) else ""


def _place(row: PosedRow, options: list[str]) -> int:
    """The number of the right option: given as a number from 0, as its text, or as its letter."""
    given = row.values.get("answer")
    if given is None:
        raise DataError(f"{row.where}: has no answer; fields there: {fields_of(row.values)}")
    if isinstance(given, str) and options.count(given) == 1:
        return options.index(given)
    place: Json = given
    if isinstance(given, str) and len(given) == 1 and given.upper() in LETTERS:
        place = LETTERS.index(given.upper())
    if isinstance(place, int) and not isinstance(place, bool) and 0 <= place < len(options):
        return place
    known = ", ".join(repr(option[:40]) for option in options[:6])
    raise DataError(
        f"{row.where}: the answer {str(given)[:80]!r} is none of the {len(options)} options: {known};"
        " give a number from 0, a letter, or the option's text"
    )


def _answers(row: PosedRow) -> list[str]:
    given = row.values.get(_has(row, ANSWERS))
    each = given if isinstance(given, list) else [given]
    texts = [str(one) for one in each if isinstance(one, str | int | float) and str(one).strip()]
    if not texts or len(texts) < len(each):
        what = "has no answer" if given is None else f"the answer {str(given)[:80]!r} is not text"
        raise DataError(f"{row.where}: {what}; fields there: {fields_of(row.values)}")
    return texts
