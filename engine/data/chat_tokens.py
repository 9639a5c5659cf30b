"""Conversations as tokens: rendered by a model's chat template, encoded by its tokenizer, with the positions
of the assistant's text.

The text of a special token inside a message stays text: only the template writes special tokens.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tokenizers import Tokenizer

from atelier.engine.config.base import Json
from atelier.engine.config.document import section_of
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.data.chat_template import ChatMessage, ChatTemplate, Rendered
from atelier.engine.data.vocabulary import CHAT_TEMPLATE, TOKENIZER, Vocabulary, tokenizer_of
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.io.storage import read_bytes

SETTINGS, NAMED = "tokenizer_config.json", "special_tokens_map.json"
OWN, CHATML, PLAIN = "auto", "chatml", "plain"
ASSISTANT = "assistant"
BUILT_IN = {
    CHATML: (
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
    PLAIN: (
        "{{ bos_token }}{% for message in messages %}{{ message['role'] + ':\\n' + message['content'] }}"
        "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n\\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:\\n' }}{% endif %}"
    ),
}
ENDS_OF_CHATML = ("<|im_start|>", "<|im_end|>")
WORDS = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
# noncharacters (Unicode, 23.7): MARK breaks the text of a special token in a message, EDGE marks the end of
# one
MARK, EDGE = "\ufdd0", "\ufdd1"
PROBE: tuple[ChatMessage, ...] = (
    {"role": "user", "content": "question"},
    {"role": ASSISTANT, "content": "answer"},
)


@dataclass(frozen=True)
class Passage:
    """A text with MARKs, and the ranges of its characters that are learned, in order."""

    text: str
    learned: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ChatRow:
    """Token ids of a text, and the ranges `[begin, end)` that are learned, in order."""

    ids: tuple[int, ...]
    learned: tuple[tuple[int, int], ...]


class ChatTokens:
    """The chat template and tokenizer of a model's artifact. `choice`: OWN, CHATML or PLAIN; `template`: text
    of the chosen one; `is_own`: whether it is the model's; `place`: configuration key of the chats. Raises
    ConfigError for an invalid template, and for CHATML without its tokens.
    """

    def __init__(
        self,
        model: ArtifactInput,
        scratch: Path,
        choice: str = OWN,
        now: datetime | None = None,
        place: str = "chats",
    ) -> None:
        data = model.file(TOKENIZER, scratch).read_bytes()
        self.vocabulary = Vocabulary.of(model, scratch)
        self._tokens = _Tokens(data, model.url, self.vocabulary)
        settings = model.json(SETTINGS, scratch) if SETTINGS in model.names() else {}
        named = model.json(NAMED, scratch) if NAMED in model.names() else {}
        own = _own_template(model, settings, scratch) if choice == OWN else ""
        self.is_own = bool(own)
        lacking = [name for name in ENDS_OF_CHATML if name not in self._tokens.special]
        if choice == CHATML and lacking:
            raise ConfigError(
                f"{place}.template",
                f"chatml, but the tokenizer has no special token {lacking[0]}",
                "template=plain",
            )
        built_in = PLAIN if choice == PLAIN or lacking else CHATML
        self.template = own or BUILT_IN[built_in]
        self.name = "own" if own else built_in
        self._chat = ChatTemplate(
            self.template, "chat_template", _words(named, settings, self.vocabulary), now, f"{place}.date"
        )

    def prompt(self, messages: Sequence[ChatMessage]) -> list[int]:
        """The ids of a conversation with the generation prompt. Raises DataError as `rows`."""
        return self._tokens.ids(self._rendered(messages, is_prompt=True).text)

    def ends(self) -> tuple[int, ...]:
        """Ids that end an answer: the ends of texts, and the template's token after an answer."""
        more: list[int] = []
        with suppress(DataError):  # a template may have no such conversation
            passage = self._passages(PROBE)[-1]
            begin, end = passage.learned[-1]
            last = self._tokens.ids(passage.text[begin:end])[-1:]
            more = [number for number in last if number in self._tokens.special.values()]
        return tuple(dict.fromkeys([*self.vocabulary.ends, *more]))

    def holds_special(self, messages: Sequence[ChatMessage]) -> bool:
        """Whether a message contains the text of a special token."""
        return any(self._tokens.pattern.search(message["content"]) for message in messages)

    def prepare(self, conversations: Sequence[Sequence[ChatMessage]]) -> None:
        """Render what `rows` will need for these conversations at once, which is faster."""
        asked: list[tuple[Sequence[ChatMessage], bool]] = []
        for messages in conversations:
            with suppress(DataError):  # `rows` raises it
                marked = self._marked(messages)
                for form in (marked, messages) if marked != list(messages) else (marked,):
                    asked += [(form[:n], True) for n, one in enumerate(form) if one["role"] == ASSISTANT]
                    asked += [
                        (form[: n + 1], False) for n, one in enumerate(form) if one["role"] == ASSISTANT
                    ]
                    asked.append((form, False))
        self._chat.prepare(asked)

    def rows(self, messages: Sequence[ChatMessage]) -> list[ChatRow]:
        """One row with all assistant messages. If the template renders earlier turns differently when later
        ones follow (thoughts left out), one row per answer, after the text that the model will see before it.
        Raises DataError if the template fails, or if answers cannot be found in its text or as separate
        tokens.
        """
        if any(EDGE in one["content"] for one in messages):
            raise DataError(f"a message holds U+{ord(EDGE):04X}, which is not a character")
        return [self._row(passage) for passage in self._passages(messages)]

    def _row(self, passage: Passage) -> ChatRow:
        cuts = [cut for span in passage.learned for cut in span]
        pieces = self._tokens.pieces(passage.text[: cuts[-1]], cuts)
        ends = [0]
        for piece in pieces:
            ends.append(ends[-1] + len(piece))
        spans = tuple((ends[n], ends[n + 1]) for n in range(1, len(pieces), 2))
        return ChatRow(tuple(number for piece in pieces for number in piece), spans)

    def _passages(self, messages: Sequence[ChatMessage]) -> list[Passage]:
        rendered = self._rendered(messages)
        whole, spans = rendered.text, rendered.spans
        if spans is not None:
            if not spans:
                raise DataError("the template's generation blocks contain nothing of this conversation")
            return [Passage(whole, spans)]
        found = list[Passage]()
        for number, message in enumerate(messages, start=1):
            if message["role"] == ASSISTANT:
                after = self._rendered(messages[:number]).text
                begin, end = self._begin(messages[:number], after), self._end(messages[:number], after)
                if end <= begin:
                    raise DataError(f"the template writes nothing for message {number}")
                found.append(Passage(after, ((begin, end),)))
        if all(whole.startswith(one.text[: one.learned[0][1]]) for one in found):
            return [Passage(whole, tuple(one.learned[0] for one in found))]
        return found

    def _begin(self, messages: Sequence[ChatMessage], after: str) -> int:
        """Where the model's text of the last message begins in `after`, the text of all: after the generation
        prompt.
        """
        number, is_first = len(messages), all(one["role"] != "user" for one in messages[:-1])
        if is_first:
            with suppress(DataError):
                return self._opening(messages, after)
        try:
            before = self._rendered(messages[:-1], is_prompt=True).text
            if is_first and before == self._rendered(messages[:-1]).text:
                raise DataError("no user message precedes it")
        except DataError as error:
            raise DataError(f"the template writes no prompt for message {number}: {error}") from None
        if not after.startswith(before):
            raise DataError(f"the template does not write message {number} after its generation prompt")
        return len(before)

    def _opening(self, messages: Sequence[ChatMessage], after: str) -> int:
        """As `_begin` if no user message precedes: as much text before the content as in PROBE, because many
        templates write another prompt, or none, without messages.
        """
        asked, prompt = (self._rendered(PROBE[:1], is_prompt=each).text for each in (False, True))
        answered, content = self._rendered(PROBE).text, messages[-1]["content"]
        place = self._place(PROBE, answered, is_end=False)
        blanks = content[: len(content) - len(content.lstrip())]
        written = after[: self._place(messages, after, is_end=False)]
        for kept in (blanks, ""):  # a template may trim
            if answered.startswith(prompt) and written.endswith(answered[len(asked) : place] + kept):
                return len(written) - len(kept) - (place - len(prompt))
        raise DataError("the template writes other text before a first message of the assistant")

    def _end(self, messages: Sequence[ChatMessage], after: str) -> int:
        """Where the last message ends in `after`: after the first special token that follows its content."""
        place = self._place(messages, after, is_end=True)
        behind = self._tokens.pattern.search(after, place)
        return behind.end() if behind else len(after)

    def _place(self, messages: Sequence[ChatMessage], after: str, *, is_end: bool) -> int:
        """Where the content of the last message begins or ends in `after`, without blanks: at an EDGE placed
        there.
        """
        content = messages[-1]["content"]
        at = len(content.rstrip()) if is_end else len(content) - len(content.lstrip())
        edged: ChatMessage = {**messages[-1], "content": content[:at] + EDGE + content[at:]}
        text = self._rendered([*messages[:-1], edged]).text
        if text.count(EDGE) != 1 or text.replace(EDGE, "") != after:
            raise DataError(
                f"the template changes message {len(messages)}, so the place where it"
                f" {'ends' if is_end else 'begins'} is unknown"
            )
        return text.index(EDGE)

    def _rendered(self, messages: Sequence[ChatMessage], *, is_prompt: bool = False) -> Rendered:
        """The text with MARKs. Raises DataError if the template changes the text of a special token inside a
        message.
        """
        marked = self._marked(messages)
        found = self._chat.render(marked, is_prompt=is_prompt)
        if marked != list(messages):
            plain = self._chat.render(messages, is_prompt=is_prompt).text
            if found.text.replace(MARK, "") != plain:
                raise DataError("the template splits the text of a special token in a message")
        return found

    def _marked(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        return [{**message, "content": self._tokens.marked(message["content"])} for message in messages]


class _Tokens:
    """A tokenizer that reads special tokens in text, except where a MARK breaks them."""

    def __init__(self, data: bytes, place: str, vocabulary: Vocabulary) -> None:
        self._reading, self._literal, self._vocabulary = _plain(data, place), _plain(data, place), vocabulary
        self._literal.encode_special_tokens = True
        added = self._reading.get_added_tokens_decoder()
        self.special = {token.content: number for number, token in added.items() if token.special}
        self._trims = {t.content: (t.lstrip, t.rstrip) for t in added.values()}
        longest = sorted(self.special, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest)) or "(?!)")

    def marked(self, text: str) -> str:
        """The text with a MARK inside each special token. Raises DataError if it contains a MARK, or a
        special token too short for one.
        """
        if MARK in text:
            raise DataError(f"a message holds U+{ord(MARK):04X}, which is not a character")
        if any(len(found[0]) == 1 for found in self.pattern.finditer(text)):
            raise DataError("a message holds a special token of one character, which cannot be marked")
        return self.pattern.sub(lambda found: f"{found[0][:1]}{MARK}{found[0][1:]}", text)

    def ids(self, text: str) -> list[int]:
        """The ids of a text. Raises DataError if the tokenizer cannot encode parts of it separately."""
        [found] = self._all([text])
        return found

    def _all(self, texts: Sequence[str]) -> list[list[int]]:
        plain = [text for text in texts if MARK not in text]
        read = iter(self._reading.encode_batch_fast(plain, add_special_tokens=False))
        return [self._around_marks(text) if MARK in text else next(read).ids for text in texts]

    def _around_marks(self, text: str) -> list[int]:
        found: list[int] = []
        place, strips = 0, False
        for match in self.pattern.finditer(text):
            left, right = self._trims[match[0]]
            found += self._apart(text[place : match.start()], left=strips, right=left)
            found.append(self.special[match[0]])
            place, strips = match.end(), right
        return found + self._apart(text[place:], left=strips, right=False)

    def pieces(self, text: str, cuts: Sequence[int]) -> list[list[int]]:
        """The ids of the parts of `text` between `cuts` (the last cut is its end): from the whole text if no
        token spans a cut, otherwise each part alone, as a model continues a prompt. Raises DataError as
        `ids`.
        """
        parts = [text[begin:end] for begin, end in zip([0, *cuts[:-1]], cuts, strict=True)]
        whole, *each = self._all([text, *parts])
        if [number for ids in each for number in ids] == whole:
            return each
        heads = self._all([text[:cut] for cut in cuts])
        if all(whole[: len(head)] == head for head in heads):
            sizes = [len(head) for head in heads]
            return [whole[begin:end] for begin, end in zip([0, *sizes[:-1]], sizes, strict=True)]
        for ids, part in zip(each, parts, strict=True):
            if MARK not in part:
                self._check(ids, self.pattern.sub("", part))
        return each

    def _apart(self, text: str, *, left: bool, right: bool) -> list[int]:
        text = text.lstrip() if left else text
        text = (text.rstrip() if right else text).replace(MARK, "")
        ids = self._literal.encode(text, add_special_tokens=False).ids
        self._check(ids, text)
        return ids

    def _check(self, ids: Sequence[int], text: str) -> None:
        if self._vocabulary.bytes_of(ids) != text.encode():
            raise DataError("the tokenizer encodes a part of this text differently than within the whole")


def _plain(data: bytes, place: str) -> Tokenizer:
    tokenizer = tokenizer_of(data, place)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _own_template(model: ArtifactInput, settings: Mapping[str, Json], scratch: Path) -> str:
    """The chat template among a model's files; '' = none. Among several, the one named default."""
    if CHAT_TEMPLATE in model.names():
        try:
            return read_bytes(str(model.file(CHAT_TEMPLATE, scratch))).decode()
        except UnicodeDecodeError as error:
            raise ConfigError("chat_template", f"byte {error.start} is not UTF-8") from None
    given = settings.get("chat_template")
    if isinstance(given, list):
        given = next(
            (each.get("template") for each in map(section_of, given) if each.get("name") == "default"), None
        )
    return given if isinstance(given, str) else ""


def _words(named: Mapping[str, Json], settings: Mapping[str, Json], vocabulary: Vocabulary) -> dict[str, str]:
    """The special tokens that a template may use, found as in transformers; by default those that an export
    would write.
    """
    found: dict[str, str] = {}
    for key in WORDS:
        value = settings.get(key, named.get(key))
        value = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(value, str):
            found[key] = value
    if found:
        return found
    begin = {"bos_token": vocabulary.token(vocabulary.before[0])} if vocabulary.before else {}
    return {
        **begin,
        "eos_token": vocabulary.token(vocabulary.end_id),
        "pad_token": vocabulary.token(vocabulary.pad_id),
    }
