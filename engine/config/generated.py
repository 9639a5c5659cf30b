"""Names of generated text: two small languages that need no files (engine/data/languages.py). Torch-free.

`languages:svo:300:1` is 300 texts in the language svo, of world 1. Of prompts and answers `languages:svo-sov`
is sentences of svo with their translations into sov.
"""

from typing import NamedTuple

from atelier.engine.config.base import Json
from atelier.engine.config.error import nearest

PREFIX = "languages:"
VERSION = 1  # of the texts
LANGUAGES = ("svo", "sov")  # by word order: subject, verb, object; subject, object, verb
NUMBER, WORLD = 1000, 1  # if not given
MOST = 1_000_000  # texts


class Generated(NamedTuple):
    """A generated source: its languages (the first is translated from), its number of texts, and the seed of
    the world, which has the words of both languages.
    """

    languages: tuple[str, ...]
    number: int
    world: int

    @property
    def title(self) -> str:
        return "-".join(self.languages)

    def as_identity(self) -> dict[str, Json]:
        """The settings that decide the texts."""
        return {
            "languages": [*self.languages],
            "number": self.number,
            "world": self.world,
            "generated": VERSION,
        }


def is_generated(source: str) -> bool:
    return source.startswith(PREFIX)


def generated(source: str, num_languages: int) -> Generated:
    """Parse a source's name. Raises ValueError unless it has `num_languages` known languages, and numbers for
    the texts and the world.
    """
    name, *numbers = (part.strip() for part in source.removeprefix(PREFIX).split(":"))
    languages = tuple(name.split("-"))
    known = "-".join(LANGUAGES[:num_languages])
    for language in languages:
        if language not in LANGUAGES:
            near = nearest(language, LANGUAGES)
            hint = f"did you mean {near}?" if near else f"there are: {', '.join(LANGUAGES)}"
            raise ValueError(f"{source}: there is no generated language {language!r}; {hint}")
    if len(languages) != num_languages or len(set(languages)) < num_languages:
        what = "one language" if num_languages == 1 else "two languages, to translate from and into"
        raise ValueError(f"{source}: give {what}, such as {PREFIX}{known}")
    if len(numbers) > 2 or not all(each.isascii() and each.isdigit() for each in numbers):
        raise ValueError(f"{source}: give the number of texts and the world as in {PREFIX}{known}:300:1")
    number, world = (*map(int, numbers), *(NUMBER, WORLD)[len(numbers) :])
    if not 0 < number <= MOST:
        raise ValueError(f"{source}: give 1 to {MOST} texts")
    return Generated(languages, number, world)


def identity_of(source: str) -> dict[str, Json]:
    """The identity of generated text beside its (no) files; nothing for other sources."""
    if not is_generated(source):
        return {}
    languages = source.removeprefix(PREFIX).partition(":")[0].split("-")
    return generated(source, len(languages)).as_identity()
