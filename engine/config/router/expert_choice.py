"""Expert-choice routing: every expert takes its best tokens of a group of rows (2202.09368)."""

from typing import Literal

from pydantic import Field

from atelier.engine.config.routing import RouterSpec


class ExpertChoice(RouterSpec):
    kind: Literal["expert_choice"] = "expert_choice"
    sees_future: bool = Field(
        default=False, description="allow it with causal objectives, whose tokens it lets see later ones"
    )

    @property
    def competes(self) -> bool:
        return True

    @property
    def looks_ahead(self) -> bool:
        return not self.sees_future
