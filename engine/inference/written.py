"""Completions that a model writes, compared with the right ones: of labelled examples without options."""

from collections import Counter
from statistics import fmean

from atelier.engine.config.base import Json
from atelier.engine.config.exam_metrics import f1, is_exact
from atelier.engine.data.examples import Examples
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.inference.models import TextModel
from atelier.engine.inference.questions import answers
from atelier.engine.inference.scoring import Advance, row_lengths

SEPARATOR = "\n\n"  # ends an answer of a model that was not tuned to end it


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
