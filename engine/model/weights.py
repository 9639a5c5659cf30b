"""Weights by name without holding them all: read from model files one by one, or gathered from a gang and
written one by one.
"""

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import safetensors
import torch
from torch import Tensor

from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.io.storage import open_regular, read_object
from atelier.engine.io.tensorfile import TensorEntry, TensorPlace, head, places
from atelier.engine.io.weight_files import INDEX, METADATA, WEIGHTS, check_shard, read_index

COMPILED = "_orig_mod."  # prefix that torch.compile(module) adds to names below it
_TYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
_WORDS = {dtype: word for word, dtype in _TYPES.items()}

Part = bytes | memoryview  # of a file
Sink = Callable[[str, Iterable[Part]], None]  # takes a file's name and its parts, one by one


class Weight(NamedTuple):
    """A weight that may be sharded over ranks. `gather`, a collective, returns it whole on the CPU of rank 0
    and None elsewhere.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    gather: Callable[[], Tensor | None]


def in_memory(state: Mapping[str, Tensor]) -> dict[str, Weight]:
    """Unsharded tensors as weights, copied only when gathered."""

    def weight(name: str, tensor: Tensor) -> Weight:
        return Weight(tuple(tensor.shape), tensor.dtype, lambda: state[name].detach().cpu())

    return {name.replace(COMPILED, ""): weight(name, tensor) for name, tensor in state.items()}


def entry_of(name: str, shape: Sequence[int], dtype: torch.dtype) -> TensorEntry:
    """The tensor's entry in a file. Raises ConfigError for a type without safetensors equivalent."""
    if dtype not in _WORDS:
        raise ConfigError(
            name, f"{dtype} has no safetensors type", "save it as another dtype, e.g. view_as_real"
        )
    return TensorEntry(name, _WORDS[dtype], tuple(shape))


def type_of(entry: TensorEntry) -> torch.dtype:
    """The torch type of a tensor in a file."""
    return _TYPES[entry.dtype]


def entries_of(weights: Mapping[str, Weight]) -> list[TensorEntry]:
    """The weights' entries in a file, in their order. Raises as `entry_of`."""
    return [entry_of(name, weight.shape, weight.dtype) for name, weight in weights.items()]


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a CPU tensor; its own memory if contiguous."""
    flat = tensor.contiguous().reshape(-1)
    return memoryview(cast(Any, flat.view(torch.uint8).numpy())) if flat.numel() else memoryview(b"")


def write_files(
    files: Mapping[str, Sequence[TensorEntry]], weights: Mapping[str, Weight], sink: Sink | None
) -> None:
    """Pass every file's bytes to `sink`, a tensor at a time. A collective: ranks other than the first have no
    sink and only send.
    """
    for name, entries in files.items():
        if sink is not None:
            sink(name, _parts(entries, weights))
        else:
            for entry in entries:
                weights[entry.name].gather()


def _parts(entries: Sequence[TensorEntry], weights: Mapping[str, Weight]) -> Iterator[Part]:
    yield head(entries, METADATA)
    for entry in entries:
        whole = weights[entry.name].gather()
        assert whole is not None  # only rank 0 has a sink
        part = bytes_of(whole)
        del whole
        yield part
        del part  # free it before the next is gathered


class StoredPlace(NamedTuple):
    """A weight's place in a file; it begins at byte `offset`."""

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class StoredWeights(Mapping[str, Tensor]):
    """The weights of verified files by name. Each is mapped on access; its memory is released with the
    tensor.
    """

    def __init__(self, *paths: Path) -> None:
        self._files = {path: _placed(path) for path in paths}
        self._places = {
            name: (path, place) for path, held in self._files.items() for name, place in held.items()
        }

    def __getitem__(self, name: str) -> Tensor:
        return _mapped(*self._places[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def names_in(self, path: Path) -> list[str]:
        return list(self._files[path])

    def entries(self) -> dict[str, TensorEntry]:
        return {name: place.entry for name, (_, place) in self._places.items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.shape for name, entry in self.entries().items()}

    def place(self, name: str) -> StoredPlace:
        """The place of a weight in its file."""
        path, place = self._places[name]
        return StoredPlace(path, place.begin, place.entry.shape, _TYPES[place.entry.dtype])

    def num_bytes(self, name: str) -> int:
        return self._places[name][1].entry.num_bytes

    def weights(self) -> dict[str, Weight]:
        """The weights, for writing them unchanged."""

        def weight(name: str, entry: TensorEntry) -> Weight:
            return Weight(entry.shape, _TYPES[entry.dtype], lambda: self[name])

        return {name: weight(name, place.entry) for name, (_, place) in self._places.items()}


def _placed(path: Path) -> dict[str, TensorPlace]:
    try:
        with safetensors.safe_open(path, framework="pt"):  # the library checks the header
            found = places(path)
    except safetensors.SafetensorError as error:  # its digest is right, so it was written like this
        raise DataError(f"{path}: not a weights file ({error})") from None
    for place in found:
        if place.entry.dtype not in _TYPES:
            raise DataError(f"{path}: {place.entry.name} is of type {place.entry.dtype}, which no model has")
    return {place.entry.name: place for place in found}


def _mapped(path: Path, place: TensorPlace) -> Tensor:
    entry, dtype = place.entry, _TYPES[place.entry.dtype]
    if not entry.num_bytes:
        return torch.empty(entry.shape, dtype=dtype)
    before = place.begin % mmap.ALLOCATIONGRANULARITY
    with open_regular(path) as file:  # private mapping: changing the tensor does not change the file
        pages = mmap.mmap(
            file.fileno(), before + entry.num_bytes, access=mmap.ACCESS_COPY, offset=place.begin - before
        )
    count = entry.num_bytes // dtype.itemsize
    return torch.frombuffer(pages, dtype=dtype, count=count, offset=before).view(entry.shape)


def open_weights(source: ArtifactInput, scratch: Path) -> StoredWeights:
    """The weights of a model artifact, one file or shards, each verified before parsing.

    Raises DamageError if bytes do not match their digests, DataError if the index is malformed or does not
    match the shards.
    """
    names = source.names()
    if WEIGHTS in names or INDEX not in names:
        return StoredWeights(source.file(WEIGHTS, scratch))
    place = f"{source.url}/{INDEX}"
    index = read_object(str(source.file(INDEX, scratch)), "the index of a model's shards")
    shards = read_index(index, names, place)
    paths = {shard: source.file(shard, scratch) for shard in shards}
    stored = StoredWeights(*paths.values())
    for shard, path in paths.items():
        check_shard(stored.names_in(path), shards[shard], shard, place)
    return stored
