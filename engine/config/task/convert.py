"""The config of the task convert."""

from pydantic import model_validator

from atelier.engine.config.base import JsonObject, Spec
from atelier.engine.config.conversions import Conversion


class ConvertConfig(Spec):
    """`measured`: held-out tokens on which both models' losses are measured; `states`: URL of the parent's
    last checkpoint, for rules that grow its optimiser's states; `optim`: the identity of that optimiser.
    """

    rule: Conversion
    measured: int = 0
    states: str = ""
    optim: JsonObject = {}

    @model_validator(mode="after")
    def _says_whose(self) -> "ConvertConfig":
        if self.states and not self.optim:
            raise ValueError("states without the optimiser that they are of: no training would take them")
        return self
