"""BASE layers (2103.16716): experts get equally many tokens of a group of rows, one expert per token, such
that the sum of scores is largest.
"""

from typing import Literal

from atelier.engine.config.routing import LookingAhead


class Base(LookingAhead):
    kind: Literal["base"] = "base"

    @property
    def has_own_shares(self) -> bool:
        return True

    def check_experts(self, num_experts: int, per_token: int) -> None:
        if per_token != 1:
            raise ValueError(
                f"experts_per_token {per_token}, but router.kind=base assigns one expert per token"
            )
