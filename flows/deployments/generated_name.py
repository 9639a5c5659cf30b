"""Which names of runs Prefect has drawn. A name that a person chose stays; a drawn one says nothing."""

from functools import cache

from coolname.data import config  # Prefect draws a run's name from these words where nobody gives one

PAGE = (  # the words with which its page fills the form's box, followed by an animal
    *("Awesome", "Rustic", "Small", "Gorgeous", "Fantastic", "Sleek", "Intelligent", "Unbranded", "Refined"),
    *("Licensed", "Generic", "Practical", "Ergonomic", "Handcrafted", "Tasty", "Handmade", "Incredible"),
)
LONGEST_ANIMAL = 6  # letters


def is_generated(name: str) -> bool:
    """True for two words that Prefect's client or its page puts together."""
    first, _, second = name.partition("-")
    if first in PAGE:
        return 0 < len(second) <= LONGEST_ANIMAL and second.replace(" ", "").isalpha()
    return bool(second) and first in _words() and second in _words()


@cache
def _words() -> frozenset[str]:
    """All words of the generator that its lists of single words have."""
    lists = (one.get("words", ()) for one in config.values() if one.get("type") == "words")
    return frozenset(str(word) for words in lists for word in words)
