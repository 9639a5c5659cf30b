"""Controllable language modelling: the cross-entropy of the text after a control prompt."""

from atelier.engine.objective.lm import token_gradient, token_loss

__all__ = ["token_gradient", "token_loss"]
