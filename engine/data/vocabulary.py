"""A tokenizer as the engine uses it: ids at the ends of texts, text bytes of each id, and its files in an
artifact.

Shape letters: N tokens, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from atelier.engine.config.base import parse
from atelier.engine.config.data import END, PAD, STARTS, TEXT_ENDS, TextEnds
from atelier.engine.config.error import ConfigError, DataError, printable
from atelier.engine.data.decoding import TokenDecoder
from atelier.engine.data.text_ends import ENDS, named_end
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput
from atelier.engine.io.limited_process import fault

TOKENIZER = "tokenizer.json"
# other programs' files beside a tokenizer, kept for them
CHAT_TEMPLATE = "chat_template.jinja"
CARRIED = ("tokenizer_config.json", "special_tokens_map.json", CHAT_TEMPLATE)


class Vocabulary:
    """A loaded tokenizers file. Text that looks like a special token is encoded as text: only the engine adds
    end tokens.
    """

    def __init__(self, tokenizer: Tokenizer, texts: TextEnds) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.ends = texts.ends
        self.before = () if texts.begin is None else (texts.begin,)
        self.end_id = texts.ends[0]
        pad = tokenizer.token_to_id(PAD)
        self.pad_id: int = self.end_id if pad is None else pad
        # first token of a decoder after an encoder: padding, as in T5
        named = next((found for name in STARTS if (found := self.find(name)) is not None), self.end_id)
        self.start_id: int = named if texts.start is None else texts.start
        ids = tokenizer.get_vocab(with_added_tokens=True)
        # ids may have gaps; the model's embedding must cover the highest one
        self.size = max(ids.values()) + 1
        self._decoder = TokenDecoder(tokenizer, self.size)

    @staticmethod
    def parse(data: bytes, place: str, texts: TextEnds | None = None) -> "Vocabulary":
        """Parse tokenizer.json. Without `texts`, the end-of-text token is the first of ENDS in the
        vocabulary. Raises ConfigError if the file is not a tokenizer, or has no such token.
        """
        tokenizer = tokenizer_of(data, place)
        if texts is not None:
            return Vocabulary(tokenizer, texts)
        end = named_end(tokenizer)
        if end is None:
            raise ConfigError(
                place, f"has no end token among {', '.join(ENDS)}", f"add {END} as a special token"
            )
        return Vocabulary(tokenizer, TextEnds(ends=(end,)))

    @staticmethod
    def read(path: Path) -> "Vocabulary":
        return Vocabulary.parse(path.read_bytes(), str(path))

    @staticmethod
    def of(source: ArtifactInput, scratch: Path) -> "Vocabulary":
        """The vocabulary of a tokenizer's or model's artifact."""
        path, texts = source.file(TOKENIZER, scratch), None
        if TEXT_ENDS in source.names():
            texts = parse(TextEnds, source.json(TEXT_ENDS, scratch), f"{source.url}: {TEXT_ENDS}")
        return Vocabulary.parse(path.read_bytes(), str(path), texts)

    def special(self, name: str) -> int:
        """The id of a special token, such as <|mask|>. Raises ConfigError if the vocabulary lacks it."""
        found = self.find(name)
        if found is None:
            raise ConfigError(
                "tokenizer.specials", f"the vocabulary has no {name}", f"add {name} to tokenizer.specials"
            )
        return found

    def find(self, name: str) -> int | None:
        """The id of a token; None if the vocabulary lacks it."""
        return self._tokenizer.token_to_id(name)

    def token(self, number: int) -> str:
        """The token of an id, as spelled in the tokenizer's file."""
        return str(self._tokenizer.id_to_token(number))

    def names(self) -> list[bytes]:
        """A name of each id, independent of the tokenizer's spelling: its text bytes after a zero byte, or
        the name of a special token; b"" if there is none.
        """
        return [
            b"\0" + text if text else (self._tokenizer.id_to_token(number) or "").encode()
            for number, text in enumerate(self.spellings())
        ]

    def encode(self, text: str) -> list[int]:
        """The ids of one text, with nothing added. Raises DataError if the tokenizer fails."""
        with _library("a text"):
            return self._tokenizer.encode(text, add_special_tokens=False).ids

    def located(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of one text, and the characters begin .. end - 1 of each. Raises DataError if the tokenizer
        fails.
        """
        with _library("a text"):
            found = self._tokenizer.encode(text, add_special_tokens=False)
        return found.ids, found.offsets

    def begun(self, text: str, number: int) -> tuple[list[int], str] | None:
        """The first `number` ids of a text, and their text; None if it has no more ids."""
        with _library("a text"):
            found = self._tokenizer.encode(text, add_special_tokens=False)
        if len(found.ids) <= number:
            return None
        return found.ids[:number], text[: found.offsets[number - 1][1]]

    def ended(self, text: str, number: int) -> tuple[str, int]:
        """The end of a text that its last `number` ids encode, and the number of ids before them."""
        found = self._tokenizer.encode(text, add_special_tokens=False)
        more = max(0, len(found.ids) - number)
        return (text[found.offsets[more][0] :] if more else text), more

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, on as many threads as RAYON_NUM_THREADS allows. Raises DataError if the
        tokenizer fails for one.
        """
        with _library("one of the texts"):
            return [e.ids for e in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids` without special tokens."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def bytes_of(self, ids: Sequence[int] | np.ndarray) -> bytes:
        """The UTF-8 bytes of a text's `ids`, none for special tokens. They equal the encoded text unless the
        tokenizer changes it (`is_exact`).
        """
        return self._decoder.bytes_of([int(number) for number in ids])

    def is_exact(self, text: str, ids: Sequence[int]) -> bool:
        """Whether a text's ids encode all of it."""
        return self.bytes_of(ids) == text.encode()

    def behind(self, before: Sequence[int], ids: Sequence[int], *, has_end: bool = True) -> str:
        """The text of `ids` after the ids `before`; without the partial character at its end if not
        `has_end`.
        """
        return self._decoder.behind(before, ids, has_end=has_end)

    def stream(self, before: Sequence[int], ids: Iterable[int]) -> Iterator[str]:
        """`behind` in pieces of whole characters, as the ids arrive."""
        return self._decoder.stream(before, ids)

    def spellings(self) -> list[bytes]:
        """The text bytes of each id within a text; none for special tokens."""
        return self._decoder.spellings_V


@contextmanager
def _library(what: str) -> Iterator[None]:
    """Convert the library's errors to DataErrors, panics of its Rust code included, which are not
    Exceptions.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise DataError(f"the tokenizer cannot encode {what} ({fault(error)})") from None


def tokenizer_of(data: bytes, place: str) -> Tokenizer:
    """Parse a tokenizer.json. Raises ConfigError if it is not one."""
    try:
        return Tokenizer.from_buffer(data)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # tokenizers raises bare Exception and Rust panics
        said = printable(" ".join(str(error).split()))
        raise ConfigError(
            place, f"not a tokenizer.json ({said})", "give a file written by the tokenizers library"
        ) from None


def copy_tokenizer(source: ArtifactInput, output: ArtifactOutput, scratch: Path) -> None:
    """Copy the tokenizer of an artifact, and how its texts begin and end."""
    _copy(source, output, scratch, (TOKENIZER, TEXT_ENDS))


def copy_carried(source: ArtifactInput, output: ArtifactOutput, scratch: Path, without: str = "") -> None:
    """Copy other programs' files beside a model's tokenizer, except `without`."""
    _copy(source, output, scratch, tuple(name for name in CARRIED if name != without))


def _copy(source: ArtifactInput, output: ArtifactOutput, scratch: Path, names: tuple[str, ...]) -> None:
    for name in source.names():
        if name in names:
            output.add(name, source.file(name, scratch))
