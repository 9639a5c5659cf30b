"""Spec of conversations for supervised fine-tuning. Torch-free."""

from typing import Literal

from pydantic import Field, model_validator

from atelier.engine.config.base import Spec
from atelier.engine.config.data import STDLIB, is_stdlib
from atelier.engine.config.generated import generated, is_generated


class Chats(Spec):
    """Rows with a list of messages {"role", "content"}, or with a prompt and its answer. Only assistant
    messages (answers) are learned.
    """

    source: str = Field(
        min_length=1,
        description="path, folder or fsspec glob of .jsonl, .parquet or .tar files with one conversation a"
        " row; .mo files with `prompt` and `answer`; or stdlib: docstrings of this interpreter's standard"
        " library with the signatures they document; or languages:svo-sov: sentences of a generated language"
        " with their translations",
    )
    field: str = Field(
        default="messages",
        min_length=1,
        description=".jsonl field or .parquet column with the messages",
    )
    prompt: str = Field(
        default="",
        description="field of the prompt; used with `answer`, instead of `field`; msgid in a .mo",
    )
    answer: str = Field(default="", description="field of the answer to `prompt`; msgstr in a .mo")
    template: Literal["auto", "chatml", "plain"] = Field(
        default="auto",
        description=(
            "how messages become text: chatml; plain; auto = the model's own chat template, else chatml if"
            " its tokenizer has <|im_start|> and <|im_end|>, else plain"
        ),
    )
    date: str = Field(
        default="",
        pattern=r"^(\d{4}-\d{2}-\d{2})?$",
        description="the date that a template with today's date (strftime_now) gets, such as 2024-07-26",
    )
    on_error: Literal["stop", "skip"] = Field(
        default="stop", description="at a broken row: stop, or skip and count it"
    )
    held_out: float = Field(
        default=0.05, gt=0, lt=0.5, description="share of conversations held out, chosen by their hash"
    )

    @model_validator(mode="after")
    def _pairs(self) -> "Chats":
        if bool(self.prompt) != bool(self.answer):
            missing = "answer" if self.prompt else "prompt"
            raise ValueError(f"{missing} is empty: give both prompt and answer")
        if self.prompt and self.field != "messages":
            raise ValueError(f"field={self.field} is not used with prompt and answer; leave it out")
        if is_generated(self.source):
            generated(self.source, 2)
            if self.prompt or self.field != "messages":
                raise ValueError(f"source={self.source} has no fields; leave field, prompt and answer out")
        if is_stdlib(self.source):
            part = STDLIB[self.source.partition(":")[0]]
            if part or self.prompt or self.field != "messages":
                field = f"prompt={self.prompt}" if self.prompt else f"field={self.field}"
                given = f"source={self.source}" if part else field
                raise ValueError(
                    f"{given}: pairs of the standard library need source=stdlib or"
                    " stdlib:<package>,<package> and no field, prompt or answer"
                )
        return self

    @property
    def has_pairs(self) -> bool:
        """Whether a row is a prompt and its answer."""
        return bool(self.prompt) or is_stdlib(self.source) or is_generated(self.source)
