"""Setting parallel.tiers: where weights are kept that do not fit in memory. Torch-free."""

from typing import Literal

from pydantic import Field

from atelier.engine.config.section import Section


class Tiers(Section):
    """Where to keep weights that do not fit in memory: states of experts, with a policy for what leaves
    memory; a frozen teacher.
    """

    experts: Literal["device", "disk"] = Field(
        default="device",
        description="device = with the other weights; disk = loaded into memory when needed",
    )
    host_gb: float = Field(
        default=0.0,
        ge=0,
        description="memory for expert states and gradients, GB per role (and stage) of a rank; 0 = as"
        " much as needed",
    )
    device_gb: float = Field(
        default=0.0,
        ge=0,
        description="GPU memory for experts that compute, GB per role (and stage) of a rank, at least a few"
        " experts; on CPUs, which compute in host memory, a value tries the copies of GPUs",
    )
    frozen_gb: float = Field(
        default=0.0,
        ge=0,
        description="limit of a frozen teacher's weights in memory, GB per rank; 0 = no limit",
    )
    policy: Literal["lfu", "lru", "static", "order"] = Field(
        default="lru",
        description="weights that leave memory first: least often used (with decay), least recently used,"
        " newest (static), or last needed if all are needed in order (order)",
    )

    lfu_threshold: float = Field(
        default=0.0, ge=0, description="policy=lfu: of experts with so many hits the one with fewest leaves"
    )
    lfu_decay: float = Field(default=0.5, ge=0, le=1, description="policy=lfu: factor of all hits at a decay")
    lfu_every: int = Field(default=1000, ge=1, description="policy=lfu: uses from one decay to the next")

    @property
    def is_on(self) -> bool:
        return self.experts == "disk" or self.frozen_gb > 0

    @property
    def frozen_limit(self) -> tuple[str, float]:
        """The field frozen_gb and its value."""
        return "frozen_gb", self.frozen_gb
