"""A tokenizer as the engine uses it: the ids around texts, and the bytes of text of each id; the files that
an artifact has of it.

Shape letters: N tokens, V vocabulary.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, pre_tokenizers

from atelier.engine.config.base import parse
from atelier.engine.config.data import END, PAD, TextEnds
from atelier.engine.config.error import ConfigError
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput

TOKENIZER, TEXT_ENDS = "tokenizer.json", "text_ends.json"
# files of others beside their tokenizer, which say what only they read
CHAT_TEMPLATE = "chat_template.jinja"
CARRIED = ("tokenizer_config.json", "special_tokens_map.json", CHAT_TEMPLATE)
STARTS = (PAD, "<pad>")
ENDS = (END, "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")


class Vocabulary:
    """A loaded tokenizers file. Text that looks like a special token is encoded as text: only the engine
    itself adds end tokens.
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
        # what a decoder behind an encoder reads first: as T5's, its padding
        self.start_id: int = next((id for name in STARTS if (id := self.find(name)) is not None), self.end_id)
        ids = tokenizer.get_vocab(with_added_tokens=True)
        # ids may have gaps: the model's embedding must cover the highest
        self.size = max(ids.values()) + 1
        self._bytes = _token_bytes(tokenizer, ids)

    @staticmethod
    def parse(data: bytes, place: str, texts: TextEnds | None = None) -> "Vocabulary":
        """Parse tokenizer.json. Without `texts` they end with the first of ENDS that it has. Raises
        ConfigError when it is no tokenizer, or has no such token.
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
        """That of a tokenizer's or a model's artifact."""
        path, texts = source.file(TOKENIZER, scratch), None
        if TEXT_ENDS in source.names():
            texts = parse(TextEnds, source.json(TEXT_ENDS, scratch), f"{source.url}: {TEXT_ENDS}")
        return Vocabulary.parse(path.read_bytes(), str(path), texts)

    def special(self, name: str) -> int:
        """The id of a special token, such as <|mask|>. Raises ConfigError when the vocabulary lacks it."""
        found = self.find(name)
        if found is None:
            raise ConfigError(
                "tokenizer.specials", f"the vocabulary has no {name}", f"add {name} to tokenizer.specials"
            )
        return found

    def find(self, name: str) -> int | None:
        """The id of a token; None when the vocabulary lacks it."""
        return self._tokenizer.token_to_id(name)

    def token(self, number: int) -> str:
        """The token of an id, as the tokenizer's file spells it."""
        return str(self._tokenizer.id_to_token(number))

    def names(self) -> list[bytes]:
        """What each id stands for, whatever the tokenizer's way to spell: the bytes of its text behind a zero
        byte, or the name of a special token; b"" where there is none.
        """
        return [
            b"\0" + text if text else (self._tokenizer.id_to_token(number) or "").encode()
            for number, text in enumerate(self._bytes)
        ]

    def encode(self, text: str) -> list[int]:
        """The ids of one text, nothing added."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def begun(self, text: str, number: int) -> tuple[list[int], str] | None:
        """The first `number` ids of a text, and the text that they stand for; None where it has no more."""
        found = self._tokenizer.encode(text, add_special_tokens=False)
        if len(found.ids) <= number:
            return None
        return found.ids[:number], text[: found.offsets[number - 1][1]]

    def ended(self, text: str, number: int) -> tuple[str, int]:
        """What the last `number` ids of a text stand for, and how many there are before them."""
        found = self._tokenizer.encode(text, add_special_tokens=False)
        more = max(0, len(found.ids) - number)
        return (text[found.offsets[more][0] :] if more else text), more

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, on all threads that RAYON_NUM_THREADS allows."""
        return [e.ids for e in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def bytes_of(self, ids: Sequence[int] | np.ndarray) -> bytes:
        """The UTF-8 bytes of `ids`; special tokens have none. Exact for byte-level vocabularies."""
        return b"".join(self._bytes[i] for i in ids)

    def byte_lengths(self) -> np.ndarray:
        """bytes_V int64: the number of bytes of text of each id."""
        return np.array([len(b) for b in self._bytes], dtype=np.int64)


def tokenizer_of(data: bytes, place: str) -> Tokenizer:
    """Raises ConfigError for what is no tokenizer.json."""
    try:
        return Tokenizer.from_buffer(data)
    except Exception as error:  # tokenizers raises bare Exception
        raise ConfigError(
            place, f"not a tokenizer.json ({error})", "give the file that the tokenizers library writes"
        ) from None


def named_end(tokenizer: Tokenizer) -> int | None:
    """The id of the first of ENDS that the tokenizer has."""
    return next((end for name in ENDS if (end := tokenizer.token_to_id(name)) is not None), None)


def copy_tokenizer(source: ArtifactInput, output: ArtifactOutput, scratch: Path) -> None:
    """Copy the tokenizer of an artifact, and how its texts begin and end."""
    _copy(source, output, scratch, (TOKENIZER, TEXT_ENDS))


def copy_carried(source: ArtifactInput, output: ArtifactOutput, scratch: Path, without: str = "") -> None:
    """Copy what a model has beside its tokenizer for others, but the file `without`."""
    _copy(source, output, scratch, tuple(name for name in CARRIED if name != without))


def _copy(source: ArtifactInput, output: ArtifactOutput, scratch: Path, names: tuple[str, ...]) -> None:
    for name in source.names():
        if name in names:
            output.add(name, source.file(name, scratch))


def _token_bytes(tokenizer: Tokenizer, ids: dict[str, int]) -> list[bytes]:
    """The bytes of each id, for byte-level vocabularies, and for those that write a space as U+2581 and odd
    bytes as <0xAB>.
    """
    special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    pre = json.loads(tokenizer.to_str()).get("pre_tokenizer") or {}
    is_byte_level = "ByteLevel" in json.dumps(pre)
    alphabet = _byte_alphabet() if is_byte_level else {}
    result = [b""] * (max(ids.values()) + 1)
    for token, i in ids.items():
        if i not in special:
            result[i] = _byte_level(token, alphabet) if is_byte_level else _piece(token)
    return result


def _byte_level(token: str, alphabet: dict[str, int]) -> bytes:
    return bytes(alphabet[c] for c in token) if all(c in alphabet for c in token) else token.encode()


def _piece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """The printable character by which byte-level BPE writes each byte -> the byte: printable Latin-1 is
    itself, the rest follow from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    table = {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}
    if set(table) != set(pre_tokenizers.ByteLevel.alphabet()):
        raise RuntimeError("the tokenizers library spells bytes in another way than this file knows")
    return table
