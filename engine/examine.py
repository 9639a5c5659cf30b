"""Examine a model on evaluation sets: python -m atelier.engine.examine run.json

run.json: task "examine"; config is an ExamineConfig; inputs `model` (of a checkpoint: `tokenizer`) and
`set.<key>` of each set; outputs `<key>`: exam.json and answers.jsonl (engine/config/exam.py). What a model
says to a question does not depend on other questions, on the batch or on the ranks, except by the rounding of
sums.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO, cast

import numpy as np
import torch
from torch import Tensor

from atelier.engine.checkpoint.manifest import read_manifest
from atelier.engine.checkpoint.reader import load_full
from atelier.engine.config.base import Json, canonical, parse
from atelier.engine.config.error import ConfigError, DataError, printable
from atelier.engine.config.evaluation_set import Metric, QuestionLine
from atelier.engine.config.exam import (
    ANSWERS,
    EXAM,
    PRIOR,
    AnswerLine,
    CheckpointAddress,
    Examine,
    ExamineConfig,
    ExamResult,
    Interval,
)
from atelier.engine.config.exam_metrics import (
    OF_LM_EVAL,
    estimates,
    is_exact,
    least,
    of_variants,
    parts_of,
)
from atelier.engine.config.intervals import Bounded
from atelier.engine.config.registry import ModelSpec, model_of
from atelier.engine.config.run_file import RunFile
from atelier.engine.data.asked import ModelQuestion, PosedSet, Reader, windows
from atelier.engine.data.option_rows import row_size
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.inference.generator import check_vocabulary
from atelier.engine.inference.models import TextModel
from atelier.engine.inference.opened import opened, opened_weights
from atelier.engine.inference.questions import Scored, answers, score_requests, text_metrics
from atelier.engine.inference.sampling import num_positions
from atelier.engine.io.process import Progress, input_of, leave, output_of, run_verb
from atelier.engine.model.auxiliary import is_auxiliary
from atelier.engine.model.load import check_shapes
from atelier.engine.parallel.gang import Gang, start_gang

NOT_CASE = Metric(name="exact_match", direction="maximize", ignore_case=True, ignore_punctuation=True)
WEIGHTS = "weights."  # prefix of a role's weights in a checkpoint
LONGEST = 2048  # tokens of a window where nothing says how long texts may be


class Examiner:
    """A model before its questions."""

    def __init__(
        self, model: TextModel, vocabulary: Vocabulary, config: ExamineConfig, progress: Progress
    ) -> None:
        self.model, self.vocabulary, self.config, self.progress = model, vocabulary, config, progress
        asked, learned = config.examine.sequence, num_positions(model.spec)
        if asked != "auto" and learned is not None and asked > learned:
            raise ConfigError(
                "examine.sequence", f"is {asked}, but the model learned {learned} positions", "give fewer"
            )
        self.room = learned if asked == "auto" else asked  # None: contexts are never cut
        self.window = self.room or config.trained or LONGEST

    def lines(self, posed: PosedSet) -> list[AnswerLine]:
        """An answer to each question, in the set's order."""
        kind = posed.settings.kind
        self.progress.start(len(posed.questions), "questions")
        if kind == "free":
            return self._free(posed)
        asked = list(self._texts(posed) if kind == "text" else self._reader(posed).asked(posed))
        scored = self._scored(asked)
        alone: list[list[float]] = []
        if self.config.examine.prior and kind == "choice":
            others = list(self._reader(posed).asked(posed, prior=PRIOR))
            alone = [nats for nats, _, _ in _of_each(others, self._scored(others))]
        found = []
        for number, (each, (nats, sizes, best)) in enumerate(
            zip(asked, _of_each(asked, scored), strict=True)
        ):
            question = each.question
            if strange := [each for each in nats if not np.isfinite(each)]:
                raise DataError(
                    f"{posed.url}: question {printable(question['id'])}: the model's likelihood is"
                    f" {strange[0]}; its weights are damaged or its training diverged"
                )
            line = AnswerLine(
                id=question["id"],
                group=question["group"],
                nats=nats,
                tokens=sizes,
                bytes=each.bytes,
                answer=question["answer"],
                length=max(len(one.prompt) + max(map(len, one.options)) for one in each.requests),
                cut=each.cut,
            )
            _add_part(line, question)
            if kind == "text":  # the windows of one text
                line["nats"], line["tokens"] = [sum(nats)], [sum(sizes)]
                line["words"] = len(question["targets"][0].split())
            elif kind != "valued":
                line["best"] = best
                line["right"] = float(best[0] if kind == "cloze" else least(nats) == question["answer"])
            if alone:
                line["alone"] = alone[number]
            found.append(line)
        return found

    def _reader(self, posed: PosedSet) -> Reader:
        spec = self.model.spec
        return Reader(
            self.vocabulary,
            self.room,
            is_paired=spec.reads_encoder,
            place=printable(posed.url, 0),
            soft=getattr(spec, "soft_prompt", None),
            first=spec.tokens,
        )

    def _texts(self, posed: PosedSet) -> list[ModelQuestion]:
        reader = self._reader(posed)
        begin = () if reader.is_paired else reader.begin
        rows = self.vocabulary.encode_all([each["targets"][0] for each in posed.questions])
        overlap = self.config.examine.overlap
        for question, ids in zip(posed.questions, rows, strict=True):
            if not ids:
                place = f"{posed.url}: question {printable(question['id'])}"
                raise DataError(f"{place}: the tokenizer has no token for its text")
        return [
            ModelQuestion(
                question,
                list(windows(ids, begin, self.window, overlap)),
                [len(question["targets"][0].encode())],
            )
            for question, ids in zip(posed.questions, rows, strict=True)
        ]

    def _scored(self, asked: list[ModelQuestion]) -> Scored:
        requests = [request for each in asked for request in each.requests]
        batch = self.config.examine.batch
        done = 0
        every = sum(row_size(each.prompt, each.options) for each in requests)

        def advance(tokens: int) -> None:
            nonlocal done
            before, done = done, done + tokens
            self.progress.advance(len(asked) * done // every - len(asked) * before // every)

        return score_requests(
            self.model,
            requests,
            self.vocabulary,
            batch=None if batch == "auto" else batch,
            advance=advance,
        )

    def _free(self, posed: PosedSet) -> list[AnswerLine]:
        settings = posed.settings
        prompts = list(self._reader(posed).prompts(posed, settings.max_tokens))
        every = answers(
            self.model,
            [ids for ids, _ in prompts],
            self.vocabulary,
            most=settings.max_tokens,
            until=settings.until,
            advance=self.progress.advance,
        )
        found = []
        for number, question in enumerate(posed.questions):
            line = AnswerLine(
                id=question["id"],
                group=question["group"],
                said=every[number],
                targets=question["targets"],
                length=len(prompts[number][0]),
                right=_is_right(every[number], question, settings.metrics),
                cut=prompts[number][1],
            )
            _add_part(line, question)
            found.append(line)
        return found


def _is_right(said: str, question: QuestionLine, metrics: Sequence[Metric]) -> float:
    """1 if the answer is one of the targets, compared as the set's exact_match says; else 0."""
    exact = next((one for one in metrics if one.name == "exact_match"), NOT_CASE)
    alike = {"ignore_case": exact.ignore_case, "ignore_punctuation": exact.ignore_punctuation}
    return float(any(is_exact(said, target, **alike) for target in question["targets"]))


def rival_lines(posed: PosedSet) -> dict[str, list[AnswerLine]]:
    """The answers without a model that a set has, as those of models, by their names."""
    found: dict[str, list[AnswerLine]] = {}
    for question in posed.questions:
        for name, said in question.get("rivals", {}).items():
            line = AnswerLine(
                id=question["id"],
                group=question["group"],
                said=said,
                targets=question["targets"],
                right=_is_right(said, question, posed.settings.metrics),
                length=0,
                cut=0,
            )
            found.setdefault(name, []).append(line)
    return found


def _metrics(posed: PosedSet, lines: list[AnswerLine]) -> dict[str, Interval]:
    kind = posed.settings.kind
    found = estimates(lines, kind) | (text_metrics(lines) if kind == "free" else {})
    return {name: _interval(each) for name, each in found.items()}


def _add_part(line: AnswerLine, question: QuestionLine) -> None:
    """Copy what says to which part of the set a question belongs, and its options' values."""
    if "slice" in question:
        line["slice"] = question["slice"]
    if "item" in question:
        line["item"] = question["item"]
    if "values" in question:
        line["values"] = question["values"]


def _of_each(asked: list[ModelQuestion], scored: Scored) -> list[tuple[list[float], list[int], list[bool]]]:
    """Of each question: nats, tokens, and whether each token is the most likely one, by option."""
    found, at = [], 0
    for each in asked:
        options = [option for request in each.requests for option in request.options]
        end = at + len(options)
        nats, best = scored.nats_C[at:end].tolist(), scored.is_best_C[at:end].tolist()
        found.append((nats, [len(option) for option in options], best))
        at = end
    return found


@contextmanager
def network_of(run: RunFile, config: ExamineConfig, gang: Gang) -> Iterator[TextModel | None]:
    """The model or the checkpoint's network; None on ranks that have followed rank 0."""
    settings, asked, scratch = config.examine, config.checkpoint, Path(run.scratch)
    dtype = torch.bfloat16 if settings.precision == "bf16" else torch.float32
    if asked is None:
        memory, place = int(settings.memory_gb * 1e9), "examine.memory_gb"
        with opened(
            input_of(run, "model"), scratch, settings, gang, dtype=dtype, memory=memory, place=place
        ) as model:
            yield model
        return
    spec, weights = read_checkpoint(asked, settings)
    with opened_weights(spec, weights, settings, gang, dtype) as model:
        yield model


def read_checkpoint(asked: CheckpointAddress, settings: Examine) -> tuple[ModelSpec, dict[str, Tensor]]:
    """The spec and the weights of a checkpoint's network, whatever layout saved it. Raises DamageError naming
    a file that is damaged, missing, or of another step or trajectory; DataError for weights that do not fit
    the model.
    """
    if settings.memory_gb:
        raise ConfigError("examine.memory_gb", "is for finished models, not checkpoints", "leave it out")
    read_manifest(asked.url, step=asked.step, trajectory=asked.trajectory)
    spec = model_of(asked.model, asked.url)
    saved = load_full(asked.url, WEIGHTS)
    names = ((name, name.removeprefix(WEIGHTS)) for name in saved)
    weights = {own: saved[name] for name, own in names if not is_auxiliary(own)}
    check_shapes({name: tuple(weight.shape) for name, weight in weights.items()}, spec, asked.url)
    return spec, weights


def examine(run: RunFile, stream: TextIO) -> dict[str, Json]:
    """Examine the model on each set with an output; each body.json is written when its set is done. Returns
    the summaries.
    """
    config, scratch = parse(ExamineConfig, run.config, "config"), Path(run.scratch)
    gang = start_gang(run.layout, run.gpu)
    progress, summaries = Progress(stream), {}
    source = input_of(run, "tokenizer" if config.checkpoint else "model")
    with network_of(run, config, gang) as model:
        if model is None:
            return {}
        vocabulary = Vocabulary.of(source, scratch)
        check_vocabulary(vocabulary, model.spec, source.url)
        examiner = Examiner(model, vocabulary, config, progress)
        for key in run.outputs:
            posed = PosedSet.of(input_of(run, f"set.{key}"), scratch)
            lines = examiner.lines(posed)
            summaries[key] = publish(run, key, posed, lines, progress, config.trained)
    return summaries


def publish(
    run: RunFile, key: str, posed: PosedSet, lines: list[AnswerLine], progress: Progress, trained: int | None
) -> dict[str, Json]:
    """Write exam.json, answers.jsonl and body.json of a set; returns the summary."""
    settings, output = posed.settings, output_of(run, key)
    found = _metrics(posed, lines)
    first = [OF_LM_EVAL.get(metric.name, metric.name) for metric in settings.metrics[:1]]
    found |= {name: _interval(each) for name, each in of_variants(lines).items()}
    found = {name: found[name] for name in dict.fromkeys([*first, *found]) if name in found}
    cut = sum(line["cut"] > 0 for line in lines)
    if cut:
        progress.warn(
            f"{key}: {cut} of {len(lines)} contexts have no room in the model's context and lose their"
            " beginning"
        )
    if trained and (longer := sum(line.get("length", 0) > trained for line in lines)):
        progress.warn(
            f"{key}: {longer} of {len(lines)} questions are longer than the {trained} tokens of the rows that"
            " the model was trained on"
        )
    main = next(iter(found), "")
    exam = ExamResult(
        set=settings.name,
        kind=settings.kind,
        shots=settings.shots,
        seed=settings.seed,
        questions=len(lines),
        groups=len({line["group"] for line in lines}),
        cut=cut,
        main=main,
        metrics=found,
        **parts_of(lines, settings.kind, main, posed.questions),
    )
    if rivals := {name: _metrics(posed, each) for name, each in rival_lines(posed).items()}:
        exam["rivals"] = rivals
    output.add_json(EXAM, cast(Json, exam))
    output.add_bytes(ANSWERS, b"".join(canonical(cast(Json, line)) + b"\n" for line in lines))
    summary: dict[str, Json] = {
        **{name: each["value"] for name, each in found.items()},
        "questions": len(lines),
        "groups": exam["groups"],
        "cut": cut,
    }
    output.close(summary)
    return summary


def _interval(found: Bounded) -> Interval:
    return Interval(value=found.value, low=found.low, high=found.high)


def act(run: RunFile) -> dict[str, Json]:
    os.environ["RAYON_NUM_THREADS"] = "1"  # read by the tokenizer's thread pool when it starts
    return examine(run, sys.stdout)


def main(arguments: list[str]) -> int:
    """Run the command and return the exit code; one JSON line reports the end."""
    return run_verb("examine", arguments, act)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
