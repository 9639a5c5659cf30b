"""Config of the task write."""

from atelier.engine.config.base import Spec
from atelier.engine.config.generation import Written
from atelier.engine.config.registry import Model


class WriteConfig(Spec):
    """The engine reads `written`; the plan needs `model` too."""

    written: Written
    model: Model
