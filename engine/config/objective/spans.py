"""Span corruption: the encoder reads a text with sentinels in place of some spans, the decoder says what
each of them stands for (T5, 1910.10683, section 3.1.4; CPM-2, 2106.10715).
"""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.batch import ENCODER
from atelier.engine.config.error import ConfigError
from atelier.engine.config.own_rows import OwnRows

SENTINELS = ("<|s{n}|>", "<extra_id_{n}>")  # what tokenizers call them: ours, T5's


class Spans(OwnRows):
    needs_teacher: ClassVar[bool] = False
    term: ClassVar[str] = "lm"
    reads: ClassVar[str] = "spans"
    extras: ClassVar[tuple[str, ...]] = ENCODER

    kind: Literal["spans"] = "spans"
    weight: float = Field(default=1.0, gt=0, description="share among the role's active objectives; above 0")
    encoder: int = Field(default=512, ge=8, description="tokens that the encoder reads, at most")
    rate: float = Field(
        default=0.15,
        gt=0,
        lt=1,
        description="share of a text's tokens that the decoder says; above 0, below 1",
    )
    mean: float = Field(default=3.0, ge=1, description="tokens of a span on average")

    @property
    def encoder_length(self) -> int:
        return self.encoder

    def sentinels(self, sequence: int) -> int:
        return self.cut(self.text_tokens(self.row_tokens(sequence)))[1]

    def cut(self, length: int) -> tuple[int, int]:
        """Of so many tokens of text how many are said by the decoder, and in how many spans."""
        noise = min(max(round(length * self.rate), 1), length - 1)
        return noise, min(max(round(noise / self.mean), 1), noise, length - noise)

    def sides(self, length: int) -> tuple[int, int]:
        """Tokens of the encoder's input and of the decoder's for so many tokens of text, end or begin
        included.
        """
        noise, spans = self.cut(length)
        return length - noise + spans + 1, noise + spans + 1

    def text_tokens(self, sequence: int) -> int:
        """Tokens of text of a row, of which the decoder has at most `sequence`."""
        most = 1
        while all(
            size <= room for size, room in zip(self.sides(most + 1), (self.encoder, sequence), strict=True)
        ):
            most += 1
        return most


def check_sentinels(there: int, needed: int) -> None:
    """Raise ConfigError for a vocabulary with fewer sentinels, `there`, than rows need."""
    if there < needed:
        first, last = (SENTINELS[0].format(n=n) for n in (there, needed - 1))
        raise ConfigError(
            "tokenizer.specials",
            f"rows of the objective spans have up to {needed} spans, the vocabulary has {there} sentinels",
            f"add {first} to {last} (tokenizer=bpe4k_spans has 64), or a smaller objective.spans.encoder",
        )
