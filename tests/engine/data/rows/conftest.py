import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from engine.artifact import Input
from engine.data.rows.load import rows_of
from engine.data.text import Text
from engine.data.vocabulary import Vocabulary
from tests.engine.data.conftest import Workshop

SPECIALS = ("<|mask|>", "<|cls|>", "<|sep|>")
PLACES = ("harbour", "lighthouse", "estuary", "breakwater", "pier", "sandbank", "channel", "anchorage")


def story(n: int) -> str:
    """A document of 3 to 60 sentences that holds its number in each, with names, identifiers and a phrase."""
    draw = random.Random(n)
    lines = [f"Log {n} of the survey."]
    for line in range(draw.randint(2, 60)):
        place, other = draw.sample(PLACES, 2)
        kind = draw.randrange(5)
        lines.append(
            (
                f"On day {line} of log{n} the steam boat left the {place} for the {other}.",
                f"Captain Ada Lovelace wrote {place}_{other}.depth_{n} = {draw.randrange(999)} to the book!",
                f"Was the steam boat in the {place} again?\n",
                f"The {other} near MacKenzie Point is {draw.randrange(99)} fathoms deep.",
                f"Buoy{n}x{line} is a {place} marker of the steam boat.",
            )[kind]
        )
    return " ".join(lines) + "\n"


@dataclass
class Harbour:
    """A corpus, its vocabulary with special tokens and its tokens; opens rows of it."""

    shop: Workshop
    corpus: Input
    tokens: Input
    vocabulary: Vocabulary

    def open(self, spec, *, split="train", sequence=64, seed=1, tokens=None):
        source = tokens or self.tokens
        rows = rows_of(spec.reads)
        return rows.open_rows(
            spec, source, self.vocabulary, self.shop.folder, split=split, sequence=sequence, seed=seed
        )

    def text(self, split="train") -> Text:
        return Text(self.tokens, self.shop.folder, split)


@pytest.fixture(scope="session")
def harbour(tmp_path_factory) -> Harbour:
    shop = Workshop(tmp_path_factory.mktemp("harbour"))
    corpus = shop.corpus([story(n) for n in range(150)], 0.2)
    tokenizer = shop.tokenizer(corpus, vocab=400, specials=SPECIALS)
    vocabulary = Vocabulary.read(Path(tokenizer.url) / "tokenizer.json")
    return Harbour(shop, corpus, shop.tokens(corpus, tokenizer), vocabulary)


def whole(rows, epoch=0) -> dict[str, np.ndarray]:
    """Every row of a data set in one batch."""
    return rows.batch(np.arange(len(rows)), np.full(len(rows), epoch))
