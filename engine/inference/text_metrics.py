"""chrF and BLEU of generated answers, by sacrebleu (optional extra `eval`)."""

import json
from collections.abc import Sequence
from typing import Any, cast

from atelier.engine.config.exam import AnswerLine
from atelier.engine.config.intervals import Estimate
from atelier.engine.io.process import Progress

RESAMPLES = 1000


def text_metrics(lines: Sequence[AnswerLine], progress: Progress) -> dict[str, Estimate]:
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
    found: dict[str, Estimate] = {}
    for name, metric in (("chrf", CHRF()), ("bleu", BLEU())):
        score: Any = metric.corpus_score(
            said, cast(Any, references), n_bootstrap=RESAMPLES if len(lines) > 1 else 1
        )
        told = json.loads(score.format(width=6, is_json=True, signature=str(metric.get_signature())))
        value = float(score.score)
        half = told.get("confidence_var")
        found[name] = Estimate(value) if half is None else Estimate(value, value - half, value + half)
    return found
