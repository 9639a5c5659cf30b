"""Hash layers (2106.04426): a token's id determines its experts; nothing is learned."""

from typing import Literal

from atelier.engine.config.routing import RouterSpec


class Hash(RouterSpec):
    kind: Literal["hash"] = "hash"

    @property
    def learns(self) -> bool:
        return False
