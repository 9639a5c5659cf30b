"""Files of shards: JSON lines, packed by zstd, with counts of their documents."""

import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import zstandard

from atelier.engine.config.base import Json
from atelier.engine.config.document import parse_object
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.io.storage import is_local

SHARDS, ENDING = "shards", ".jsonl.zst"
LEVEL = 3  # zstd's default
BLOCK = 1 << 20  # bytes written or read at once
Counts = dict[str, Any]  # names -> number or Counts; those of shards are added


def size_of(text: str) -> int:
    """UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


class UnitFile:
    """A local file of a unit, with counts and notes. `ending`: of its name in the spool."""

    ending = ENDING

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._counts = path, Counter[tuple[str, ...]]()
        self.notes: list[str] = []
        self.extra: Json = None

    def close(self) -> None:
        """Complete the file."""

    def count(self, *names: str, amount: int = 1) -> None:
        """Add `amount` to the count with this path of names."""
        self._counts[names] += amount

    def count_document(self, size: int, *names: str) -> None:
        """Count one document of `size` UTF-8 bytes at this path of names."""
        self._counts[*names, "documents"] += 1
        self._counts[*names, "bytes"] += size

    @property
    def counts(self) -> Counts:
        result: Counts = {}
        for (*above, last), amount in self._counts.items():
            place = result
            for name in above:
                place = place.setdefault(name, {})
            place[last] = amount
        return result


class ShardWriter(UnitFile):
    """A file of JSON lines, packed while it is written, a block at a time."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path.write_bytes(b"")
        self._packer = zstandard.ZstdCompressor(level=LEVEL).compressobj()
        self._packed = bytearray()
        self._is_closed = False

    def write(self, line: Mapping[str, Json]) -> None:
        text = json.dumps(line, ensure_ascii=False, sort_keys=True).encode() + b"\n"
        self._packed += self._packer.compress(text)
        if len(self._packed) >= BLOCK:
            self._append()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._packed += self._packer.flush()
            self._append()

    def _append(self) -> None:
        with open(self.path, "ab") as file:
            file.write(self._packed)
        self._packed.clear()


class ArrayFile(UnitFile):
    """An array as .npy."""

    ending = ".npy"

    def __init__(self, path: Path, array: np.ndarray) -> None:
        super().__init__(path)
        with open(path, "wb") as file:
            np.save(file, array, allow_pickle=False)


@contextmanager
def unpacked(path: Path) -> Iterator[io.BufferedReader]:
    """The bytes of a packed file; memory holds a block."""
    with open(path, "rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        yield io.BufferedReader(cast(io.RawIOBase, reader), BLOCK)


def lines_of(path: Path) -> Iterator[dict[str, Json]]:
    """The lines of a packed file, in order; memory holds one."""
    with unpacked(path) as lines:
        for number, line in enumerate(lines, start=1):
            yield parse_object(line, f"{path}, line {number}")


def shard_names(artifact: ArtifactInput, folder: str = SHARDS) -> list[str]:
    """The names of an artifact's shards below `folder`, in order."""
    return sorted(name for name in artifact.names() if name.startswith(f"{folder}/"))


def shard_lines(artifact: ArtifactInput, name: str, scratch: Path) -> Iterator[dict[str, Json]]:
    """The lines of one shard, verified by its digest. A copy of a remote one is removed afterwards."""
    path = artifact.file(name, scratch)
    try:
        yield from lines_of(path)
    finally:
        if not is_local(artifact.url):
            path.unlink(missing_ok=True)
