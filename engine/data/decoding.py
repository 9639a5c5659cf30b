"""Decode ids to text: from a table if each token's text is independent of other tokens, otherwise with the
tokenizer's own decoder.

Shape letters: V vocabulary.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers

BYTES, PIECES, OWN = "bytes", "pieces", "own"  # ways to decode
FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
STABLE = ("WordPiece", "BPEDecoder")  # OWN decoders that never change earlier text
WINDOW = 256  # tokens that an OWN decoder reads again per new token, at most twice as many


class TokenDecoder:
    """The decoder of a tokenizer. `spellings_V`: the text bytes of each id within a text; none for special
    tokens.
    """

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self._tokenizer, self._size = tokenizer, size
        document = json.loads(tokenizer.to_str())
        self.way, self._rules = _way(document), _rules(document.get("decoder"))
        added = tokenizer.get_added_tokens_decoder()
        known = tokenizer.get_vocab(with_added_tokens=False)
        spelled = self._speller(document)
        self.spellings_V = [b""] * size
        for token, number in tokenizer.get_vocab(with_added_tokens=True).items():
            if number not in added:
                self.spellings_V[number] = spelled(token)
            elif not added[number].special:  # as the normalizer writes it, unless bytes are tokens
                text = spelled(tokenizer.id_to_token(number) or token)
                is_own = self.way == BYTES and (token not in known or not _is_text(text))
                self.spellings_V[number] = token.encode() if is_own else text

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        """The UTF-8 bytes of a text's ids; in a byte vocabulary also those of partial characters."""
        if self.way == OWN:
            return self._own(ids).encode()
        found = b"".join(self.spellings_V[number] for number in ids)
        return found.replace("▁".encode(), b" ") if self.way == PIECES else found  # also from byte tokens

    def behind(self, before: Sequence[int], ids: Sequence[int], *, has_end: bool) -> str:
        """The text of `ids` after `before`; without the partial character at its end if not `has_end`."""
        if self.way != OWN:
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            return decoder.decode(self.bytes_of(ids), final=has_end)
        text = _more(self._own(before), self._own([*before, *ids]))
        return text if has_end else text.rstrip("\ufffd")

    def stream(self, before: Sequence[int], ids: Iterable[int]) -> Iterator[str]:
        """`behind` in pieces as ids arrive; at once if the decoder may change earlier text."""
        if self.way != OWN:
            texts = whole_characters(self.spellings_V[number] for number in ids)
            yield from (text.replace("▁", " ") for text in texts) if self.way == PIECES else texts
        elif [rule.get("type") for rule in self._rules] in [[name] for name in STABLE] or not self._rules:
            yield from self._as_they_come(list(before), ids)
        elif text := self.behind(before, list(ids), has_end=True):
            yield text

    def _as_they_come(self, seen: list[int], ids: Iterable[int]) -> Iterator[str]:
        seen = seen[-WINDOW:]
        text = self._own(seen)
        for number in ids:
            seen.append(number)
            longer = self._own(seen)
            if piece := _more(text, longer):
                yield piece
            text = longer
            if len(seen) > 2 * WINDOW:
                seen = seen[-WINDOW:]
                text = self._own(seen)

    def _own(self, ids: Sequence[int]) -> str:
        known = [number for number in ids if number < self._size]  # without ids of soft prompts
        return self._tokenizer.decode(known, skip_special_tokens=True)

    def _speller(self, document: Mapping[str, Any]) -> Callable[[str], bytes]:
        if self.way == BYTES:
            alphabet = _byte_alphabet()
            return lambda token: _byte_level(token, alphabet)
        if self.way == PIECES:
            kinds = [rule.get("type") for rule in self._rules]
            has_bytes = not kinds or "ByteFallback" in kinds or document["model"].get("byte_fallback")
            return lambda token: _piece(token, bool(has_bytes))
        [rule] = self._rules if len(self._rules) == 1 else [{}]
        if rule.get("type") == "WordPiece":
            prefix = str(rule["prefix"])
            return lambda t: (t.removeprefix(prefix) if t.startswith(prefix) else f" {t}").encode()
        if rule.get("type") == "BPEDecoder":
            end = str(rule["suffix"])
            return lambda t: (f"{t.removesuffix(end)} " if end and t.endswith(end) else t).encode()
        decoder = self._tokenizer.decoder
        return lambda t: (f" {t}" if decoder is None else decoder.decode([t])).encode()


def _more(text: str, longer: str) -> str:
    """The rest of `longer` after the beginning that both share."""
    if longer.startswith(text):
        return longer[len(text) :]
    pairs = enumerate(zip(text, longer, strict=False))
    return longer[next((at for at, (one, other) in pairs if one != other), len(longer)) :]


def _way(document: Mapping[str, Any]) -> str:
    rules = _rules(document.get("decoder"))
    if not rules:  # the library joins tokens with spaces, even if no pre-tokenizer split there
        around = json.dumps([document.get("normalizer"), document.get("pre_tokenizer")], ensure_ascii=False)
        is_joined = "▁" in around or document.get("pre_tokenizer") is None
        return BYTES if '"ByteLevel"' in around else PIECES if is_joined else OWN
    kinds = [str(rule.get("type")) for rule in rules]
    if kinds[0] == "ByteLevel" and set(kinds[1:]) <= {"Fuse"}:
        return BYTES
    if "Strip" in kinds[:-1] or (kinds[-1] == "Strip" and "Fuse" not in kinds):
        return OWN  # depends on each token alone
    if "Fuse" in kinds and "Metaspace" in kinds[kinds.index("Fuse") :]:
        return OWN  # the text is one token by then and loses all spaces
    has_spaces = {"Metaspace", "Replace"} & set(kinds)
    return PIECES if has_spaces and all(map(_is_of_pieces, rules)) else OWN


def _is_of_pieces(rule: Mapping[str, Any]) -> bool:
    """Whether a decoder only writes U+2581 as a space and leaves out the first one."""
    kind = rule.get("type")
    if kind == "Strip":
        return rule.get("content") == " " and rule.get("start") in (0, 1) and rule.get("stop") == 0
    if kind == "Replace":
        return rule.get("pattern") == {"String": "▁"} and rule.get("content") == " "
    return kind in ("Fuse", "ByteFallback") or (kind == "Metaspace" and rule.get("replacement") == "▁")


def _rules(decoder: Any) -> list[dict[str, Any]]:
    """The decoders of a sequence, in order, nested ones included."""
    if not decoder:
        return []
    if decoder.get("type") != "Sequence":
        return [decoder]
    return [rule for each in decoder["decoders"] for rule in _rules(each)]


def _byte_level(token: str, alphabet: Mapping[str, int]) -> bytes:
    return bytes(alphabet[c] for c in token) if all(c in alphabet for c in token) else token.encode()


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _piece(token: str, has_bytes: bool) -> bytes:
    if has_bytes and (found := FALLBACK.fullmatch(token)):
        return bytes([int(found[1], 16)])
    return token.replace("▁", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE's printable character for each byte -> the byte: printable Latin-1 maps to itself,
    others follow from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    table = {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}
    if set(table) != set(pre_tokenizers.ByteLevel.alphabet()):
        raise RuntimeError("the tokenizers library spells bytes in an unknown way")
    return table


def whole_characters(pieces: Iterable[bytes]) -> Iterator[str]:
    """Decode a byte stream, emitting characters once complete; invalid UTF-8 becomes U+FFFD.

    Joined, the pieces equal the text of all bytes decoded at once.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in pieces:
        if text := decoder.decode(piece):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text
