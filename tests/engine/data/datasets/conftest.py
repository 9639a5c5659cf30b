from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from atelier.engine.data.datasets.load import rows_of
from atelier.engine.data.tokens import TokenText
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput
from tests.engine.data.conftest import Workshop
from tests.engine.row_inputs import SPECIALS, VOCAB, story


@dataclass
class Harbour:
    """A corpus, its vocabulary with special tokens and its tokens; opens rows of it."""

    shop: Workshop
    corpus: ArtifactInput
    tokens: ArtifactInput
    vocabulary: Vocabulary

    def open(self, spec, *, split="train", sequence=64, seed=1, tokens=None):
        source = tokens or self.tokens
        rows = rows_of(spec.reads)
        return rows.open_rows(
            spec, source, self.vocabulary, self.shop.folder, split=split, sequence=sequence, seed=seed
        )

    def with_sentinels(self, number: int) -> "Harbour":
        """The same corpus in a vocabulary that has sentinels too."""
        names = [f"<|s{n}|>" for n in range(number)]
        tokenizer = self.shop.tokenizer(self.corpus, vocab=VOCAB, specials=(*SPECIALS, *names))
        vocabulary = Vocabulary.read(Path(tokenizer.url) / "tokenizer.json")
        return Harbour(self.shop, self.corpus, self.shop.tokens(self.corpus, tokenizer), vocabulary)

    def text(self, split="train") -> TokenText:
        return TokenText(self.tokens, self.shop.folder, split)


@pytest.fixture(scope="session")
def harbour(tmp_path_factory) -> Harbour:
    shop = Workshop(tmp_path_factory.mktemp("harbour"))
    corpus = shop.corpus([story(n) for n in range(150)], 0.2)
    tokenizer = shop.tokenizer(corpus, vocab=VOCAB, specials=SPECIALS)
    vocabulary = Vocabulary.read(Path(tokenizer.url) / "tokenizer.json")
    return Harbour(shop, corpus, shop.tokens(corpus, tokenizer), vocabulary)


def whole(rows, epoch=0) -> dict[str, np.ndarray]:
    """Every row of a data set in one batch."""
    return rows.batch(np.arange(len(rows)), np.full(len(rows), epoch))
