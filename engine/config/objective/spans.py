"""Span corruption: the encoder reads a text with some spans replaced by sentinels; the decoder predicts the
spans (T5, 1910.10683, section 3.1.4; CPM-2, 2106.10715).
"""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.batch import ENCODER
from atelier.engine.config.error import ConfigError
from atelier.engine.config.own_rows import OwnRows

SENTINELS = ("<|s{n}|>", "<extra_id_{n}>")  # names in tokenizers: ours, T5's


class Spans(OwnRows):
    needs_teacher: ClassVar[bool] = False
    term: ClassVar[str] = "lm"
    reads: ClassVar[str] = "spans"
    extras: ClassVar[tuple[str, ...]] = ENCODER

    kind: Literal["spans"] = "spans"
    weight: float = Field(default=1.0, gt=0, description="share among the role's active objectives; above 0")
    encoder: int = Field(default=512, ge=8, description="maximum of encoder tokens")
    rate: float = Field(
        default=0.15,
        gt=0,
        lt=1,
        description="share of a text's tokens that the decoder predicts; above 0, below 1",
    )
    mean: float = Field(default=3.0, ge=1, description="mean tokens of a span")

    @property
    def encoder_length(self) -> int:
        return self.encoder

    def sentinels(self, sequence: int) -> int:
        return self.cut(self.text_tokens(self.row_tokens(sequence)))[1]

    def cut(self, length: int) -> tuple[int, int]:
        """Of a text of `length` tokens: tokens that the decoder predicts, and number of spans."""
        noise = min(max(round(length * self.rate), 1), length - 1)
        return noise, min(max(round(noise / self.mean), 1), noise, length - noise)

    def sides(self, length: int) -> tuple[int, int]:
        """Encoder and decoder tokens for a text of `length` tokens, end or begin token included."""
        noise, spans = self.cut(length)
        return length - noise + spans + 1, noise + spans + 1

    def text_tokens(self, sequence: int) -> int:
        """Tokens of text per row such that the decoder has at most `sequence`."""
        most = 1
        while all(
            size <= room for size, room in zip(self.sides(most + 1), (self.encoder, sequence), strict=True)
        ):
            most += 1
        return most


def check_sentinels(there: int, needed: int) -> None:
    """Raise ConfigError if the vocabulary has fewer sentinels (`there`) than rows need."""
    if there < needed:
        first, last = (SENTINELS[0].format(n=n) for n in (there, needed - 1))
        raise ConfigError(
            "tokenizer.specials",
            f"objective spans needs up to {needed} sentinels, the vocabulary has {there}",
            f"add {first} to {last} (tokenizer=bpe4k_spans has 64), or a smaller objective.spans.encoder",
        )
