"""Controllable language modelling: the cross-entropy of the text behind what is asked for."""

from atelier.engine.objective.lm import token_gradient, token_loss

__all__ = ["token_gradient", "token_loss"]
