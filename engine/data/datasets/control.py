"""Text after control prompts: in a share of the rows, genre, topic, keywords, sentiment and length precede
the text, each dropped at random (ERNIE 3.0 Titan, 2112.12731, equation 2).

Shape letters: B rows, T tokens of a row, P tokens of a prefix.
"""

from pathlib import Path
from typing import cast

import numpy as np

from atelier.engine.config.batch import NOT_SCORED, PADDING
from atelier.engine.config.error import DataError
from atelier.engine.config.generation import GenerationAttributes
from atelier.engine.config.objective.control import ATTRIBUTE_NAMES, Control
from atelier.engine.data.attributes import ATTRIBUTES, AttributedParagraph
from atelier.engine.data.control_prompt import Prefix, prefix_of
from atelier.engine.data.counter_rng import Chance, Numbers, below, numbered, uniform
from atelier.engine.data.tokens import fixed_rows
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput

_ASKED, _KEPT, _COUNT, _CUT, _END = 1, 2, 3, 4, 5  # lanes
LEAST = 8  # minimum room for text, in tokens


class Asked:
    """Rows [soft prompts] [tag topic] [tag keywords] [tag sentiment] [tag length] <|sep|> text <|end|>, or
    only <|sep|> text <|end|>. The whole text is scored, its first token and (if they fit) the end token
    included.
    """

    extras = ("prompts_BT",)
    part: int | None = None

    def __init__(
        self,
        lines: list[AttributedParagraph],
        vocabulary: Vocabulary,
        spec: Control,
        *,
        split: str,
        sequence: int,
        seed: int,
    ) -> None:
        if not lines:
            raise DataError(f"{ATTRIBUTES}: no {split} paragraph; give more text")
        if unknown := {line["genre"] for line in lines} - set(spec.genres):
            raise DataError(
                f"{ATTRIBUTES}: genres {', '.join(sorted(unknown))} are none of objective control's"
                f" {', '.join(spec.genres)}; data.attributes gives documents other genres"
            )
        self._lines, self._vocabulary, self._spec = lines, vocabulary, spec
        self._texts = vocabulary.encode_all([line["text"] for line in lines])
        self._chance = Chance(seed, "control", split)
        self.length = sequence

    def __len__(self) -> int:
        return len(self._lines)

    def batch(self, indices: Numbers, epochs: Numbers | None = None) -> dict[str, np.ndarray]:
        rows_B, epochs_B = numbered(indices, epochs)
        keys_B = self._chance.keys(rows_B, epochs_B)
        shape = (len(rows_B), self.length)
        result = {
            "tokens_BT": np.full(shape, self._vocabulary.pad_id, dtype=np.int64),
            "positions_BT": np.zeros(shape, dtype=np.int64),
            "documents_BT": np.full(shape, PADDING, dtype=np.int64),
            "labels_BT": np.full(shape, NOT_SCORED, dtype=np.int64),
            "prompts_BT": np.full(shape, -1, dtype=np.int64),
        }
        for place, (row, key) in enumerate(zip(rows_B.tolist(), keys_B, strict=True)):
            text = self._text(row, key)
            prefix = self._prefix(row, key, len(text))
            text = [*text, self._vocabulary.end_id]
            if len(prefix.ids) + LEAST > self.length:
                prefix = Prefix(prefix.ids[-1:], [-1])
            ids = [*prefix.ids, *text][: self.length + 1]
            size, begin = min(len(ids) - 1, self.length), len(prefix.ids) - 1
            result["tokens_BT"][place, :size] = ids[:size]
            result["positions_BT"][place, :size] = np.arange(size)
            result["documents_BT"][place, :size] = 0
            result["labels_BT"][place, begin:size] = ids[begin + 1 : size + 1]
            result["prompts_BT"][place, : len(prefix.prompts)] = prefix.prompts
        return result

    def rows_with(self, begin: int, end: int, epoch: int) -> np.ndarray:
        """The rows of a range of the split's paragraphs (blend.py, Dataset), of some only the beginning; the
        same in all epochs.
        """
        return fixed_rows(begin, end, size=1, count=len(self), last=len(self))

    def _text(self, row: int, key: np.ndarray) -> list[int]:
        text = self._texts[row]
        if len(text) > LEAST and uniform(key, 0, _CUT) < self._spec.cut:
            return text[: LEAST + int(below(key, 0, _END, len(text) - LEAST))]
        return text

    def _prefix(self, row: int, key: np.ndarray, length: int) -> Prefix:
        line, spec = self._lines[row], self._spec
        is_asked = uniform(key, 0, _ASKED) < spec.asked
        kept = [
            bool(is_asked and uniform(key, place, _KEPT) >= spec.dropped and name in spec.attributes)
            for place, name in enumerate(ATTRIBUTE_NAMES)
        ]
        wishes = GenerationAttributes(
            topic=line["topic"] if kept[1] else "",
            keywords=tuple(line["keywords"]) if kept[2] else (),
            sentiment=line["sentiment"] if kept[3] else "",
            length=length if kept[4] else 0,
        )
        num_prompts = int(below(key, 0, _COUNT, spec.prompt_length)) if kept[0] else 0
        first = spec.genres.index(line["genre"]) * spec.prompt_length
        return prefix_of(wishes, self._vocabulary, first_prompt=first, num_prompts=num_prompts)


def open_rows(
    spec: Control,
    tokens: ArtifactInput,
    vocabulary: Vocabulary,
    scratch: Path,
    *,
    split: str,
    sequence: int,
    seed: int,
) -> Asked:
    """The rows of a split; `tokens` is an attributes artifact."""
    lines = cast(list[AttributedParagraph], tokens.lines(ATTRIBUTES, scratch))
    mine = [line for line in lines if line["split"] == split]
    return Asked(mine, vocabulary, spec, split=split, sequence=sequence, seed=seed)
