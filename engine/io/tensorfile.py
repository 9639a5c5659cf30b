"""Headers of safetensors files, for writing and hashing files one tensor at a time. The bytes equal those of
the library's own writer, which needs all tensors and the whole file in memory. Torch-free.

The format: eight bytes of header length, a JSON header, the raw bytes of the tensors.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from atelier.engine.config.base import Json
from atelier.engine.io.storage import open_regular

_ALIGN = 8  # bytes
NARROW = 1 << 16  # vocabularies up to this size have 16-bit ids
# the format's type names and element sizes, in the library's tensor order: every tensor starts at a multiple
# of its element size
ELEMENT_BYTES = {
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "F32": 4,
    "U32": 4,
    "I32": 4,
    "BF16": 2,
    "F16": 2,
    "U16": 2,
    "I16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
_ORDER = {dtype: place for place, dtype in enumerate(ELEMENT_BYTES)}


class TensorEntry(NamedTuple):
    """A tensor of a file; `dtype` as named in the format."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ELEMENT_BYTES[self.dtype]


class TensorPlace(NamedTuple):
    """A tensor's place in a file: its entry and the position of its first byte."""

    entry: TensorEntry
    begin: int


def in_file_order(entries: Iterable[TensorEntry]) -> list[TensorEntry]:
    """The tensors in the library's order: by type, then by name."""
    return sorted(entries, key=lambda entry: (_ORDER[entry.dtype], entry.name))


def head(entries: Sequence[TensorEntry], metadata: Mapping[str, str] | None = None) -> bytes:
    """The header: the bytes of a file before its tensors, which follow in the order of `entries`. At most one
    metadata key, because the library writes several in random order.
    """
    header: dict[str, Json] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for entry in entries:
        end = position + entry.num_bytes
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGN)
    return len(text).to_bytes(8, "little") + text


def places(path: Path) -> list[TensorPlace]:
    """The tensors of a file that the library has accepted, with their places."""
    with open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return [
        TensorPlace(
            TensorEntry(name, about["dtype"], tuple(about["shape"])), 8 + length + about["data_offsets"][0]
        )
        for name, about in header.items()
    ]
