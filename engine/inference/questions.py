"""What a model says to questions: log-likelihoods of continuations, options behind one shared prompt; and
written answers, with their likeness to right ones by chrF and BLEU (sacrebleu).

B rows, T tokens of a row, N scored tokens, V vocabulary
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import tee
from statistics import fmean
from typing import Any

import numpy as np
import torch

from atelier.engine.config.base import Json
from atelier.engine.config.batch import NOT_SCORED
from atelier.engine.config.exam import AnswerLine
from atelier.engine.config.exam_metrics import f1, is_exact
from atelier.engine.config.generation import Sampling
from atelier.engine.config.intervals import Bounded, t95
from atelier.engine.data.asked import PromptOptions, PromptRow, joined, shared_ids
from atelier.engine.data.control_prompt import Prefix
from atelier.engine.data.examples import Examples
from atelier.engine.data.option_rows import OptionRow, option_batch, option_row, row_size
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.inference.models import TextModel
from atelier.engine.inference.rows import SLOTS, Rows, ServedRow
from atelier.engine.inference.scoring import TOKENS_AT_ONCE, Advance, Batch, label_scores, row_lengths
from atelier.engine.model.gpt import Decoder
from atelier.engine.tier.ring import ring_of

BLOCKS = 20  # of questions, each left out once
SEPARATOR = "\n\n"  # ends a completion of a model that was not tuned to end it
SEEN_AT_ONCE = 4096  # tokens of a batch with those that all its rows share


@dataclass(frozen=True)
class Scored:
    """The continuations of all requests, one after another: nats [C] float64, and whether each token is the
    most likely one [C] bool.
    """

    nats_C: np.ndarray
    is_best_C: np.ndarray


def score_requests(
    model: TextModel,
    requests: Sequence[PromptOptions],
    vocabulary: Vocabulary,
    *,
    batch: int | None,
    advance: Callable[[int], None],
) -> Scored:
    """-ln p of every continuation of all requests, in order.

    `batch`: rows at once; None = by their tokens. A row's result depends on others only by rounding. What all
    prompts begin with is read once.
    """
    is_paired, before = model.spec.reads_encoder, _before(model, requests)
    first_R = np.cumsum([0, *(len(each.options) for each in requests)])
    found_2C = torch.zeros((2, int(first_R[-1])), dtype=torch.float64)
    asked = joined(requests, len(before), is_paired=is_paired)
    mine = _batches([each.size for each in asked], batch, len(before))
    sizes = [row_size(each.prompt, each.options) for each in requests]
    pad, start, end = vocabulary.pad_id, (vocabulary.start_id,), vocabulary.end_id

    def row(each: PromptRow) -> OptionRow:
        some = [requests[number] for number in each.numbers]
        if is_paired:
            return option_row(start, some[0].options, encoder=[*some[0].prompt, end])
        rests = [(one.prompt[each.shared :], option) for one in some for option in one.options]
        return behind(some[0].prompt[len(before) : each.shared], rests)

    def batches() -> Iterator[tuple[list[int], list[OptionRow], Batch]]:
        for places in mine:
            rows = [row(asked[place]) for place in places]
            made = option_batch(rows, pad)
            made["positions_BT"] += len(before)
            if all(len(each.spans) == 1 for each in rows):
                del made["branches_BT"]  # plain text: attention needs no more than causality
            yield places, rows, {name: torch.from_numpy(values) for name, values in made.items()}

    each, read = tee(batches())
    for (places, rows, _), (nats_BT, best_BT) in zip(
        each, label_scores(model, (one for *_, one in read), model.spec.ids, before), strict=True
    ):
        for at, (place, own) in enumerate(zip(places, rows, strict=True)):
            for number, (begin, stop) in enumerate(own.spans, start=int(first_R[asked[place].numbers[0]])):
                found_2C[0, number] = nats_BT[at, begin:stop].sum()
                found_2C[1, number] = best_BT[at, begin:stop].all()
        advance(sum(sizes[number] for place in places for number in asked[place].numbers))
    return Scored(found_2C[0].numpy(), found_2C[1].numpy() > 0.5)


def _before(model: TextModel, requests: Sequence[PromptOptions]) -> tuple[int, ...]:
    """What all prompts begin with; nothing for models whose keys and values are not in one place: with an
    encoder, split, or read from disk.
    """
    is_whole = isinstance(model, Decoder) and ring_of(model) is None
    return shared_ids(requests) if is_whole and not model.spec.reads_encoder else ()


def behind(prompt: Sequence[int], rests: Sequence[tuple[Sequence[int], Sequence[int]]]) -> OptionRow:
    """The row of a prompt with continuations, each the rest of its own prompt, which is not scored, and an
    option.
    """
    made = option_row(prompt, [(*rest, *option) for rest, option in rests])
    spans = []
    for (begin, stop), (rest, _) in zip(made.spans, rests, strict=True):
        made.labels_T[begin : begin + len(rest)] = NOT_SCORED
        spans.append((begin + len(rest), stop))
    return replace(made, spans=tuple(spans))


def _batches(sizes: Sequence[int], batch: int | None, shared: int) -> list[list[int]]:
    """Row numbers in batches of similar size, the longest first: a lack of memory shows at once. `shared`:
    tokens before each row whose keys and values are copied.
    """
    found: list[list[int]] = []
    longest = 0
    for number in np.argsort(-np.array(sizes, dtype=np.int64), kind="stable").tolist():
        seen = min(TOKENS_AT_ONCE // max(longest, 1), SEEN_AT_ONCE // max(longest + shared, 1))
        most = batch or max(1, seen)
        if not found or len(found[-1]) >= most:
            found.append([])
            longest = sizes[number]
        found[-1].append(number)
    return found


def answers(
    model: TextModel,
    prompts: Sequence[Sequence[int]],
    vocabulary: Vocabulary,
    *,
    most: int,
    until: Sequence[str],
    advance: Callable[[int], None],
) -> list[str]:
    """The greedy continuation of each prompt, of at most `most` tokens, up to the first of `until`. Each has
    the same bits whatever the others are (engine/inference/rows.py). With an encoder it reads the prompt.
    """
    rows = Rows(model, vocabulary.ends)
    is_paired, found = model.spec.reads_encoder, [""] * len(prompts)
    waiting = sorted(range(len(prompts)), key=lambda number: len(prompts[number]), reverse=True)
    running: list[tuple[int, ServedRow]] = []
    sampling = Sampling(max_tokens=most, temperature=0.0, top_p=1.0, seed=0)
    while waiting or running:
        while waiting and len(running) < SLOTS:
            number = waiting.pop(0)
            ids = [*prompts[number]]
            before = (
                Prefix([vocabulary.start_id], [], [*ids, vocabulary.end_id]) if is_paired else Prefix(ids, [])
            )
            row = rows.begin(before, sampling)
            while not row.is_read:
                rows.read(row)
            running.append((number, row))
        still: list[tuple[int, ServedRow]] = []
        for number, row in running:
            if row.fault is not None:
                raise row.fault
            text = vocabulary.behind(row.before.ids, row.ids, has_end=row.is_done)
            ends = [at for stop in until if (at := text.find(stop)) >= 0]
            if row.is_done or ends:
                found[number] = text[: min(ends)] if ends else text
                advance(1)
            else:
                still.append((number, row))
        running = still
        if running:
            rows.step([row for _, row in running])
    return found


def written(
    model: TextModel, examples: Examples, vocabulary: Vocabulary, *, advance: Advance
) -> dict[str, Json]:
    """Scores of the completions that a model writes greedily, of no more tokens than the longest right one:
    `accuracy` is the share of equal texts, `f1` the mean likeness of their words (1606.05250, section 6.1).
    """
    every, lengths = range(len(examples)), iter(row_lengths(examples))
    said = answers(
        model,
        [examples.asked(number) for number in every],
        vocabulary,
        most=max(len(each.completion) for each in examples.examples),
        until=() if examples.has_ends else (SEPARATOR,),
        advance=lambda _: advance(next(lengths)),
    )
    right = [vocabulary.decode(each.completion) for each in examples.examples]
    both = list(zip(said, right, strict=True))
    correct = [int(is_exact(*each, ignore_case=False, ignore_punctuation=False)) for each in both]
    return {
        "accuracy": sum(correct) / len(correct),
        "f1": fmean(f1(*each) for each in both),
        "correct": correct,
        "majority": max(Counter(right).values()) / len(right),
    }


def text_metrics(lines: Sequence[AnswerLine]) -> dict[str, Bounded]:
    """chrF (Popovic 2015) and BLEU with sacrebleu's settings, from 0 to 100, with a 95 % interval by the
    jackknife over `BLOCKS` blocks of whole groups.
    """
    from sacrebleu.metrics.bleu import BLEU  # here: other tasks need no second of imports
    from sacrebleu.metrics.chrf import CHRF

    numbers = {group: place for place, group in enumerate(dict.fromkeys(line["group"] for line in lines))}
    count = min(BLOCKS, len(numbers))
    blocks = [numbers[line["group"]] % count for line in lines]
    found: dict[str, Bounded] = {}
    for name, metric in (("chrf", CHRF()), ("bleu", BLEU())):
        value = _corpus_score(metric, lines)
        if count < 2:
            found[name] = Bounded(value)
            continue
        rests = [[line for line, own in zip(lines, blocks, strict=True) if own != b] for b in range(count)]
        scores = [_corpus_score(metric, rest) for rest in rests]
        middle = math.fsum(scores) / count
        spread = math.fsum((score - middle) ** 2 for score in scores) * (count - 1) / count
        half = t95(count - 1) * math.sqrt(spread)
        found[name] = Bounded(value, max(0.0, value - half), min(100.0, value + half))
    return found


def _corpus_score(metric: Any, lines: Sequence[AnswerLine]) -> float:
    """sacrebleu's score of all answers together."""
    targets = [line.get("targets", []) for line in lines]
    # a list for each number of a reference; None where a question has fewer
    references = [
        [each[number] if number < len(each) else None for each in targets]
        for number in range(max(map(len, targets)))
    ]
    return float(metric.corpus_score([line.get("said", "") for line in lines], references).score)
