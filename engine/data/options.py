"""Options behind a prompt, as tokens of the joint text: a tokenizer may begin a text otherwise than it
continues one, and join the end of a prompt with the beginning of an option.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from atelier.engine.config.error import DataError
from atelier.engine.data.vocabulary import Vocabulary

AT_ONCE = 256  # prompts that are encoded together


@dataclass(frozen=True, kw_only=True)
class JointOptions:
    """A prompt and its options as ids: the ids of prompt and option k together are `prompt` and `options[k]`.
    `whole`: the ids of the prompt alone, of which the last ones may differ.
    """

    prompt: tuple[int, ...]
    options: tuple[tuple[int, ...], ...]
    whole: tuple[int, ...]


def continued(
    vocabulary: Vocabulary, prompts: Sequence[str], options: Sequence[str], place: str
) -> Iterator[JointOptions]:
    """For each prompt, its leading ids that are the same alone and before every option; for each option, its
    remaining ids.

    Raises DataError for options that the tokenizer does not tell apart behind a prompt.
    """
    for begin in range(0, len(prompts), AT_ONCE):
        some = prompts[begin : begin + AT_ONCE]
        joint = iter(vocabulary.encode_all([prompt + option for prompt in some for option in options]))
        for prompt, whole in zip(some, vocabulary.encode_all(some), strict=True):
            each = [next(joint) for _ in options]
            shared = min(_num_equal(whole, ids) for ids in each)
            behind = tuple(tuple(ids[shared:]) for ids in each)
            check_apart(behind, options, f"{place}: behind {prompt[-40:]!r} the tokenizer")
            yield JointOptions(prompt=tuple(whole[:shared]), options=behind, whole=tuple(whole))


def check_apart(ids: Sequence[tuple[int, ...]], options: Sequence[str], place: str) -> None:
    """Raise DataError for two options with the same ids."""
    if len(set(ids)) < len(ids):
        number = next(n for n, own in enumerate(ids) if own in ids[:n])
        first = options[ids.index(ids[number])]
        raise DataError(
            f"{place} writes the options {first!r} and {options[number]!r} alike; name one of them otherwise"
        )


def _num_equal(left: Sequence[int], right: Sequence[int]) -> int:
    """How many first ids are equal."""
    pairs = zip(left, right, strict=False)
    return next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right)))


@cache
def any_begins_another(options: tuple[tuple[int, ...], ...]) -> bool:
    """Whether one of the options is the beginning of another, so that only its end tells them apart."""
    return any(
        long[: len(short)] == short
        for place, short in enumerate(options)
        for other, long in enumerate(options)
        if other != place
    )
