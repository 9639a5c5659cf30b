"""Where weights are that do not fit. Torch-free."""

from typing import Literal

from pydantic import Field

from atelier.engine.config.section import Section


class Tiers(Section):
    """Where weights are that do not fit: the states of experts, weights and moments, of which a policy says
    which leave full memory; and a frozen teacher.
    """

    experts: Literal["device", "disk"] = Field(
        default="device",
        description="device = with the other weights; disk = brought to memory when needed",
    )
    host_gb: float = Field(
        default=0.0,
        ge=0,
        description="memory for expert states and their gradients, GB a role (and stage) of a rank; 0 = as "
        "much as they take",
    )
    frozen_gb: float = Field(
        default=0.0,
        ge=0,
        description="weights in memory at once of a teacher that is frozen, GB a rank; 0 = all of them",
    )
    policy: Literal["lfu", "lru", "static", "order"] = Field(
        default="lru",
        description="whose weights leave: least often used (with decay), least recently, newest, or the last "
        "needed were all needed in order",
    )

    @property
    def is_on(self) -> bool:
        return self.experts == "disk" or self.frozen_gb > 0

    @property
    def frozen_limit(self) -> tuple[str, float]:
        """As the base's."""
        return "frozen_gb", self.frozen_gb
