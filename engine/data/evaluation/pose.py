"""The task `pose`: write an evaluation set, its questions as they are asked with their solved examples.

What is asked here is what models are asked, what is searched for in training text, and what is audited.
"""

import json
from collections import Counter
from collections.abc import Sequence
from importlib import import_module

import numpy as np

from atelier.engine.config.base import Json
from atelier.engine.config.error import DataError
from atelier.engine.config.evaluation_set import QUESTIONS, SET, SHOTS, EvaluationSet, QuestionLine, ShotLine
from atelier.engine.config.task.prepare import PoseConfig
from atelier.engine.data.counter_rng import Permutation
from atelier.engine.data.evaluation.questions import AskedQuestion, QuestionSource
from atelier.engine.data.source_reader import SourceReader
from atelier.engine.io.artifact import ArtifactOutput
from atelier.engine.io.process import Progress
from atelier.engine.io.source_files import total_bytes

SHARED = 8  # words of a part that makes two questions one group
SHOWN = 3  # pairs of equal questions that an error names


def pose(config: PoseConfig, output: ArtifactOutput, progress: Progress) -> dict[str, Json]:
    """Write set.json, questions.jsonl and shots.jsonl. Returns the summary.

    Raises DataError, with file and row, for a set without questions or answers, for questions that are asked
    twice, and for more solved examples than the pool has.
    """
    files = [each for some in config.files.values() for each in some]
    progress.start(total_bytes(files), "bytes")
    form = import_module(f"atelier.engine.data.evaluation.{config.form}_questions")
    with SourceReader(on_error="stop", place="", progress=progress) as reader:
        source: QuestionSource = form.read(config, reader)
    questions = _first(source.questions, config.max_questions)
    _check(questions, source, config)
    drawn = _drawn(questions, source, config)
    used = sorted({place for places in drawn for place in places})
    numbers = {place: number for number, place in enumerate(used)}
    groups = _groups(questions)
    lines = [
        _line(one, group, [numbers[place] for place in places])
        for one, group, places in zip(questions, groups, drawn, strict=True)
    ]
    shots: list[ShotLine] = [{"id": source.pool[place].id, "text": source.pool[place].shot} for place in used]
    made = EvaluationSet(
        name=config.name,
        kind=source.kind,
        description=source.description,
        shots=config.shots,
        seed=config.seed,
        until=source.until,
        max_tokens=source.max_tokens,
        metrics=source.metrics,
        template={key: one for key, one in config.source.items() if key != "dataset_kwargs"},
    )
    output.add_json(SET, made.model_dump(mode="json"))
    output.add_bytes(QUESTIONS, _encoded(lines))
    output.add_bytes(SHOTS, _encoded(shots))
    left_out = len(source.questions) - len(questions)
    equal_options = sum(len(set(one.options)) < len(one.options) for one in questions if not one.contexts)
    _tell(progress, config, left_out, equal_options, len(set(groups)), len(questions))
    return {
        "questions": len(lines),
        "kind": source.kind,
        "option_counts": dict(sorted(Counter(str(len(one.options)) for one in questions).items())),
        "groups": len(set(groups)),
        "shots": config.shots,
        "pool": len(source.pool),
        "examples": len(shots),
        "seed": config.seed,
        "left_out": left_out,
        "equal_options": equal_options,
    }


def _first(questions: list[AskedQuestion], most: int) -> list[AskedQuestion]:
    """At most so many (0 = all), without a part of an item unless it is the first."""
    if not most or len(questions) <= most:
        return questions
    end, item = most, questions[most].item
    while item and end and questions[end - 1].item == item:
        end -= 1
    return questions[: end or most]


def _tell(
    progress: Progress, config: PoseConfig, left_out: int, equal_options: int, groups: int, questions: int
) -> None:
    if left_out:
        progress.warn(
            f"{config.name}: {left_out} questions after the first {questions} are left out (max_questions is"
            f" {config.max_questions})"
        )
    if equal_options:
        progress.warn(f"{config.name}: {equal_options} questions have two equal options")
    if groups == 1 < questions:
        progress.warn(
            f"{config.name}: all {questions} questions are one group (a field `group`, or a text that they"
            " share), so nothing tells how sure a result is"
        )


def _check(questions: Sequence[AskedQuestion], source: QuestionSource, config: PoseConfig) -> None:
    """Raise DataError for no questions, equal ids, and questions that ask the same."""
    if not questions:
        pool = f" (all {len(source.pool)} rows are of the split train)" if source.pool else ""
        raise DataError(f"{config.place}: has no questions{pool}; give a source with some")
    if config.shots and source.kind == "text":
        raise DataError(f"{config.place}: texts have no solved examples; give shots=0")
    places: dict[str, AskedQuestion] = {}
    for one in questions:
        if one.id in places:
            raise DataError(
                f"{one.where}: its id {one.id!r} is also that of {places[one.id].where}; make them unique"
            )
        places[one.id] = one
    seen: dict[tuple[str | tuple[str, ...], ...], AskedQuestion] = {}
    twice = [(seen[one.key], one) for one in questions if seen.setdefault(one.key, one) is not one]
    if twice:
        named = ", ".join(f"{a.id} and {b.id}" for a, b in twice[:SHOWN])
        more = f" and {len(twice) - SHOWN} more" if len(twice) > SHOWN else ""
        raise DataError(
            f"{twice[0][1].where}: asks the same as {twice[0][0].where} (ids {named}{more}); keep one of each"
        )


def _drawn(questions: Sequence[AskedQuestion], source: QuestionSource, config: PoseConfig) -> list[list[int]]:
    """The places in the pool of each question's solved examples: the first ones, or drawn by (seed, number of
    the question), never the question itself.
    """
    pool, wanted = source.pool, config.shots
    if not wanted:
        return [[] for _ in questions]
    result: list[list[int]] = []
    for number, one in enumerate(questions):
        size = min(len(pool), wanted + 1)
        while True:
            places = np.arange(size)
            if not source.is_first:
                places = Permutation(len(pool), config.seed, "shots", number)(places)
            chosen = [place for place in places.tolist() if pool[place].shot != one.shot][:wanted]
            if len(chosen) == wanted or size == len(pool):
                break
            size = min(len(pool), 2 * size)
        if len(chosen) < wanted:
            but = " beside the question itself" if len(chosen) < len(pool) else ""
            raise DataError(
                f"{one.where}: {wanted} solved examples are wanted, but {source.pool_name} has {len(chosen)}"
                f"{but}; ask for fewer (shots), or add some"
            )
        result.append(chosen)
    return result


def _groups(questions: Sequence[AskedQuestion]) -> list[str]:
    """The id of the first question with the same `group`; else of that with the same item, passage, longest
    text or part of SHARED words; else the question's own.
    """
    first: dict[tuple[str, str], str] = {}
    found = []
    for one in questions:
        texts = [one.shared, *(part for part in one.parts if len(part.split()) >= SHARED)]
        known = [("item", one.item), *(("text", text) for text in dict.fromkeys(texts))]
        keys = [key for key in ([("group", one.group)] if one.group else known) if key[1]]
        group = next((first[key] for key in keys if key in first), one.id)
        for key in keys:
            first.setdefault(key, group)
        found.append(group)
    return found


def _line(one: AskedQuestion, group: str, shots: list[int]) -> QuestionLine:
    line: QuestionLine = {
        "id": one.id,
        "context": one.context,
        "options": list(one.options),
        "answer": one.answer,
        "targets": list(one.targets),
        "shots": shots,
        "group": group,
        "parts": list(one.parts),
        "answer_text": one.answer_text,
    }
    if one.contexts:
        line["contexts"] = list(one.contexts)
    if one.slice:
        line["slice"] = one.slice
    if one.item:
        line["item"] = one.item
    if one.values:
        line["values"] = list(one.values)
    return line


def _encoded(lines: Sequence[QuestionLine] | Sequence[ShotLine]) -> bytes:
    return "".join(json.dumps(line, sort_keys=True, ensure_ascii=False) + "\n" for line in lines).encode()
