"""Check a foreign tokenizer.json before it enters the store, in a separate process
(engine/io/limited_process.py) that first computes everything later processes compute with it.
"""

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from tokenizers import Tokenizer

from atelier.engine.config.base import Json, parse
from atelier.engine.config.data import AdoptedEnds, TextEnds
from atelier.engine.config.error import ConfigError, DataError, printable
from atelier.engine.data.text_ends import text_ends
from atelier.engine.data.vocabulary import Vocabulary, tokenizer_of
from atelier.engine.io.limited_process import LimitedProcess, LimitError, Limits, answer_all

MEMORY, CPU_S = 2 << 30, 60.0
MOST_IDS = 1 << 22  # the largest public vocabularies have about a million
LONGEST_TOKEN = 1 << 16  # characters
MOST_GROWTH = 64.0  # times a text's length, by replacing rules; NFKD has at most 18
RUN = 100  # repetitions of a character in a trial text
WAY_OUT = "give the tokenizer.json that the model was published with"
TEXTS = (
    "".join(map(chr, range(32, 127))),
    "def read(path):\n\treturn open(path)\r\n\r\n  x = 12345.678e-9 # don't  stop",
    "Größe naïve đem Ελληνικά русский עברית العربية हिन्दी ไทย 中文字符。日本語、한국어",
    "🙂👩\u200d👧 ﷺ ẛ\u0323 \ufeff\u200b\x00\x7f",
)
DECODED = 512  # ids decoded together


def check_tokenizer(data: bytes, place: str, texts: AdoptedEnds | None) -> TextEnds | None:
    """How texts begin and end with this tokenizer.json, if its model's `texts` are given. Raises ConfigError
    if it is not valid, or if its ids, memory or time exceed the limits.
    """
    process = LimitedProcess("atelier.engine.data.tokenizer_check", Limits(MEMORY, CPU_S))
    given = None if texts is None else texts.model_dump(mode="json")
    try:
        # latin-1 maps any bytes to text and back
        ends = process.ask([data.decode("latin-1"), place, given])
    except LimitError as error:
        raise ConfigError(place, f"not a usable tokenizer.json: {error}", WAY_OUT) from None
    except ConfigError:
        raise
    except DataError as error:
        raise ConfigError(place, f"not a usable tokenizer.json: {error}", WAY_OUT) from None
    finally:
        process.close()
    return None if ends is None else parse(TextEnds, ends, place)


def serve(channel: socket.socket, limits: Limits) -> None:
    def act(request: Json) -> Json:
        data, place, given = cast("tuple[str, str, Json]", request)
        texts = None if given is None else parse(AdoptedEnds, given, place)
        ends = checked(data.encode("latin-1"), place, texts)
        return None if ends is None else ends.model_dump(mode="json")

    answer_all(channel, limits, act)


def checked(data: bytes, place: str, texts: AdoptedEnds | None) -> TextEnds | None:
    """`check_tokenizer`, in the child process."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:  # ValueError includes invalid UTF-8
        raise ConfigError(place, f"not a tokenizer.json ({error})", WAY_OUT) from None
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        raise ConfigError(place, "not a tokenizer.json: it has no model", WAY_OUT)
    check_ids(document, place)
    check_rules(document, place)
    ends = None if texts is None else text_ends(texts, tokenizer_of(data, place), place)
    vocabulary = Vocabulary.parse(data, place, ends)
    twice: dict[int, str] = {}
    for token, number in tokenizer_of(data, place).get_vocab(with_added_tokens=True).items():
        if (other := twice.setdefault(number, token)) != token:
            fault = (
                f"the library gives {number} to {printable(repr(other), 60)} and {printable(repr(token), 60)}"
            )
            raise ConfigError(f"{place}: added_tokens", fault, WAY_OUT)
    if vocabulary.size > MOST_IDS:
        raise ConfigError(place, f"has {vocabulary.size} ids, more than {MOST_IDS}", WAY_OUT)
    _try(vocabulary, tokenizer_of(data, place), [*TEXTS, *_runs(document)])
    return ends


def check_ids(document: Mapping[str, Any], place: str) -> None:
    """Raise ConfigError for ids that are too large, missing, or shared by two tokens. The library allocates
    room for the highest one.
    """
    vocab = document["model"].get("vocab")
    if isinstance(vocab, dict):
        _check_tokens(vocab.items(), f"{place}: model.vocab")
        if len(set(vocab.values())) < len(vocab):
            twice: dict[int, str] = {}
            for token, number in vocab.items():
                if (other := twice.setdefault(number, token)) != token:
                    fault = f"the tokens {other!r} and {token!r} have the same id, {number}"
                    raise ConfigError(f"{place}: model.vocab", fault, WAY_OUT)
    elif isinstance(vocab, list):
        tokens = [each[0] if isinstance(each, list) and each else each for each in vocab]
        _check_tokens(zip(tokens, range(len(tokens)), strict=True), f"{place}: model.vocab")
    added = document.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(each, dict) for each in added):
        raise ConfigError(f"{place}: added_tokens", "is not a list of objects", WAY_OUT)
    _check_tokens(((each.get("content"), each.get("id")) for each in added), f"{place}: added_tokens")


def _check_tokens(tokens: Any, place: str) -> None:
    for token, number in tokens:
        shown = printable(repr(token), 60)
        if type(number) is not int or not 0 <= number < MOST_IDS:
            fault = f"the token {shown} has the id {printable(number, 40)}; ids are 0 to {MOST_IDS - 1}"
            raise ConfigError(place, fault, WAY_OUT)
        if not isinstance(token, str) or len(token) > LONGEST_TOKEN:
            fault = f"the token {shown} is not a text of at most {LONGEST_TOKEN} characters"
            raise ConfigError(place, fault, WAY_OUT)


def check_rules(document: Mapping[str, Any], place: str) -> None:
    """Raise ConfigError for rules that are random, or make a text far longer."""
    if document["model"].get("dropout"):
        fault = (
            f"is {printable(document['model']['dropout'], 40)}: the same text would get other ids each time"
        )
        raise ConfigError(f"{place}: model.dropout", fault, "set it to null")
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if (growth := _growth(document.get(part))) > MOST_GROWTH:
            fault = f"its rules make a text up to {growth:.3g} times as long; {MOST_GROWTH:g} is the limit"
            raise ConfigError(f"{place}: {part}", fault, WAY_OUT)


def _growth(part: Any) -> float:
    """The largest factor by which replacing rules lengthen a text; factors multiply if one rule may read
    another's output.
    """
    growth, written = 1.0, set[str]()
    for rule in _rules(part):
        content = rule.get("content", rule.get("prepend", ""))
        if rule.get("type") not in ("Replace", "Prepend") or not isinstance(content, str):
            continue
        pattern = rule.get("pattern")
        given = pattern.get("String") if isinstance(pattern, dict) else None
        read = given if isinstance(given, str) else ""
        factor = len(content) / max(1, len(read))
        reads_it = not read or bool(written & set(read))
        growth = growth * max(1.0, factor) if reads_it else max(growth, factor)
        written |= set(content)
    return growth


def _rules(given: Any) -> Iterator[Mapping[str, Any]]:
    """All objects of a part, at any depth, in order."""
    left = [given]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            yield each
        if isinstance(each, dict | list):
            left += list(each.values() if isinstance(each, dict) else each)[::-1]


def _runs(document: Mapping[str, Any]) -> list[str]:
    """Long runs of characters and words, followed by characters named in patterns: patterns whose time
    doubles with every character are slow there.
    """
    patterns = "".join(str(rule.get("Regex", "")) for rule in _rules(document))
    named = sorted(set(patterns))[:RUN]
    letters = sorted({*map(chr, range(32, 127)), "\n", "\t", "é", "中", *named})
    ends = ("", "!", "! 1a" + "".join(named))
    return [letter * RUN + end for letter in [*letters, "word ", "a1"] for end in ends]


def _try(vocabulary: Vocabulary, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    """Compute what is computed later: ids of texts, texts of ids."""
    for text in texts:
        grown = len(tokenizer.normalizer.normalize_str(text)) if tokenizer.normalizer is not None else 0
        if grown > MOST_GROWTH * (len(text) + 1):
            raise DataError(f"its normalizer makes {grown} characters from {len(text)}")
        vocabulary.decode(vocabulary.encode(text))
    for first in range(0, vocabulary.size, DECODED):
        vocabulary.decode(range(first, min(first + DECODED, vocabulary.size)))
    vocabulary.names()
