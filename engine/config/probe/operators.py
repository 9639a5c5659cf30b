"""Infer the rule behind a sign from solved examples: arithmetic with its usual signs, and the same sums with
signs that mean nothing (MT-NLG, 2201.11990, section 5.2).
"""

import random
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from atelier.engine.config.base import Count, Json
from atelier.engine.config.error import ConfigError
from atelier.engine.config.evaluation_source import ProbedRow, ProbeSpec

Operation = Literal["add", "subtract", "multiply"]
RESULT = {"add": int.__add__, "subtract": int.__sub__, "multiply": int.__mul__}


class OperatorProbe(ProbeSpec):
    """Each sum is asked with the usual sign and with the new one; the options are all operations' results."""

    kind: Literal["operators"] = "operators"
    questions: Count = Field(default=100, description="sums of each operation")
    solved: Count = Field(default=6, description="solved sums before each")
    largest: int = Field(default=20, ge=6, description="numbers are from 2 to this")
    signs: dict[Operation, tuple[str, str]] = Field(
        default={"add": ("+", "#"), "subtract": ("-", "@"), "multiply": ("*", "~")},
        description="the usual sign and the new one",
    )
    seed: int = 0

    def rows(self, of: Sequence[ProbedRow], place: str) -> list[dict[str, Json]]:
        """Two rows for each sum, of one group. Raises ConfigError if there are not as many different sums."""
        if len(self.signs) < 2:
            raise ConfigError(f"{place}.signs", "a choice needs two operations or more")
        numbers = range(2, self.largest + 1)
        pairs = [
            (a, b)
            for a in numbers
            for b in numbers
            if len({RESULT[each](a, b) for each in self.signs}) == len(self.signs)
        ]
        if self.questions > len(pairs) or self.solved >= len(pairs):
            raise ConfigError(
                f"{place}.questions",
                f"there are {len(pairs)} sums of numbers up to {self.largest}",
                "raise largest",
            )
        made: list[dict[str, Json]] = []
        for operation in sorted(self.signs):
            dice = random.Random(f"{self.seed}/{operation}")
            for number, pair in enumerate(dice.sample(pairs, self.questions)):
                solved = dice.sample([each for each in pairs if each != pair], self.solved)
                order = dice.sample(sorted(self.signs), len(self.signs))
                options = [str(RESULT[each](*pair)) for each in order]
                for sign, name in zip(self.signs[operation], ("usual sign", "new sign"), strict=True):
                    lines = [f"{a} {sign} {b} = {RESULT[operation](a, b)}\n" for a, b in solved]
                    made.append(
                        {
                            "id": f"{operation}.{number}.{name.split()[0]}",
                            "context": f"{''.join(lines)}{pair[0]} {sign} {pair[1]} =",
                            "options": list[Json](options),
                            "answer": order.index(operation),
                            "group": f"{operation}.{number}",
                            "slice": name,
                        }
                    )
        return made
