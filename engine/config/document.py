"""Parse untrusted JSON within bounds. Torch-free.

Stored documents may be damaged or malicious: deeply nested, with huge numbers or with lone surrogates that
cannot be printed. All of this raises DamageError here, with the document's place.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import TypeVar

from pydantic import ValidationError

from atelier.engine.config.base import Json, Spec, fingerprint
from atelier.engine.config.error import DamageError

MOST_BYTES = 64 << 20  # per document; a checkpoint manifest of 10,000 tensors in 100 chunks is smaller
MOST_DEEP = 64  # levels of lists and objects; a record has 10
MOST_DIGITS = 64  # per whole number; a generator's state has 39
DIGEST = "digest"

# texts that match take the slow path, which checks every number and text
_SUSPECT = re.compile(rf"\d{{{MOST_DIGITS}}}|\d[eE]\+?\d\d\d|\\u[dD][89a-fA-F]")
_OPENING, _CLOSING = b'{"digest":"', b'",'
SpecType = TypeVar("SpecType", bound=Spec)


def parse_json(data: bytes | str, place: str, what: str = "JSON") -> Json:
    """Parse the document. Raises DamageError with `place`, the expected content `what`, and the fault."""
    try:
        return _parsed(data)
    except RecursionError:
        problem = f"nested deeper than {MOST_DEEP} levels"
    except UnicodeError:
        problem = "not UTF-8"
    except ValueError as error:
        problem = str(error).splitlines()[0]
    raise DamageError(f"{place}: not {what} ({problem})", place=place)


def parse_object(data: bytes | str, place: str, what: str = "a JSON object") -> dict[str, Json]:
    """As `parse_json`; also raises DamageError if the document is not an object."""
    document = parse_json(data, place, what)
    if not isinstance(document, dict):
        raise DamageError(f"{place}: not {what} (it is a {_kind(document)})", place=place)
    return document


def parse_lines(data: bytes | str, place: str) -> list[dict[str, Json]]:
    """Parse a file with one object per line. Raises DamageError with the line number."""
    raw = (
        data.encode() if isinstance(data, str) else data
    )  # splitlines() would also split at other characters
    lines = enumerate(raw.split(b"\n"), start=1)
    return [parse_object(line, f"{place}, line {number}") for number, line in lines if line.strip()]


def parse_as(kind: type[SpecType], data: bytes | str, place: str, what: str) -> SpecType:
    """Parse a document as a spec. Raises DamageError if it does not fit."""
    return check_as(kind, parse_object(data, place, what), place, what)


def check_as(kind: type[SpecType], document: Mapping[str, Json], place: str, what: str) -> SpecType:
    """As `parse_as`, for a parsed document. Raises DamageError if it does not fit the spec."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        text = f"{where}: {fault['msg']}" if where else fault["msg"]
        raise DamageError(f"{place}: not {what} ({text[:200]})", place=place) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise DamageError(f"{place}: not {what} ({str(error)[:200]})", place=place) from None


def number_of(value: Json, default: float = 0.0) -> float:
    """The value if it is a number, otherwise the default."""
    return value if isinstance(value, int | float) else default


def whole_of(value: Json) -> int:
    """The value if it is a whole number, otherwise 0."""
    return value if isinstance(value, int) else 0


def section_of(value: Json) -> Mapping[str, Json]:
    """The value if it is a JSON object, otherwise an empty one."""
    return value if isinstance(value, Mapping) else {}


def sealed(document: Mapping[str, Json]) -> bytes:
    """The document with its own digest added; `opened` then detects any changed byte."""
    body = {key: value for key, value in document.items() if key != DIGEST}
    plain = json.loads(json.dumps(body))  # tuples become lists
    return json.dumps({**body, DIGEST: fingerprint(plain)}, sort_keys=True).encode()


def opened(data: bytes | str, place: str, what: str, unsealed: frozenset[str]) -> dict[str, Json]:
    """Check and remove the digest of a document that `sealed` wrote. `unsealed`: keys of older documents
    without a digest.

    Raises DamageError if the digest does not match.
    """
    document = parse_object(data, place, what)
    if DIGEST not in document and unsealed.issuperset(document):
        return document
    body = {key: value for key, value in document.items() if key != DIGEST}
    if document.get(DIGEST) != fingerprint(body):
        raise DamageError(f"{place}: not {what} (its content does not match its digest)", place=place)
    return body


def with_digest(text: bytes) -> bytes:
    """A JSON object's text with the digest of these bytes added as its first value."""
    return _OPENING + hashlib.sha256(text).hexdigest().encode() + _CLOSING + text[1:]


def without_digest(data: bytes, place: str) -> bytes:
    """The text that was given to `with_digest`. Raises DamageError if a byte has changed."""
    text = b"{" + data[len(with_digest(b"{")) :]
    if with_digest(text) != data:
        raise DamageError(f"{place}: content does not match the digest inside it", place=place)
    return text


def _parsed(data: bytes | str) -> Json:
    if len(data) > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES >> 20} MiB")
    text = data if isinstance(data, str) else data.decode("utf-8")
    if not _SUSPECT.search(text):
        document = json.loads(text, parse_constant=_no_number)
    else:
        document = json.loads(text, parse_constant=_no_number, parse_int=_whole, parse_float=_finite)
        json.dumps(document, ensure_ascii=False).encode("utf-8")  # a lone surrogate raises UnicodeError
    _check_depth(document)
    return document


def _check_depth(document: Json) -> None:
    level, depth = [document], 0
    while level := [
        child
        for one in level
        if isinstance(one, dict | list)
        for child in (one.values() if isinstance(one, dict) else one)
        if isinstance(child, dict | list)
    ]:
        depth += 1
        if depth >= MOST_DEEP:
            raise RecursionError


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not a number")


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{digits[:20]} is larger than any number")
    return number


def _kind(document: Json) -> str:
    names = {list: "list", str: "text", bool: "truth value", int: "number", float: "number"}
    return names.get(type(document), "null")
