"""Control prompts: generation attributes as tokens; soft prompts for the genre first, then each attribute
after its tag.

Shape letters: P tokens of a prefix.
"""

from typing import NamedTuple

from atelier.engine.config.data import SEP
from atelier.engine.config.generation import ROUND, TAGS, GenerationAttributes
from atelier.engine.data.vocabulary import Vocabulary


class Prefix(NamedTuple):
    """Token ids [P], and the soft prompt at each position, -1 = none; the text follows them. `encoder`:
    encoder input, for models with an encoder.
    """

    ids: list[int]
    prompts: list[int]
    encoder: list[int] | None = None

    @property
    def soft(self) -> list[int] | None:
        """The soft prompts; None if there are none."""
        return self.prompts if any(prompt >= 0 for prompt in self.prompts) else None


def prefix_of(
    wishes: GenerationAttributes, vocabulary: Vocabulary, *, first_prompt: int, num_prompts: int
) -> Prefix:
    """The control prompt of a text; without attributes only the separator."""
    ids, prompts = [vocabulary.pad_id] * num_prompts, list(range(first_prompt, first_prompt + num_prompts))
    said = (
        wishes.topic,
        ", ".join(wishes.keywords),
        wishes.sentiment,
        f"about {about(wishes.length)} tokens",
    )
    is_said = (wishes.topic, wishes.keywords, wishes.sentiment, wishes.length)
    for tag, words, is_asked in zip(TAGS, said, is_said, strict=True):
        if is_asked:
            ids += [vocabulary.special(tag), *vocabulary.encode(words)]
    ids.append(vocabulary.special(SEP))
    return Prefix(ids, prompts + [-1] * (len(ids) - len(prompts)))


def about(length: int) -> int:
    """A length rounded to a multiple of ROUND, as used in control prompts."""
    return max(ROUND, (length + ROUND // 2) // ROUND * ROUND)
