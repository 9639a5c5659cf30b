"""Options after a prompt, as tokens of the joint text, because a tokenizer may encode a text's start
differently, or join the end of a prompt with the beginning of an option.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from atelier.engine.config.error import DataError
from atelier.engine.data.vocabulary import Vocabulary

AT_ONCE = 256  # prompts encoded together


@dataclass(frozen=True, kw_only=True)
class JointOptions:
    """A prompt and its options as ids: `prompt` + `options[k]` are the ids of prompt and option k together.
    `whole`: ids of the prompt alone, of which the last ones may differ.
    """

    prompt: tuple[int, ...]
    options: tuple[tuple[int, ...], ...]
    whole: tuple[int, ...]


def continued(
    vocabulary: Vocabulary, prompts: Sequence[str], options: Sequence[Sequence[str]], place: str
) -> Iterator[JointOptions]:
    """For each prompt with its options: its leading ids that are equal alone and before every option; for
    each option, the remaining ids.

    Raises DataError for options that the tokenizer cannot tell apart after a prompt.
    """
    for begin in range(0, len(prompts), AT_ONCE):
        some = prompts[begin : begin + AT_ONCE]
        own = options[begin : begin + AT_ONCE]
        texts = [prompt + option for prompt, each in zip(some, own, strict=True) for option in each]
        joint = iter(vocabulary.encode_all(texts))
        for prompt, said, whole in zip(some, own, vocabulary.encode_all(some), strict=True):
            each = [next(joint) for _ in said]
            shared = min(_num_equal(whole, ids) for ids in each)
            behind = tuple(tuple(ids[shared:]) for ids in each)
            check_apart(behind, said, f"{place}: after {prompt[-40:]!r} the tokenizer")
            yield JointOptions(prompt=tuple(whole[:shared]), options=behind, whole=tuple(whole))


def check_apart(ids: Sequence[tuple[int, ...]], options: Sequence[str], place: str) -> None:
    """Raise DataError for two options with equal ids."""
    if len(set(ids)) < len(ids):
        number = next(n for n, own in enumerate(ids) if own in ids[:n])
        first = options[ids.index(ids[number])]
        raise DataError(
            f"{place} encodes the options {first!r} and {options[number]!r} alike; rename one of them"
        )


def _num_equal(left: Sequence[int], right: Sequence[int]) -> int:
    """The number of equal first ids."""
    pairs = zip(left, right, strict=False)
    return next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right)))


@cache
def any_begins_another(options: tuple[tuple[int, ...], ...]) -> bool:
    """Whether one option is the beginning of another, so that only its end tells them apart."""
    return any(
        long[: len(short)] == short
        for place, short in enumerate(options)
        for other, long in enumerate(options)
        if other != place
    )
