"""Documents and parts of documents as ranges of tokens of an encoded text."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from atelier.engine.data.corpus import TRAIN
from atelier.engine.data.tokens import TokenText
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput


class Span(NamedTuple):
    """Tokens begin .. end - 1. `is_exact`: whether they are just those of the characters that were asked for;
    otherwise those of the whole document.
    """

    begin: int
    end: int
    is_exact: bool


class DocumentSpans:
    """The training documents of a tokens artifact. Document d is the d-th line of its corpus with split
    "train". Ranges are without the tokens that encoding adds before and after a text.
    """

    def __init__(self, tokens: ArtifactInput, vocabulary: Vocabulary, scratch: Path) -> None:
        self._text, self._vocabulary = TokenText(tokens, scratch, TRAIN), vocabulary

    def __len__(self) -> int:
        return len(self._text.ends_D)

    def documents(self, numbers: Iterable[int]) -> np.ndarray:
        """The range of each of these documents, int64 [R, 2]."""
        numbers_R = np.array(list(numbers), dtype=np.int64)
        begins_R, ends_R = self._text.begins_D[numbers_R], self._text.ends_D[numbers_R]
        has_end_R = (ends_R > begins_R) & (self._text.at(ends_R - 1, -1) == self._vocabulary.end_id)
        begins_R = np.minimum(begins_R + len(self._vocabulary.before), ends_R - has_end_R)
        return np.stack([begins_R, ends_R - has_end_R], axis=1)

    def characters(self, number: int, text: str, first: int, last: int) -> Span:
        """The tokens of characters first .. last - 1 of a document, whose `text` is encoded again. The whole
        document if its tokens are not those of the text, or if the tokenizer does not locate them.
        """
        [[begin, end]] = self.documents([number]).tolist()
        ids, places = self._vocabulary.located(text)
        if self._text.tokens_N[begin:end].tolist() == ids:
            found = [n for n, (a, b) in enumerate(places) if a < last and first < b]
            if found:
                return Span(begin + found[0], begin + found[-1] + 1, True)
        return Span(begin, end, False)
