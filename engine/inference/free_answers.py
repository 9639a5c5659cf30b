"""Answers to free questions: greedy continuations of prompts; their likeness to right answers by chrF
and BLEU (sacrebleu, the optional extra `eval`).
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

from atelier.engine.config.exam import AnswerLine
from atelier.engine.config.generation import Sampling
from atelier.engine.config.intervals import Bounded
from atelier.engine.data.control_prompt import Prefix
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.inference.rows import SLOTS, Rows, ServedRow
from atelier.engine.inference.sampling import TextModel
from atelier.engine.io.process import Progress

RESAMPLES = 1000


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


def text_metrics(lines: Sequence[AnswerLine], progress: Progress) -> dict[str, Bounded]:
    """chrF (Popovic 2015) and BLEU with sacrebleu's settings, from 0 to 100, with a 95 % interval of
    `RESAMPLES` resampled sets of questions. Without sacrebleu nothing, and a warning.
    """
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        progress.warn(
            "chrF and BLEU are left out: sacrebleu is not installed; pip install 'atelier-lm[eval]'"
        )
        return {}
    said = [line.get("said", "") for line in lines]
    targets = [line.get("targets", []) for line in lines]
    # a list for each number of a reference; None where a question has fewer
    references = [
        [each[number] if number < len(each) else None for each in targets]
        for number in range(max(map(len, targets)))
    ]
    found: dict[str, Bounded] = {}
    for name, metric in (("chrf", CHRF()), ("bleu", BLEU())):
        score: Any = metric.corpus_score(
            said, cast(Any, references), n_bootstrap=RESAMPLES if len(lines) > 1 else 1
        )
        told = json.loads(score.format(width=6, is_json=True, signature=str(metric.get_signature())))
        value = float(score.score)
        half = told.get("confidence_var")
        found[name] = Bounded(value) if half is None else Bounded(value, value - half, value + half)
    return found
