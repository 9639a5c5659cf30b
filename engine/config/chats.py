"""Spec of conversations to learn from. Torch-free."""

from typing import Literal

from pydantic import Field

from atelier.engine.config.base import Spec


class Chats(Spec):
    """Rows with a list of messages {"role", "content"}; what is learned are the assistant's."""

    source: str = Field(
        min_length=1,
        description="a path, folder or fsspec glob of .jsonl, .parquet or .tar files: a row a conversation",
    )
    field: str = Field(
        default="messages",
        min_length=1,
        description="the field of a .jsonl line, or column of a .parquet, that holds the messages",
    )
    template: Literal["auto", "chatml", "plain"] = Field(
        default="auto",
        description=(
            "how messages become text: auto (the model's own chat template; without one chatml where its"
            " tokenizer has <|im_start|> and <|im_end|>, else plain), chatml or plain"
        ),
    )
    date: str = Field(
        default="",
        pattern=r"^(\d{4}-\d{2}-\d{2})?$",
        description="what a template that writes today's date (strftime_now) is told, as 2024-07-26",
    )
    on_error: Literal["stop", "skip"] = Field(
        default="stop", description="at a broken row: stop, or skip and count it"
    )
    held_out: float = Field(
        default=0.05, gt=0, lt=0.5, description="share of conversations held out, chosen by their hash"
    )
