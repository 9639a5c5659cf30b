"""Hash layers: a token's experts follow from its number in the vocabulary; nothing is learned (2106.04426)."""

from typing import Literal

from atelier.engine.config.routing import RouterSpec


class Hash(RouterSpec):
    kind: Literal["hash"] = "hash"

    @property
    def learns(self) -> bool:
        return False
