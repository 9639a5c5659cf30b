"""A tokenizer.json that tries to use memory or time, or to cause a traceback: it works, or is refused in one
line.
"""

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from atelier.engine.config.error import AtelierError
from atelier.engine.data import decoding
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.limited_process import LimitedProcess, LimitError, Limits
from tests.foreign.kinds import tokenizers
from tests.foreign.search import Case

COUNT = 40
LIMITS = Limits(memory=1 << 30, cpu_s=5.0)
LONGEST_S = 60.0
TEXTS = (
    "the naïve sea",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa! 1:",
    "a b " * 40 + "!",
    "\x00\ud7ff<0xZZ>",
    "",
)


def draw(rng: random.Random) -> Case:
    document = tokenizers.draw(rng)["tokenizer"]
    for _ in range(rng.choice([1, 1, 2])):
        with suppress(AttributeError, KeyError, TypeError, ValueError):  # where another has been before
            rng.choice(ATTACKS)(document, rng)
    case: Case = {"tokenizer": document, "wrap": rng.choice([0] * 9 + [10, 200, 5000])}
    if rng.random() < 0.1:
        case["cut"] = rng.random()  # of the file
    return case


def _ids(document: dict[str, Any], rng: random.Random) -> None:
    number = rng.choice(
        [4_000_000_000, 2**22, 2**22 - 1, 2**31, 2**64, -1, -(2**40), 1.5, "7", None, True, [], 10**300]
    )
    vocab = document["model"]["vocab"]
    if isinstance(vocab, dict):
        vocab[rng.choice(["new", *list(vocab)[-3:]])] = number
    else:
        vocab.append([rng.choice(["new", 3, None, "x" * 99999]), number])


def _twice(document: dict[str, Any], rng: random.Random) -> None:
    vocab = document["model"]["vocab"]
    if isinstance(vocab, dict):
        vocab["twice"] = vocab[rng.choice(list(vocab))]
    else:
        vocab.append(vocab[rng.randrange(len(vocab))])


def _words(document: dict[str, Any], rng: random.Random) -> None:
    numbers = [4_000_000_000, -1, 0, 1, 2**22, 2**40, "1", None, 1.0]
    contents = ["", " ", "a", "x" * 70_000, "</s>", "\x00", None, 7, "<0xZZ>", "🐟"]
    word = {"id": rng.choice(numbers), "content": rng.choice(contents), "special": rng.random() < 0.5}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), rng.random() < 0.5)
    document["added_tokens"] = [*document["added_tokens"], word | flags]


def _bytes(document: dict[str, Any], rng: random.Random) -> None:
    vocab = document["model"]["vocab"]
    names = ["<0xZZ>", "<0x+1>", "<0x 1>", "<0x_1>", "<0x١٢>", "<0x4>", "<0xf0>", "<0xFF>"]
    for name in rng.sample(names, k=rng.randrange(1, 5)):
        if isinstance(vocab, dict):
            vocab[name] = max(number for number in vocab.values() if type(number) is int) + 1
        else:
            vocab.append([name, -2.0])


def _replace(document: dict[str, Any], rng: random.Random) -> None:
    pattern = rng.choice([{"String": "a"}, {"String": ""}, {"Regex": "a"}, {"Regex": ""}, {"Regex": "."}])
    content = rng.choice("ab ") * rng.choice([2, 10, 100, 10_000])
    rules = [{"type": "Replace", "pattern": pattern, "content": content}] * rng.choice([1, 3, 8, 30])
    part, name = rng.choice([("normalizer", "normalizers"), ("decoder", "decoders")])
    document[part] = {"type": "Sequence", name: rules}


def _deep(document: dict[str, Any], rng: random.Random) -> None:
    part, name = rng.choice(
        [("normalizer", "normalizers"), ("decoder", "decoders"), ("pre_tokenizer", "pretokenizers")]
    )
    inner: Any = {"type": "Fuse"} if part == "decoder" else document[part]
    for _ in range(rng.choice([3, 50, 200])):
        inner = {"type": "Sequence", name: [inner]}
    document[part] = inner


def _bomb(document: dict[str, Any], rng: random.Random) -> None:
    inner = rng.choice(["a", "\\w", "[a-z ]", "\\p{L}", ".", "a|aa", "\\w\\s?", "a?"])
    pattern = rng.choice(
        ["({0}+)+$", "({0})*\\1x", "({0}+)+:", "({0}*)*", "(?=({0}+)+!)", "(?:{0}{{1,9999}}){{1,9999}}"]
    )
    rule = {"pattern": {"Regex": pattern.format(inner)}}
    split = {"type": "Split", "behavior": "Isolated", "invert": rng.random() < 0.5, **rule}
    if rng.random() < 0.7:
        document["pre_tokenizer"] = split
    else:
        document["normalizer"] = {"type": "Replace", "content": "b", **rule}


def _type(document: dict[str, Any], rng: random.Random) -> None:
    place = rng.choice([document, document["model"]])
    wrong: list[Any] = [None, 0, "x", [], {}, [[]], {"type": "Nothing"}, 10**30, True, {"type": []}]
    if place:
        place[rng.choice(list(place))] = rng.choice(wrong)


def _settings(document: dict[str, Any], rng: random.Random) -> None:
    document["padding"] = {"strategy": {"Fixed": rng.choice([10, 10**11])}, "direction": "Right", "pad_id": 0,
                           "pad_to_multiple_of": None, "pad_type_id": 0, "pad_token": "</s>"}  # fmt: skip
    document["truncation"] = {"max_length": rng.choice([0, 1, 10**15]), "stride": rng.choice([0, 5]),
                              "strategy": "LongestFirst", "direction": "Right"}  # fmt: skip


def _model(document: dict[str, Any], rng: random.Random) -> None:
    document["model"] |= rng.choice(
        [
            {"dropout": 0.5}, {"dropout": -1}, {"unk_token": "absent"}, {"unk_id": 10**9},
            {"merges": [["a", "zz"]]}, {"merges": ["a b c"]}, {"continuing_subword_prefix": "x" * 99},
            {"end_of_word_suffix": "é"}, {"max_input_chars_per_word": 10**18}, {"vocab": {}}, {"vocab": []},
            {"type": "BPE"}, {"type": "Unigram"},
        ]
    )  # fmt: skip


ATTACKS: list[Callable[[dict[str, Any], random.Random], None]] = [
    _ids, _ids, _twice, _words, _words, _bytes, _bytes, _replace, _deep, _bomb, _type, _type, _settings,
    _model,
]  # fmt: skip


def text_of(case: Case) -> str:
    wrap = case.get("wrap", 0)
    text = json.dumps(case["tokenizer"])
    if wrap:
        text = text[:-1] + ', "more": ' + "[" * wrap + "]" * wrap + "}"
    return text[: int(len(text) * case["cut"])] if "cut" in case else text


@cache
def process() -> LimitedProcess:
    return LimitedProcess("atelier.engine.data.tokenizer_check", LIMITS)


def check(case: Case, folder: Path) -> str:
    text, began = text_of(case), time.monotonic()
    try:
        process().ask([text, "t", None])  # latin-1, as JSON writes it
    except (AtelierError, LimitError) as error:
        [line] = str(error).splitlines()
        assert line and not re.search(r"Traceback|\bAttributeError|\bKeyError|\bIndexError", line), line
        return "refused"
    finally:
        assert time.monotonic() - began < LONGEST_S, "it took too long"
    try:
        vocabulary = Vocabulary.parse(text.encode(), "t")
        for given in TEXTS:
            with suppress(AtelierError):
                ids = vocabulary.encode(given)
                assert all(number < vocabulary.size for number in ids)
                assert "".join(vocabulary.stream([], ids)) == vocabulary.behind([], ids)
    except AtelierError as error:
        raise AssertionError(f"checked, and then refused: {error}") from None
    except BaseException as error:
        raise AssertionError(f"a traceback: {type(error).__name__}: {error}") from error
    return "works"


def _believed(token: str, has_bytes: bool) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.encode()


@contextmanager
def broken() -> Iterator[None]:
    """A token that looks like a byte is believed to be one, whatever the decoder."""
    with (
        mock.patch.object(decoding, "_piece", _believed),
        mock.patch.object(decoding, "_way", lambda document: decoding.PIECES),
    ):
        yield
