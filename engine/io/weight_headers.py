"""Read only the header of a safetensors file at any address: its weights, without their bytes. Torch-free."""

from typing import TypeGuard

from atelier.engine.config.base import Json
from atelier.engine.config.document import parse_object, section_of
from atelier.engine.config.error import DamageError, DataError, printable
from atelier.engine.io import storage
from atelier.engine.io.tensorfile import ELEMENT_BYTES, TensorEntry

LENGTH = 8  # bytes of the header's length
MOST_HEADER = 64 << 20  # bytes; a header of 100,000 weights has 12 MB
METADATA = "__metadata__"


def header(url: str) -> list[TensorEntry]:
    """The weights of a file. Raises DataError for an invalid header, or one that does not fit the file's
    size.
    """
    size = storage.size(url)
    length = int.from_bytes(storage.read_range(url, 0, LENGTH), "little")
    if length > min(MOST_HEADER, size - LENGTH):
        raise DataError(f"{url}: not a weights file (a header of {length} bytes in a file of {size})")
    try:
        document = parse_object(storage.read_range(url, LENGTH, LENGTH + length), url)
    except DamageError as error:
        raise DataError(f"{url}: not a weights file ({error})") from None
    entries, end = list[TensorEntry](), 0
    for name, about in document.items():
        if name == METADATA:
            continue
        entry, last = _entry(name, about, url)
        entries.append(entry)
        end = max(end, last)
    if LENGTH + length + end != size:
        problem = f"its header implies {LENGTH + length + end} bytes, but it has {size}"
        raise DataError(f"{url}: not a weights file ({problem})")
    return entries


def _entry(name: str, about: Json, url: str) -> tuple[TensorEntry, int]:
    """A weight, and the end of its bytes."""
    told = section_of(about)
    dtype, shape, offsets = str(told.get("dtype")), told.get("shape"), told.get("data_offsets")
    if dtype in ELEMENT_BYTES and _are_counts(shape) and _are_counts(offsets) and len(offsets) == 2:
        entry = TensorEntry(name, dtype, tuple(shape))
        if offsets[1] - offsets[0] == entry.num_bytes:
            return entry, offsets[1]
    raise DataError(f"{url}: not a weights file (invalid entry of {printable(name)})")


def _are_counts(value: Json) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)
