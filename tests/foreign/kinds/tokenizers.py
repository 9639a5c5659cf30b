"""A tokenizer.json with any models, normalizers, pre-tokenizers, decoders and added words: decoded text
equals that of the library's decoder, in pieces and whole; or the file is refused in one line.
"""

import json
import random
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

from tokenizers import Tokenizer

from atelier.engine.config.error import AtelierError
from atelier.engine.data import decoding
from atelier.engine.data.tokenizer_check import checked
from atelier.engine.data.vocabulary import Vocabulary
from tests.foreign.search import Case

COUNT = 25
ALPHABET = sorted(decoding._byte_alphabet())
LETTERS = [
    *"abcdefghinorst",
    *"ABÀïéß",
    "é",
    "中",
    "文",
    "đ",
    "🐟",
    *"0123.,!?'-()<>",
    "▁",
    "Ġ",
    "\n",
    "\t",
    " ",
]
WORDS = [
    "the",
    "sea",
    "naïve",
    "Größe",
    "đem",
    "don't",
    "x1",
    "12",
    "中文",
    "🐟",
    "ab.",
    "▁",
    "##a",
    "</w>",
    "<0x41>",
    "Ġb",
    "é",
]
BLANKS = [" ", " ", " ", "", "  ", "\n", "\t"]


def draw(rng: random.Random) -> Case:
    return {
        "tokenizer": {
            "version": "1.0",
            "added_tokens": [],
            "normalizer": _maybe(rng, NORMALIZERS, 0.5),
            "pre_tokenizer": _maybe(rng, PRE_TOKENIZERS, 0.8),
            "post_processor": rng.choice([None, None, TEMPLATE]),
            "decoder": _maybe(rng, DECODERS, 0.85),
            "model": rng.choice([_bpe, _bpe, _wordpiece, _unigram, _word_level])(rng),
        }
        | _added(rng),
        "texts": [_text(rng) for _ in range(4)],
    }


def _text(rng: random.Random) -> str:
    pieces = rng.choices([*WORDS, *LETTERS], k=rng.randrange(1, 9))
    return "".join(rng.choice(BLANKS) + piece for piece in pieces)


def _maybe(rng: random.Random, choices: list[dict[str, Any]], share: float) -> Any:
    """One of the parts, or a sequence of two or three, or none."""
    if rng.random() > share:
        return None
    if rng.random() < 0.7:
        return rng.choice(choices)
    names = {id(NORMALIZERS): "normalizers", id(PRE_TOKENIZERS): "pretokenizers", id(DECODERS): "decoders"}
    return {"type": "Sequence", names[id(choices)]: rng.choices(choices, k=rng.randrange(1, 5))}


REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
BYTES = [
    {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}
    for prefix in (False, True)
    for regex in (False, True)
]
METASPACE = [
    {"type": "Metaspace", "replacement": mark, "prepend_scheme": scheme, "split": split}
    for mark in ("▁", "_")
    for scheme in ("always", "never", "first")
    for split in (True, False)
]
NORMALIZERS: list[dict[str, Any]] = [
    *({"type": kind} for kind in ("NFC", "NFD", "NFKC", "Lowercase", "StripAccents", "ByteLevel", "Nmt")),
    {"type": "Strip", "strip_left": True, "strip_right": False},
    {"type": "Prepend", "prepend": "▁"},
    REPLACE,
    {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "},
    {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
     "lowercase": True},
]  # fmt: skip
PRE_TOKENIZERS: list[dict[str, Any]] = [
    *BYTES,
    *METASPACE,
    *({"type": kind} for kind in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts")),
    {"type": "Digits", "individual_digits": True},
    {"type": "Punctuation", "behavior": "Isolated"},
    {"type": "Split", "pattern": {"Regex": " ?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+|\\s+"},
     "behavior": "Isolated", "invert": False},
]  # fmt: skip
SPACES = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
DECODERS: list[dict[str, Any]] = [
    *BYTES[:2],
    *BYTES[:2],
    *METASPACE[:6:2],
    {"type": "WordPiece", "prefix": "##", "cleanup": True},
    {"type": "WordPiece", "prefix": "##", "cleanup": False},
    {"type": "BPEDecoder", "suffix": "</w>"},
    {"type": "CTC", "pad_token": "a", "word_delimiter_token": "|", "cleanup": True},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    SPACES,
]
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "</s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"</s>": {"id": "</s>", "ids": [0], "tokens": ["</s>"]}},
}


def _ids(rng: random.Random, tokens: list[str]) -> dict[str, int]:
    """In order, now and then with gaps."""
    found: dict[str, int] = {}
    for token in dict.fromkeys(["</s>", "?", *tokens]):
        found[token] = len(found) if not found else max(found.values()) + (9 if rng.random() < 0.01 else 1)
    return found


def _bpe(rng: random.Random) -> dict[str, Any]:
    end = rng.choice(["", "", "</w>"])
    has_bytes = rng.random() < 0.3
    letters = ALPHABET if rng.random() < 0.6 else LETTERS
    letters = [*letters, *(f"<0x{n:02X}>" for n in range(256 if has_bytes else 0))]
    letters += [f"{letter}{end}" for letter in letters if len(letter) == 1] if end else []
    tokens, merges = list(letters), list[list[str]]()
    for _ in range(rng.randrange(30)):
        one, other = (rng.choice([each for each in tokens if not each.startswith("<0x")]) for _ in range(2))
        if not (end and one.endswith(end)) and [one, other] not in merges:
            tokens.append(one + other)
            merges.append([one, other])
    return {
        "type": "BPE",
        "unk_token": rng.choice([None, "?"]),
        "end_of_word_suffix": end or None,
        "byte_fallback": has_bytes,
        "vocab": _ids(rng, tokens),
        "merges": merges,
    }


def _wordpiece(rng: random.Random) -> dict[str, Any]:
    parts = [*LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS]
    return {
        "type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": rng.choice([4, 100]), "vocab": _ids(rng, parts),
    }  # fmt: skip


def _unigram(rng: random.Random) -> dict[str, Any]:
    pieces = [
        "</s>",
        "?",
        *LETTERS,
        *WORDS,
        *(f"▁{word}" for word in WORDS),
        *(f"<0x{n:02X}>" for n in range(256)),
    ]
    return {
        "type": "Unigram", "unk_id": 1, "byte_fallback": rng.random() < 0.5,
        "vocab": [[piece, -1.0 - rng.random()] for piece in dict.fromkeys(pieces)],
    }  # fmt: skip


def _word_level(rng: random.Random) -> dict[str, Any]:
    return {"type": "WordLevel", "unk_token": "?", "vocab": _ids(rng, [*WORDS, *LETTERS, "▁the", "Ġthe"])}


def _added(rng: random.Random) -> dict[str, Any]:
    words = ["</s>", *rng.sample(WORDS, k=rng.choice([0, 0, 1, 3]))]
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    return {
        "added_tokens": [
            {
                "id": 0 if word == "</s>" else 5000 + number,
                "content": word,
                **{flag: rng.random() < 0.2 for flag in flags},
                "special": word == "</s>" or rng.random() < 0.2,
            }
            for number, word in enumerate(words)
        ]
    }


def check(case: Case, folder: Path) -> str:
    data = json.dumps(case["tokenizer"]).encode()
    try:
        checked(data, "t", None)
    except AtelierError as error:
        assert len(str(error).splitlines()) == 1, f"lines: {error}"
        return "refused"
    ours, libraries = Vocabulary.parse(data, "t"), _libraries(case["tokenizer"])
    for text in case["texts"]:
        ids = ours.encode(text)
        assert ids == libraries[0].encode(text, add_special_tokens=False).ids
        assert all(0 <= number < ours.size for number in ids)
        _check_text(ours, libraries, ids, text)
    return "works"


def _libraries(document: dict[str, Any]) -> list[Tokenizer]:
    """The library's, and where it lacks a decoder that knows how its model writes bytes and spaces, with
    one.
    """
    given = document["decoder"]
    around = json.dumps([document["normalizer"], document["pre_tokenizer"]], ensure_ascii=False)
    fallback = [{"type": "ByteFallback"}, {"type": "Fuse"}]
    decoders = [given]
    if given is None and '"ByteLevel"' in around:
        decoders = [BYTES[0]]
    elif given is None and ("▁" in around or document["pre_tokenizer"] is None):
        decoders = [{"type": "Sequence", "decoders": [SPACES, *fallback]}]
    elif document["model"].get("byte_fallback") and given and "ByteFallback" not in json.dumps(given):
        for order in ([given, *fallback], [*fallback[:1], given]):
            decoders.append({"type": "Sequence", "decoders": order})
    found = [Tokenizer.from_str(json.dumps(document | {"decoder": decoder})) for decoder in decoders]
    for library in found:
        library.encode_special_tokens = True
    return found


def _check_text(ours: Vocabulary, libraries: list[Tokenizer], ids: list[int], text: str) -> None:
    whole = ours.bytes_of(ids).decode("utf-8", "replace")
    wanted = {text, *(written for each in libraries for written in (each.decode(ids), _by_words(each, ids)))}
    # the library's decoder leaves out the spaces of its first token, which belong to a text that goes on
    first = libraries[0].id_to_token(ids[0]) if ids else ""
    lost = len(first) - len(first.lstrip("▁ "))
    is_right = whole in wanted or whole.replace(" ", "", max(lost, 1)) in wanted
    assert is_right, f"{text!r}: {whole!r}, wanted {wanted}"
    assert ours.behind([], ids) == whole, (
        f"{text!r}: {ours.behind([], ids)!r} behind nothing, {whole!r} whole"
    )
    assert len(ours.spellings()) == ours.size
    for cut in {0, 1, len(ids) // 2, len(ids) - 1} - {-1}:
        behind = ours.behind(ids[:cut], ids[cut:])
        pieces = list(ours.stream(ids[:cut], iter(ids[cut:])))
        assert "".join(pieces) == behind, f"{text!r} cut at {cut}: {pieces} streamed, {behind!r} whole"
        assert all(pieces), f"{text!r}: an empty piece"


def _by_words(library: Tokenizer, ids: list[int]) -> str:
    """The library's text, but of added words their own, which its decoder of bytes takes for bytes."""
    added = {number: token for number, token in library.get_added_tokens_decoder().items()}
    text, left = "", list[int]()
    for number in ids:
        if number in added:
            text += library.decode(left) + ("" if added[number].special else added[number].content)
            left = []
        else:
            left.append(number)
    return text + library.decode(left)


def _by_spelling(document: dict[str, Any]) -> str:
    return decoding.BYTES if "ByteLevel" in json.dumps(document.get("pre_tokenizer")) else decoding.PIECES


def broken() -> AbstractContextManager[object]:
    """Text is written by how tokens are spelled, whatever the tokenizer's decoder."""
    return mock.patch.object(decoding, "_way", _by_spelling)
