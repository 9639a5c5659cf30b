"""Token and row counts of a step: the divisors of its sums."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Counts:
    """The counts of one step, by part of the mixture. `parts`: tokens and rows with something to predict;
    `seen`: tokens that are not padding.
    """

    scored: int  # tokens with a label
    tokens: int  # tokens that are not padding
    parts: tuple[int, ...] = ()
    seen: tuple[int, ...] = ()

    @property
    def divisor(self) -> int:
        """The divisor of all sums of a step, those over classes included; at least 1, since a step may have
        no scored token.
        """
        return max(1, self.scored)

    def numbers(self) -> list[int]:
        """The counts as a list, to be summed over ranks."""
        return [self.scored, self.tokens, *self.parts, *self.seen]

    @staticmethod
    def of_numbers(numbers: Sequence[int]) -> "Counts":
        scored, tokens, *rest = numbers
        return Counts(scored, tokens, tuple(rest[: len(rest) // 2]), tuple(rest[len(rest) // 2 :]))

    def of(self, parts: Sequence[int] | None, *, every_token: bool = False) -> int:
        """The divisor of an objective that reads these parts of the mixture; None = every row. `every_token`:
        it is a mean over all tokens.
        """
        whole, found = (self.tokens, self.seen) if every_token else (self.scored, self.parts)
        return whole if parts is None else sum(found[part] for part in parts)


def count(batches: Sequence[dict[str, Tensor]], num_parts: int) -> Counts:
    """Count the tokens and rows of these micro-batches."""
    total = [0] * (2 + 2 * num_parts)
    for batch in batches:
        scored_B = (batch["labels_BT"] >= 0).sum(1)
        total[0] += int(scored_B.sum())
        seen_B = (batch["documents_BT"] >= 0).sum(1)
        total[1] += int(seen_B.sum())
        if not num_parts:
            continue
        classed_B = batch["classes_B"] >= 0 if "classes_B" in batch else scored_B.new_zeros(len(scored_B))
        for part in range(num_parts):
            is_its_B = batch["parts_B"] == part
            total[2 + part] += int(((scored_B + classed_B) * is_its_B).sum())
            total[2 + num_parts + part] += int((seen_B * is_its_B).sum())
    return Counts.of_numbers(total)
