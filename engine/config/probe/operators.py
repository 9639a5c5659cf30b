"""Infer the rule behind a sign from solved examples: arithmetic with its usual signs, and the same sums with
signs that mean nothing, as MT-NLG 530B was asked (2201.11990).
"""

import random
import re
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
    largest: int = Field(default=20, ge=6, le=200, description="numbers are from 2 to this")
    signs: dict[Operation, tuple[str, str]] = Field(
        default={"add": ("+", "#"), "subtract": ("-", "@"), "multiply": ("*", "~")},
        description="the usual sign and the new one",
    )
    seed: int = 0

    def rows(self, of: Sequence[ProbedRow], place: str) -> list[dict[str, Json]]:
        """Two rows for each sum, one item. Raises ConfigError if there are not as many different sums."""
        if len(self.signs) < 2:
            raise ConfigError(f"{place}.signs", "a choice needs two operations or more")
        numbers = range(2, self.largest + 1)
        pairs = [
            (a, b)
            for a in numbers
            for b in numbers
            if len({RESULT[each](a, b) for each in self.signs}) == len(self.signs)
        ]
        if self.questions > len(pairs) or self.solved + 2 > len(pairs):
            raise ConfigError(
                f"{place}.questions",
                f"there are {len(pairs)} sums of numbers up to {self.largest}",
                "raise largest",
            )
        signs = [sign for both in self.signs.values() for sign in both]
        if len({*signs}) < len(signs) or any(re.search(r"[\w\s=]|^$", sign) for sign in signs):
            raise ConfigError(
                f"{place}.signs", f"{signs} are not different signs", "no letters, digits, blanks, or ="
            )
        names: list[Operation] = sorted(self.signs)
        drawn = {each: random.Random(f"{self.seed}/{each}") for each in names}
        sums = {each: dice.sample(pairs, self.questions) for each, dice in drawn.items()}
        made: list[dict[str, Json]] = []
        for number in range(self.questions):
            for operation in names:
                dice = drawn[operation]
                pair = sums[operation][number]
                others = dice.sample(pairs, self.solved + 2)  # which may have this sum, and turned round
                solved = [each for each in others if sorted(each) != sorted(pair)][: self.solved]
                order = dice.sample(names, len(names))
                options = [str(RESULT[each](*pair)) for each in order]
                for sign, name in zip(self.signs[operation], ("usual sign", "new sign"), strict=True):
                    lines = [f"{a} {sign} {b} = {RESULT[operation](a, b)}\n" for a, b in solved]
                    made.append(
                        {
                            "id": f"{operation}.{number}.{name.split()[0]}",
                            "context": f"{''.join(lines)}{pair[0]} {sign} {pair[1]} =",
                            "options": list[Json](options),
                            "answer": order.index(operation),
                            "item": f"{operation}.{number}",
                            "slice": name,
                        }
                    )
        return made
