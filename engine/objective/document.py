"""Document language modelling: the cross-entropy of the tokens after a row's memory."""

from atelier.engine.objective.lm import token_gradient, token_loss

__all__ = ["token_gradient", "token_loss"]
