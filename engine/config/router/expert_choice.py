"""Expert-choice routing (2202.09368): every expert takes its best tokens of a group of rows."""

from typing import Literal

from atelier.engine.config.routing import LookingAhead


class ExpertChoice(LookingAhead):
    kind: Literal["expert_choice"] = "expert_choice"

    @property
    def has_own_shares(self) -> bool:
        return True
