"""Questions of a task of lm-evaluation-harness 0.4.13, rendered as it does: `doc_to_text`, `doc_to_target`,
`doc_to_choice`, the delimiters and the solved examples. engine/data/evaluation/sandbox.py runs the templates.

Two differences: a template that asks for a field that a row does not have is refused for this row too, and a
question is never its own solved example.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from atelier.engine.config.base import Json, parse
from atelier.engine.config.error import DataError, nearest
from atelier.engine.config.evaluation_source import FIELDS, FewShot, Function, TaskSource, metrics_of
from atelier.engine.config.task.prepare import PoseConfig
from atelier.engine.data.evaluation.questions import (
    BATCH,
    AskedQuestion,
    PosedRow,
    QuestionSource,
    check_options,
    parts_of,
    rows_of,
)
from atelier.engine.data.row import fields_of, kind_of
from atelier.engine.data.source_reader import SourceReader
from atelier.engine.io.evaluation_files import CODE, POOL, QUESTIONS
from atelier.engine.io.limited_process import LimitedProcess, LimitError, Limits

SANDBOX = "atelier.engine.data.evaluation.sandbox"
CPU_S, MEMORY = 20.0, 2 << 30  # of the process: per BATCH rows; bytes
CODE_CPU_S = 600.0  # per batch, for a task's own code
TEXT, TARGET, CHOICE = FIELDS
MODES = {TEXT: "text", TARGET: "target", CHOICE: "choice", "description": "plain"}
Values = Mapping[str, Json]


def read(config: PoseConfig, reader: SourceReader) -> QuestionSource:
    """The questions of the task, and its pool if solved examples are asked for.

    Raises ConfigError for a template that is not valid, DataError with file and row for what cannot be asked.
    """
    task = parse(TaskSource, config.source, config.place)
    few = task.fewshot_config or FewShot()
    renderer = _Renderer(task, config.place, _code(config, reader))
    try:
        files = {use: rows_of(list(each), reader) for use, each in config.files.items() if use != CODE}
        rows = renderer.processed(files[QUESTIONS])
        pool = renderer.processed(files.get(POOL, []))
        if config.shots and few.samples is not None and POOL not in files:
            place = f"{config.place}.fewshot_config.samples"
            pool = [PosedRow(f"{place}.{n}", dict(row)) for n, row in enumerate(few.samples)]
        renderer.fields = frozenset(name for row in rows for name in row.values)
        questions, description = renderer.questions(rows), renderer.description()
        return QuestionSource(
            kind=task.kind,
            questions=questions,
            pool=renderer.questions(pool, is_pool=True),
            pool_name=f"the split {task.pool_split}" if task.pool_split else "the samples",
            is_first=few.sampler == "first_n",
            description=description,
            until=task.until() if task.kind == "free" else (),
            max_tokens=task.generation_kwargs.max_gen_toks if task.generation_kwargs else 256,
            metrics=metrics_of(task.kind, task.metric_list, config.place),
        )
    finally:
        renderer.close()


def _code(config: PoseConfig, reader: SourceReader) -> str:
    return "\n".join(reader.whole(path, digest).decode() for path, digest in config.files.get(CODE, ()))


class _Renderer:
    """The process that renders the templates of a task. `fields`: those of the questions' rows."""

    def __init__(self, task: TaskSource, place: str, code: str) -> None:
        self._task, self._place, self._code = task, place, code
        self.fields: frozenset[str] = frozenset()
        self._descriptions: Counter[str] = Counter()
        limits = Limits(MEMORY, CODE_CPU_S if code else CPU_S)
        self._process = LimitedProcess(SANDBOX, limits)

    def close(self) -> None:
        self._process.close()

    def description(self) -> str:
        """The description, which must be the same for all questions."""
        if len(self._descriptions) > 1:
            raise DataError(
                f"{self._place}.description: differs between questions ({len(self._descriptions)} texts);"
                " move it into doc_to_text"
            )
        return next(iter(self._descriptions), "")

    def processed(self, rows: list[PosedRow]) -> list[PosedRow]:
        """The rows after `process_docs`."""
        if self._task.process_docs is None or not rows:
            return rows
        self._open({})
        asked: dict[str, Json] = {"process_docs": [row.values for row in rows]}
        made = cast("list[dict[str, Json]]", self._ask(asked, rows))
        if len(made) == len(rows):
            return [PosedRow(row.where, values) for row, values in zip(rows, made, strict=True)]
        return [
            PosedRow(f"{self._place}: row {number} of process_docs", values)
            for number, values in enumerate(made, start=1)
        ]

    def questions(self, rows: list[PosedRow], *, is_pool: bool = False) -> list[AskedQuestion]:
        """The rows as questions, with their number as id."""
        given = {
            TEXT: self._task.doc_to_text,
            TARGET: self._task.doc_to_target,
            CHOICE: self._task.doc_to_choice,
        }
        said = given | {"description": self._task.description or None}
        templates = {
            name: (MODES[name], text)
            for name, text in said.items()
            if isinstance(text, str) and text not in self.fields
        }
        self._open(templates)
        made: list[AskedQuestion] = []
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            each = cast(Sequence[Values], self._ask({"rows": [row.values for row in batch]}, batch))
            for number, (row, values) in enumerate(zip(batch, each, strict=True), start):
                self._check(row, values)
                whole = {name: _given(text, row) for name, text in said.items() if name not in values}
                question = self._question(str(number), row, whole | dict(values))
                made.append(question if is_pool else replace(question, slice=self._slice(row)))
        other = next((one for one in made if bool(one.contexts) != bool(made[0].contexts)), None)
        if other is not None:
            raise DataError(
                f"{self._place}.{TEXT}: gives text for some rows, but for others a whole number, which makes"
                f" each option a context ({made[0].where}, {other.where}); write a word before it"
            )
        return made

    def _slice(self, row: PosedRow) -> str:
        """The part of the set that a row belongs to; '' if none."""
        given = _given(self._task.slice, row) if self._task.slice else None
        if isinstance(given, bool) or not isinstance(given, str | int | None):
            raise DataError(
                f"{row.where}: {self._task.slice} is {kind_of(given)}, which names no part of a set"
            )
        return "" if given is None else str(given)

    def _question(self, name: str, row: PosedRow, values: Values) -> AskedQuestion:
        self._descriptions[str(values["description"] or "")] += 1
        make = {"choice": self._choice, "cloze": self._cloze, "free": self._free, "text": self._text}
        return make[self._task.kind](name, row, values)

    def _choice(self, name: str, row: PosedRow, values: Values) -> AskedQuestion:
        text, target, choices = values[TEXT], values[TARGET], values[CHOICE]
        if isinstance(choices, Mapping):
            choices = list(choices.values())
        if not isinstance(choices, list | tuple):
            raise DataError(f"{row.where}: {CHOICE} gives {kind_of(choices)}, not a list of options")
        options = check_options(choices, row.where)
        if isinstance(text, int):
            return self._partial(name, row, text, target, options)
        context = _as_text(text, TEXT, row)
        answer = _place(target, options, TARGET, row)
        delimiter = self._task.target_delimiter
        parts, shared = parts_of(row.values, context)
        return AskedQuestion(
            where=row.where,
            id=name,
            context=context,
            options=tuple(f"{delimiter}{option}" for option in options),
            answer=answer,
            answer_text=options[answer],
            parts=parts,
            shared=shared,
            shot=self._shot(context, options[answer]),
        )

    def _partial(
        self, name: str, row: PosedRow, text: int, target: Json, contexts: list[str]
    ) -> AskedQuestion:
        """Each option is a context, and the target continues it (lm-eval's multiple inputs)."""
        answer = _place(text, contexts, TEXT, row)
        rest = _as_text(target, TARGET, row)
        if not rest:
            raise DataError(f"{row.where}: {TARGET} is empty, so nothing continues the options; fix the row")
        continuation = f"{self._task.target_delimiter}{rest}"
        parts, shared = parts_of(row.values, contexts[answer] + continuation)
        return AskedQuestion(
            where=row.where,
            id=name,
            contexts=tuple(contexts),
            options=(continuation,) * len(contexts),
            answer=answer,
            answer_text=contexts[answer] + continuation,
            parts=parts,
            shared=shared,
            shot=self._shot(contexts[answer], rest),
        )

    def _cloze(self, name: str, row: PosedRow, values: Values) -> AskedQuestion:
        context, target = _as_text(values[TEXT], TEXT, row), _answers(values[TARGET], row)
        if len(target) > 1:
            raise DataError(f"{row.where}: {TARGET} gives {len(target)} answers; a cloze has one")
        parts, shared = parts_of(row.values, context)
        return AskedQuestion(
            where=row.where,
            id=name,
            context=context,
            options=(target[0],),
            answer_text=target[0].strip(),
            parts=parts,
            shared=shared,
            shot=self._shot(context, target[0]),
        )

    def _free(self, name: str, row: PosedRow, values: Values) -> AskedQuestion:
        context, target = _as_text(values[TEXT], TEXT, row), values[TARGET]
        if values[CHOICE] is not None and isinstance(choices := values[CHOICE], list | tuple):
            options = check_options(choices, row.where)
            target = options[_place(target, options, TARGET, row)]
        targets = _answers(target, row)
        parts, shared = parts_of(row.values, context)
        return AskedQuestion(
            where=row.where,
            id=name,
            context=context,
            targets=tuple(targets),
            answer_text=targets[0],
            parts=parts,
            shared=shared,
            shot=self._shot(context, targets[0]),
        )

    def _text(self, name: str, row: PosedRow, values: Values) -> AskedQuestion:
        [text, *others] = _answers(values[TARGET], row)
        if others:
            raise DataError(f"{row.where}: {TARGET} gives {len(others) + 1} texts; give one")
        return AskedQuestion(where=row.where, id=name, targets=(text,), answer_text=text, parts=(text,))

    def _shot(self, context: str, answer: str) -> str:
        return f"{context}{self._task.target_delimiter}{answer}{self._task.fewshot_delimiter}"

    def _open(self, templates: Mapping[str, tuple[str, str]]) -> None:
        said = {name: getattr(self._task, name) for name in (*FIELDS, "process_docs")}
        functions = {
            name: one.function.rpartition(".")[2] for name, one in said.items() if isinstance(one, Function)
        }
        try:
            self._process.ask(
                {
                    "templates": {name: list(each) for name, each in templates.items()},
                    "place": self._place,
                    "has_options": self._task.doc_to_choice is not None,
                    "code": self._code,
                    "functions": functions,
                }
            )
        except LimitError as error:
            raise DataError(f"{self._place}: a template {error}; fix it") from None

    def _ask(self, request: dict[str, Json], rows: Sequence[PosedRow]) -> Json:
        try:
            return self._process.ask(request)
        except LimitError as error:
            between = f"{rows[0].where} to {rows[-1].where}" if len(rows) > 1 else rows[0].where
            raise DataError(f"{self._place}: {error} for the rows {between}; fix the template") from None
        except DataError as error:
            raise DataError(f"{self._place}: {error}") from None

    def _check(self, row: PosedRow, values: Values) -> None:
        """Raise DataError if a template failed."""
        if "error" not in values:
            return
        known = [name for name in row.values]
        advice = ""
        if values["missing"]:
            asked = str(values["error"]).split("'")
            near = nearest(asked[1] if len(asked) > 1 else "", known)
            advice = f"; fields there: {fields_of(row.values)}" + (f"; did you mean {near}?" if near else "")
        raise DataError(f"{row.where}: {values['name']} of {self._place}: {values['error']}{advice}")


def _given(text: Json | Function, row: PosedRow) -> Json:
    """A value that needs no template: a field's, or the task's own."""
    if not isinstance(text, str):
        return None if isinstance(text, Function) else text
    if text not in row.values:
        raise DataError(f"{row.where}: has no field {text!r}; fields there: {fields_of(row.values)}")
    return row.values[text]


def _as_text(value: Json, name: str, row: PosedRow) -> str:
    if not isinstance(value, str):
        raise DataError(f"{row.where}: {name} gives {kind_of(value)}, not text")
    return value


def _answers(value: Json, row: PosedRow) -> list[str]:
    """The right answers as text; a number as its digits, as lm-eval does."""
    each = value if isinstance(value, list | tuple) else [value]
    texts = [str(one) if isinstance(one, int | float | str) else "" for one in each]
    if not texts or not all(text.strip() for text in texts):
        raise DataError(f"{row.where}: {TARGET} gives no answer (given: {str(value)[:80]!r})")
    return texts


def _place(value: Json, options: Sequence[str], name: str, row: PosedRow) -> int:
    """The number of the right option, which is given as a number or as its text."""
    if isinstance(value, list | tuple):
        raise DataError(f"{row.where}: {name} gives several right options, which is not supported")
    if isinstance(value, int) and 0 <= value < len(options):
        return int(value)
    if isinstance(value, str) and value in options:
        return options.index(value)
    known = ", ".join(repr(option[:40]) for option in options[:6])
    raise DataError(
        f"{row.where}: the answer {str(value)[:80]!r} is none of the {len(options)} options: {known};"
        f" {name} must give an option or its number from 0"
    )
