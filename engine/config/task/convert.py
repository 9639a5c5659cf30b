"""Config of the task convert."""

from pydantic import model_validator

from atelier.engine.config.base import JsonObject, Spec
from atelier.engine.config.conversions import Conversion


class ConvertConfig(Spec):
    """`measured`: held-out tokens for both models' losses; `states`: URL of the parent's last checkpoint, if
    its optimiser states are converted; `optim`: the identity of that optimiser.
    """

    rule: Conversion
    measured: int = 0
    states: str = ""
    optim: JsonObject = {}

    @model_validator(mode="after")
    def _says_whose(self) -> "ConvertConfig":
        if self.states and not self.optim:
            raise ValueError("states are given without optim, the optimiser that they belong to")
        return self
