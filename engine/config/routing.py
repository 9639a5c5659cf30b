"""The interface of routers: how the tokens of a mixture find their experts. `kind: topk` of group `router` is
engine/config/router/topk.py. Torch-free.
"""

from typing import Annotated, cast

from pydantic import BeforeValidator, Field, SerializeAsAny

from atelier.engine.config.base import Kind
from atelier.engine.config.registry import KindChooser


class RouterSpec(Kind):
    """Fields of a router, and what layouts and objectives have to know of it."""

    kind: str

    @property
    def competes(self) -> bool:
        """Whether tokens compete for experts, within groups of rows."""
        return False

    @property
    def looks_ahead(self) -> bool:
        """Whether a token's experts depend on later tokens of its row, without leave."""
        return False

    @property
    def learns(self) -> bool:
        """Whether it has a matrix."""
        return True

    @property
    def has_own_shares(self) -> bool:
        """Whether what a token's experts weigh does not follow `combine`, so that it may be less than 1."""
        return False

    @property
    def buffers(self) -> tuple[str, ...]:
        """Its weights, one a expert, that no gradient moves: a bias of the choice, loads of the last step."""
        return ()

    @property
    def sums(self) -> dict[str, float]:
        """The sums over tokens that are optimised, with their weights."""
        return {}

    @property
    def needs_whole_rows(self) -> bool:
        """Whether a rank has to have the whole row, all tokens of it."""
        return self.competes

    def check_experts(self, num_experts: int, per_token: int) -> None:
        """Raise ValueError for numbers of experts that it cannot route to."""


class LookingAhead(RouterSpec):
    """Routers of which a token's experts depend on all tokens of its group, later ones too."""

    sees_future: bool = Field(
        default=False, description="allow it with causal objectives, whose tokens it lets see later ones"
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
    """The router of a mixture that names none."""
    return cast(RouterSpec, ROUTERS({}))
