"""Generate text in two small languages that differ in word order and agreement: documents, translated
sentences, and pairs of sentences of which the second follows from the first, is denied by it, or neither.

svo (subject, verb, object): adjectives before nouns; plural nouns end with -s; a verb agrees with the number
of its subject; past and negation are words before the verb; the place is last.

sov (subject, object, verb): the place is first; adjectives follow nouns and agree with their gender and
number; objects have a case ending; a verb agrees with the gender of its object and ends with its tense; the
negation is last.

Some words of svo have two translations. A noun of two meanings has one with verbs of one class, the other
with the rest; a verb of two meanings has one with living objects, the other with things. Proper names are the
same in both languages. A world (its seed) has the words; the meanings of texts are drawn from it. Only
Python's `random.random`, whose numbers no version changes, is used.
"""

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from atelier.engine.config.generated import Generated

NOUNS, VERBS, ADJECTIVES, PLACES, NAMES = 24, 12, 8, 6, 6
TWO_MEANINGS = 4  # pairs of nouns with one word in svo; half as many pairs of verbs
SENTENCES = (5, 9)  # of a document: least and most
SOUNDS = {"svo": ("ptkmnls", "aei"), "sov": ("bdgrvzh", "aou"), "name": ("fjw", "aeiou")}
FOLLOWS, DENIED, OPEN = "yes", "no", "open"  # whether the second sentence of a pair is true if the first is
NO = -1  # no adjective, no place


class Phrase(NamedTuple):
    """A subject or object. A name has no adjective and is one."""

    noun: int
    adjective: int = NO
    is_plural: bool = False
    is_name: bool = False


@dataclass(frozen=True)
class Meaning:
    """The meaning of a sentence, without a language."""

    subject: Phrase
    verb: int
    object: Phrase
    is_past: bool
    is_denied: bool = False
    place: int = NO

    @property
    def group(self) -> str:
        """Sentences with the same verb and object are held out together: they are new combinations."""
        return f"{self.verb}:{'name' if self.object.is_name else self.object.noun}"


class Dice:
    """Whole numbers and chances of one named stream."""

    def __init__(self, *name: object) -> None:
        digest = hashlib.sha256("/".join(map(str, name)).encode()).digest()
        self._random = random.Random(int.from_bytes(digest[:8], "big"))

    def below(self, number: int) -> int:
        return int(self._random.random() * number)

    def chance(self, share: float) -> bool:
        return self._random.random() < share

    def one_of(self, items: Sequence[int]) -> int:
        return items[self.below(len(items))]


class World:
    """The words of both languages."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        taken: set[str] = set()
        drawn = Dice("words", seed)

        def words(language: str, number: int, syllables: int) -> list[str]:
            first, second = SOUNDS[language]
            found: list[str] = []
            while len(found) < number:
                word = "".join(
                    first[drawn.below(len(first))] + second[drawn.below(len(second))]
                    for _ in range(syllables)
                )
                if word not in taken:
                    taken.add(word)
                    found.append(word)
            return found

        sizes = {"noun": NOUNS, "verb": VERBS, "adjective": ADJECTIVES, "place": PLACES}
        self.words = {
            language: {kind: words(language, size, 2) for kind, size in sizes.items()}
            for language in ("svo", "sov")
        }
        self.names = [name.title() for name in words("name", NAMES, 2)]
        nouns, verbs = self.words["svo"]["noun"], self.words["svo"]["verb"]
        for pair in range(TWO_MEANINGS):  # meanings 2n and 2n + 1
            nouns[2 * pair + 1] = nouns[2 * pair]
        for pair in range(TWO_MEANINGS // 2):
            verbs[4 * pair + 2] = verbs[4 * pair]  # both of class 0
        self.gender = [drawn.below(2) for _ in range(NOUNS)]
        self.is_alive = [noun % 4 in (0, 1) for noun in range(NOUNS)]

    def nouns_with(self, verb: int, is_object: bool) -> list[int]:
        """The nouns that a verb may have: of those with two meanings the one of its class; as objects of a
        verb with two meanings only living ones, or only things.
        """
        found = [noun for noun in range(NOUNS) if noun >= 2 * TWO_MEANINGS or noun % 2 == verb % 2]
        if is_object and verb < 2 * TWO_MEANINGS and verb % 2 == 0:
            found = [noun for noun in found if self.is_alive[noun] == (verb % 4 == 0)]
        return found

    def said(self, meaning: Meaning, language: str) -> str:
        """The sentence, with a blank before its full stop."""
        words = self._svo(meaning) if language == "svo" else self._sov(meaning)
        return " ".join([*words, "."])

    def _svo(self, meaning: Meaning) -> list[str]:
        words = self.words["svo"]

        def phrase(of: Phrase) -> list[str]:
            if of.is_name:
                return [self.names[of.noun]]
            adjective = [words["adjective"][of.adjective]] if of.adjective != NO else []
            return ["ti", *adjective, words["noun"][of.noun] + ("s" if of.is_plural else "")]

        verb = words["verb"][meaning.verb] + ("n" if meaning.subject.is_plural else "")
        before = ["ka"] * meaning.is_past + ["ne"] * meaning.is_denied
        place = [words["place"][meaning.place]] if meaning.place != NO else []
        return [*phrase(meaning.subject), *before, verb, *phrase(meaning.object), *place]

    def _sov(self, meaning: Meaning) -> list[str]:
        words = self.words["sov"]

        def phrase(of: Phrase, case: str) -> list[str]:
            if of.is_name:
                return [self.names[of.noun] + case]
            number = "m" if of.is_plural else ""
            found = [words["noun"][of.noun] + number + case]
            if of.adjective != NO:
                found.append(words["adjective"][of.adjective] + "ie"[self.gender[of.noun]] + number)
            return found

        of = meaning.object
        ending = "y" if of.is_name else "ie"[self.gender[of.noun]]
        verb = words["verb"][meaning.verb] + ending + ("b" if meaning.is_past else "")
        place = [words["place"][meaning.place]] if meaning.place != NO else []
        denied = ["zu"] * meaning.is_denied
        return [*place, *phrase(meaning.subject, ""), *phrase(of, "xo"), verb, *denied]

    def meaning(self, drawn: Dice) -> Meaning:
        verb = drawn.below(VERBS)

        def phrase(is_object: bool) -> Phrase:
            if drawn.chance(0.2) and not (is_object and verb < 2 * TWO_MEANINGS):
                return Phrase(drawn.below(NAMES), is_name=True)
            adjective = drawn.below(ADJECTIVES) if drawn.chance(0.4) else NO
            noun = drawn.one_of(self.nouns_with(verb, is_object))
            return Phrase(noun, adjective, drawn.chance(0.4))

        subject, of = phrase(False), phrase(True)
        place = drawn.below(PLACES) if drawn.chance(0.3) else NO
        return Meaning(subject, verb, of, drawn.chance(0.5), drawn.chance(0.2), place)


def documents(source: Generated) -> Iterator[str]:
    """Texts of some sentences each, in the one language."""
    [language] = source.languages
    world, drawn = World(source.world), Dice("documents", source.world, language)
    least, most = SENTENCES
    for _ in range(source.number):
        count = least + drawn.below(most - least + 1)
        yield " ".join(world.said(world.meaning(drawn), language) for _ in range(count))


def translations(source: Generated) -> Iterator[tuple[str, str, str]]:
    """Group, sentence and its translation. A group is held out as a whole."""
    here, there = source.languages
    world, drawn = World(source.world), Dice("translations", source.world)
    for _ in range(source.number):
        meaning = world.meaning(drawn)
        yield meaning.group, world.said(meaning, here), world.said(meaning, there)


def pairs(source: Generated) -> Iterator[tuple[str, str, str, str]]:
    """Group, two sentences, and whether the second follows from the first (FOLLOWS), is DENIED by it, or
    neither (OPEN). The same meanings in every language, each answer a third of them.
    """
    [language] = source.languages
    world, drawn = World(source.world), Dice("pairs", source.world)
    for number in range(source.number):
        first = world.meaning(drawn)
        place = drawn.below(PLACES)
        other = (place + 1 + drawn.below(PLACES - 1)) % PLACES
        first = replace(first, place=place)
        second = replace(first, place=NO) if drawn.chance(0.5) else first  # it says less, or as much
        answer = (FOLLOWS, DENIED, OPEN)[number % 3]
        if answer == DENIED:
            second = replace(second, is_denied=not first.is_denied)
        if answer == OPEN:
            second = replace(second, place=other)
        yield first.group, world.said(first, language), world.said(second, language), answer
