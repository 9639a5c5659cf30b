"""Chat templates: Jinja text that turns messages into a model's input, rendered as in transformers.

Templates come with models and are not trusted: chat_sandbox renders them in a separate process, one for all
conversations. A rendering has CPU_S seconds of processor time, the process MEMORY bytes.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import NotRequired, TypedDict, cast

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.io.limited_process import LimitedProcess, LimitError, Limits

CPU_S = 5.0
MEMORY = 2 << 30
MOST_SOURCE = 1 << 20  # characters per template
MOST_ENDS = 3  # times that the process may be ended before the template is refused


class ChatMessage(TypedDict):
    """One message of a conversation; `role`: system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True)
class Rendered:
    """`spans`: characters inside {% generation %} blocks; None if the template has none."""

    text: str
    spans: tuple[tuple[int, int], ...] | None


class _Answer(TypedDict):
    text: NotRequired[str]
    spans: NotRequired[list[tuple[int, int]]]
    error: NotRequired[str]


RenderRequest = tuple[Sequence[ChatMessage], bool]  # messages; whether to add the generation prompt
Key = tuple[tuple[tuple[str, str], ...], bool]


def _key(messages: Sequence[ChatMessage], is_prompt: bool) -> Key:
    return tuple((one["role"], one["content"]) for one in messages), is_prompt


class ChatTemplate:
    """`variables`: names for the template, such as bos_token; `now`: the time for the template, None =
    refused; `date`: the configuration key that sets it. Raises ConfigError if the template is not valid.
    """

    def __init__(
        self,
        source: str,
        place: str,
        variables: Mapping[str, str],
        now: datetime | None = None,
        date: str = "chats.date",
    ) -> None:
        if len(source) > MOST_SOURCE:
            raise ConfigError(place, f"has {len(source)} characters, more than {MOST_SOURCE}")
        self._place, self._num_ends = place, 0
        self._opening: Json = {
            "source": source,
            "place": place,
            "variables": dict(variables),
            "now": now.isoformat() if now else "",
            "date": date,
        }
        self._process = LimitedProcess("atelier.engine.data.chat_sandbox", Limits(MEMORY, CPU_S))
        self._ready: dict[Key, _Answer] = {}
        self._open()

    def prepare(self, asked: Sequence[RenderRequest]) -> None:
        """Render all requests that `render` will get next, at once, which is faster."""
        self._ready.clear()
        some = {_key(*each): each for each in asked}
        with suppress(DataError):  # `render` reports the one that fails
            self._ready = dict(zip(some, self._answers(list(some.values()), most_ends=0), strict=True))

    def render(self, messages: Sequence[ChatMessage], *, is_prompt: bool = False) -> Rendered:
        """The text of `messages`, with `is_prompt` also the generation prompt. Raises DataError if the
        template fails, refuses them or exceeds its limits, and ConfigError after MOST_ENDS ends of the
        process.
        """
        found = self._ready.get(_key(messages, is_prompt))
        if found is None:
            [found] = self._answers([(messages, is_prompt)], most_ends=MOST_ENDS)
        if "error" in found:
            raise DataError(found["error"])
        spans = found.get("spans")
        return Rendered(found.get("text", ""), None if spans is None else tuple((a, b) for a, b in spans))

    def _open(self) -> None:
        try:
            self._process.ask(self._opening)
        except LimitError as error:
            raise ConfigError(self._place, f"is not a chat template ({error})", "fix or remove it") from None

    def _answers(self, asked: Sequence[RenderRequest], most_ends: int) -> list[_Answer]:
        if not self._process.is_running:
            self._open()
        try:
            return cast(list[_Answer], self._process.ask(cast(Json, asked)))
        except LimitError as error:
            self._num_ends += most_ends > 0
            if most_ends and self._num_ends >= most_ends:
                raise ConfigError(
                    self._place, f"{error}, {most_ends} times", "fix it, or use template=plain"
                ) from None
            raise DataError(f"{self._place}: {error}") from None
        except DataError as error:  # out of memory
            raise DataError(f"{self._place}: {error}") from None
