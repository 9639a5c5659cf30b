"""Supervised fine-tuning on conversations: cross-entropy of the assistant's tokens, given all before them."""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.registry import ObjectiveSpec


class Chat(ObjectiveSpec):
    needs_teacher: ClassVar[bool] = False
    term: ClassVar[str] = "lm"
    source: ClassVar[str] = "chats"
    reads: ClassVar[str] = "chat"

    kind: Literal["chat"] = "chat"
    weight: float = Field(default=1.0, gt=0, description="share among the role's active objectives; above 0")
