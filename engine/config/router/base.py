"""BASE layers: tokens and experts are assigned one to one share, each expert equally many tokens of a group
of rows, so that the sum of their scores is the largest (2103.16716).
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
                f"experts_per_token {per_token}, but router.kind=base assigns one expert a token"
            )
