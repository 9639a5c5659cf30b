"""How text is drawn from a model: how much, how boldly, and from which seed. Torch-free."""

from pydantic import Field

from engine.spec.base import Spec


class Sampling(Spec):
    max_tokens: int = Field(default=128, ge=1, le=1_000_000, description="tokens drawn at most; 1 to 1000000")
    temperature: float = Field(
        default=0.8, ge=0, le=100, description="divides the logits; 0 = the most probable token"
    )
    top_p: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="keeps the fewest tokens that together reach this share; above 0, at most 1",
    )
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="of the draws; the same seed gives the same text"
    )


class Request(Sampling):
    """One question to a serving model."""

    prompt: str = Field(default="", description="the text to continue; empty = the beginning of a document")


class Generation(Sampling):
    """What `python -m engine.generate` does: continue `prompts`, or answer requests from its input."""

    prompts: tuple[str, ...] = Field(default=(), description="texts to continue, each from the same seed")
    serve: bool = Field(default=False, description="answer a JSON request a line, until the input ends")
