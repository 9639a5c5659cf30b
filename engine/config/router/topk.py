"""Token-choice routing (1701.06538, 2101.03961): every token goes to its K best experts."""

from typing import Literal

from pydantic import Field

from atelier.engine.config.routing import RouterSpec

Balance = Literal["none", "row", "batch", "bias"]


class TopK(RouterSpec):
    kind: Literal["topk"] = "topk"
    score: Literal["softmax", "sigmoid"] = Field(
        default="softmax", description="score of a logit: softmax over the experts, or sigmoid"
    )
    groups: int = Field(default=1, ge=1, description="equal groups of experts; a token uses few groups")
    groups_per_token: int = Field(
        default=1, ge=1, description="groups that a token may use (unused with one group)"
    )
    balance: Balance = Field(
        default="none",
        description="load balancing: a loss over each row, a loss over the global batch (with the last"
        " step's loads), a bias on the choice without loss, or none",
    )
    balance_weight: float = Field(
        default=0.01, ge=0, description="weight of the balance loss; change per step of balance=bias"
    )
    z_weight: float = Field(
        default=0.0, ge=0, description="weight of the squared log-sum-exp of the logits (2202.08906)"
    )
    capacity: float = Field(
        default=0.0,
        ge=0,
        description="maximum of tokens per expert in a group of rows, as a multiple of the equal share;"
        " later tokens are dropped; 0 = no limit",
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
