"""Interface of routers, which assign a mixture's tokens to experts. Kind `topk` of group `router` is
engine/config/router/topk.py. Torch-free.
"""

from typing import Annotated, cast

from pydantic import BeforeValidator, Field, SerializeAsAny

from atelier.engine.config.base import Kind
from atelier.engine.config.registry import KindChooser


class RouterSpec(Kind):
    """Fields of a router, and its properties for layouts and objectives."""

    kind: str

    @property
    def competes(self) -> bool:
        """Whether tokens compete for experts within groups of rows."""
        return False

    @property
    def looks_ahead(self) -> bool:
        """Whether a token's experts depend on later tokens of its row without `sees_future`."""
        return False

    @property
    def learns(self) -> bool:
        """Whether it has a trained matrix."""
        return True

    @property
    def has_own_shares(self) -> bool:
        """Whether it weights experts itself, not by `combine`; the weights may sum to less than 1."""
        return False

    @property
    def buffers(self) -> tuple[str, ...]:
        """Its weights without gradient, one per expert: a bias of the choice, loads of the last step."""
        return ()

    @property
    def sums(self) -> dict[str, float]:
        """The sums over tokens that are added to the loss, with their weights."""
        return {}

    @property
    def needs_whole_rows(self) -> bool:
        """Whether a rank needs all tokens of a row."""
        return self.competes

    def check_experts(self, num_experts: int, per_token: int) -> None:
        """Raise ValueError for numbers of experts that it does not support."""


class LookingAhead(RouterSpec):
    """Routers for which a token's experts depend on all tokens of its group, later ones included."""

    sees_future: bool = Field(
        default=False, description="allow it with causal objectives, whose tokens then see later ones"
    )

    @property
    def competes(self) -> bool:
        return True

    @property
    def looks_ahead(self) -> bool:
        return not self.sees_future


ROUTERS = KindChooser("router", usual="topk")
Router = Annotated[SerializeAsAny[RouterSpec], BeforeValidator(ROUTERS)]


def usual_router() -> RouterSpec:
    """The default router of a mixture."""
    return cast(RouterSpec, ROUTERS({}))
