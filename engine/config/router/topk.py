"""Token-choice routing: every token goes to its K best experts (1701.06538, 2101.03961)."""

from typing import Literal

from pydantic import Field

from atelier.engine.config.routing import RouterSpec

Balance = Literal["none", "row", "batch", "bias"]


class TopK(RouterSpec):
    kind: Literal["topk"] = "topk"
    score: Literal["softmax", "sigmoid"] = Field(
        default="softmax", description="what a logit becomes: softmax over the experts, or sigmoid"
    )
    groups: int = Field(
        default=1, ge=1, description="equal groups of experts; a token's experts are of a few of them"
    )
    groups_per_token: int = Field(
        default=1, ge=1, description="groups that a token's experts may be of (unused with one group)"
    )
    balance: Balance = Field(
        default="none",
        description="what keeps experts equally loaded: a loss over each row, a loss over the global batch "
        "with the loads of the step before, a bias of the choice without loss, or none",
    )
    balance_weight: float = Field(
        default=0.01, ge=0, description="weight of the balance loss; with balance=bias its step a step"
    )
    z_weight: float = Field(
        default=0.0, ge=0, description="weight of the squared log-sum-exp of the logits (2202.08906)"
    )
    capacity: float = Field(
        default=0.0,
        ge=0,
        description="most tokens of an expert in a group of rows, in units of an equal share; earlier tokens "
        "first, the rest are dropped; 0 = none is dropped",
    )

    @property
    def competes(self) -> bool:
        return self.capacity > 0

    @property
    def buffers(self) -> tuple[str, ...]:
        return {"bias": ("bias",), "batch": ("load",)}.get(self.balance, ())

    @property
    def sums(self) -> dict[str, float]:
        balance = self.balance_weight if self.balance in ("row", "batch") else 0.0
        return {
            name: weight for name, weight in (("balance", balance), ("router_z", self.z_weight)) if weight
        }

    @property
    def needs_whole_rows(self) -> bool:
        return self.competes or self.balance == "row"

    def check_experts(self, num_experts: int, per_token: int) -> None:
        if num_experts % self.groups:
            raise ValueError(f"num_experts {num_experts} is not divisible by router.groups {self.groups}")
        if self.groups_per_token > self.groups:
            raise ValueError(
                f"router.groups_per_token {self.groups_per_token} is more than router.groups {self.groups}"
            )
        room = self.groups_per_token * (num_experts // self.groups)
        if self.groups > 1 and per_token > room:
            raise ValueError(
                f"experts_per_token {per_token} is more than the {room} experts of router.groups_per_token "
                f"{self.groups_per_token}"
            )
