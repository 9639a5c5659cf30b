"""Texts with planted similarities, drawn from a seed."""

import numpy as np

SYLLABLES = [one + other for one in "bdklm" for other in "aeiou"]
HAN = [chr(n) for n in range(0x4E00, 0x4E00 + 3000)]


WORDS = sorted(
    {one + two + three for one in SYLLABLES for two in SYLLABLES for three in ["", "n", "s", "ta"]}
)


def words(rng: np.random.Generator, count: int) -> list[str]:
    return [WORDS[n] for n in rng.integers(0, len(WORDS), count).tolist()]


def han(rng: np.random.Generator, count: int) -> list[str]:
    return [HAN[n] for n in rng.integers(0, len(HAN), count).tolist()]


def sentence(rng: np.random.Generator, count: int) -> str:
    return " ".join(words(rng, count)).capitalize() + "."


def text(rng: np.random.Generator, sentences: int) -> str:
    return " ".join(sentence(rng, int(rng.integers(6, 16))) for _ in range(sentences))


def pair(
    rng: np.random.Generator, jaccard: float, count: int = 300, *, is_han: bool = False
) -> tuple[str, str]:
    """Two texts of `count` words whose Jaccard similarity of 5-grams is about `jaccard`: the second has other
    words at random places. Of n 5-grams a changed word changes five, so a share s of changed n-grams gives
    J = (1 - s) / (1 + s).
    """
    letters = han(rng, count) if is_han else words(rng, count)
    other, changed = list(letters), (1 - jaccard) / (1 + jaccard)
    number = round(np.log(1 - changed) / np.log(1 - 5 / count)) if changed else 0
    for place in rng.choice(count, number, replace=False).tolist():
        other[place] = han(rng, 1)[0] if is_han else words(rng, 1)[0] + "x"
    between = "" if is_han else " "
    return between.join(letters), between.join(other)
