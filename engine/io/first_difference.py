"""Where two files first differ, as text: a tensor, a key, a line or a byte. Torch-free."""

import math
from contextlib import suppress

import numpy as np

from atelier.engine.config.base import canonical, flatten
from atelier.engine.config.document import parse_object
from atelier.engine.config.error import AtelierError, printable
from atelier.engine.io.storage import read_bytes, read_range, size
from atelier.engine.io.tensorfile import ELEMENT_BYTES, TensorEntry
from atelier.engine.io.weight_headers import LENGTH, header

BLOCK = 1 << 22  # bytes that are compared at once
MOST_TEXT = 1 << 26  # bytes of a text or document that is read whole
TEXTS = (".jsonl", ".txt", ".md", ".html", ".svg", ".csv")
FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
NEWLINE = b"\n"
SHORT = 60  # characters of a value


def first_difference(one: str, other: str) -> str:
    """The first difference of the files at two URLs, '' if their bytes are equal: of weights the tensor, of a
    JSON object the key, of a text the line, of anything else the byte.
    """
    byte = _first_byte((one, 0, size(one)), (other, 0, size(other)))
    if byte is None:
        return ""
    with suppress(AtelierError):  # not the format of its name: the byte is told
        if one.endswith(".safetensors"):
            return _tensor(one, other) or f"byte {byte}"
        if max(size(one), size(other)) <= MOST_TEXT:
            if one.endswith(".json"):
                return _key(one, other) or f"byte {byte}"
            if one.endswith(TEXTS):
                before = read_bytes(one)[:byte]
                return f"line {before.count(NEWLINE) + 1}"
    return f"byte {byte} of {size(one)} ({size(other)} in the other)"


def _first_byte(one: tuple[str, int, int], other: tuple[str, int, int]) -> int | None:
    """The first differing byte of two parts of files, each (URL, begin, length); None if they are equal."""
    length = min(one[2], other[2])
    for begin in range(0, length, BLOCK):
        count = min(BLOCK, length - begin)
        ours, theirs = (read_range(url, at + begin, at + begin + count) for url, at, _ in (one, other))
        if ours != theirs:
            unequal = np.frombuffer(ours, np.uint8) != np.frombuffer(theirs, np.uint8)
            return begin + int(unequal.argmax())
    return None if one[2] == other[2] else length


def _places(url: str) -> dict[str, tuple[TensorEntry, int]]:
    """Each tensor with its first byte, in the order of the file."""
    begin = LENGTH + int.from_bytes(read_range(url, 0, LENGTH), "little")
    found = {}
    for entry in header(url):
        found[entry.name] = (entry, begin)
        begin += entry.num_bytes
    return found


def _tensor(one: str, other: str) -> str:
    ours, theirs = _places(one), _places(other)
    for name, (entry, begin) in ours.items():
        if name not in theirs:
            return f"tensor {printable(name)} is in the first alone"
        second, at = theirs[name]
        if (entry.dtype, entry.shape) != (second.dtype, second.shape):
            shapes = f"{entry.dtype}{list(entry.shape)}, {second.dtype}{list(second.shape)}"
            return f"tensor {printable(name)} has another shape or type: {shapes}"
        if _first_byte((one, begin, entry.num_bytes), (other, at, entry.num_bytes)) is not None:
            return f"tensor {printable(name)}: {_amount(entry, (one, begin), (other, at))}"
    alone = [name for name in theirs if name not in ours]
    return f"tensor {printable(alone[0])} is in the second alone" if alone else ""


def _amount(entry: TensorEntry, one: tuple[str, int], other: tuple[str, int]) -> str:
    """How many elements differ, and of floating-point numbers by how much at most."""
    wide = ELEMENT_BYTES[entry.dtype]
    count, largest = 0, 0.0
    for begin in range(0, entry.num_bytes, BLOCK):
        end = min(begin + BLOCK, entry.num_bytes)
        ours, theirs = (read_range(url, at + begin, at + end) for url, at in (one, other))
        as_bytes = [np.frombuffer(part, np.uint8).reshape(-1, wide) for part in (ours, theirs)]
        count += int((as_bytes[0] != as_bytes[1]).any(axis=1).sum())
        if entry.dtype in FLOATS:
            first, second = (
                np.frombuffer(part, FLOATS[entry.dtype]).astype(np.float64) for part in (ours, theirs)
            )
            apart = np.abs(first - second)
            largest = max(largest, float(apart[np.isfinite(apart)].max(initial=0.0)))
    by = f", by at most {largest:.3g}" if entry.dtype in FLOATS else ""
    return f"{count} of {math.prod(entry.shape)} elements differ{by}"


def _key(one: str, other: str) -> str:
    ours, theirs = (flatten(parse_object(read_bytes(url), url)) for url in (one, other))
    for key in sorted({*ours, *theirs}):
        pair = [ours.get(key), theirs.get(key)]
        if (key in ours) != (key in theirs) or canonical(pair[0]) != canonical(pair[1]):
            return f"key {printable(key)}: {' | '.join(printable(str(value), SHORT) for value in pair)}"
    return ""
