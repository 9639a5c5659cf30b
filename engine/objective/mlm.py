"""Knowledge-masked language modelling: the cross-entropy of the hidden tokens."""

from atelier.engine.objective.lm import token_gradient, token_loss

__all__ = ["token_gradient", "token_loss"]
