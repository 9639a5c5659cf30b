"""manifest.json, which commits a checkpoint. It lists the location of each tensor's chunks, the values and
the files' digests.

Its own digest covers its exact bytes, is at a fixed place at the start, and is compared before parsing.
"""

import math
from typing import Annotated, Any

import torch
from pydantic import Field, GetPydanticSchema
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from atelier.engine.config.base import Json, Spec, canonical
from atelier.engine.config.document import parse_as, with_digest, without_digest
from atelier.engine.config.error import DamageError
from atelier.engine.config.record import FileEntry
from atelier.engine.io.storage import join, read_bytes

MANIFEST = "manifest.json"
SCHEMA = 1


Stored = Annotated[Json, GetPydanticSchema(lambda _, handler: handler(Any))]  # as state.py encodes it


class Chunk(Spec):
    """A box-shaped part of a tensor, stored whole in one file."""

    file: int = Field(ge=0, description="index into the manifest's files")
    offset: tuple[int, ...]
    shape: tuple[int, ...]


class StoredTensor(Spec):
    """A tensor; its chunks do not overlap and together cover it."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    def model_post_init(self, context: None) -> None:
        if not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise ValueError(f"no such dtype: {self.dtype}")
        if sum(math.prod(chunk.shape) for chunk in self.chunks) != math.prod(self.shape):
            raise ValueError(f"chunks do not cover a tensor of shape {self.shape}")


class Manifest(Spec):
    """Content of manifest.json."""

    schema_: int = Field(SCHEMA, alias="schema")
    step: int = Field(ge=0)
    trajectory: str
    world: int = Field(ge=1, description="ranks that wrote it; any number may read it")
    codes: tuple[str, ...] = Field(
        (), description="digests of the code maps that computed it, newest last; none = unknown"
    )
    libraries: tuple[str, ...] = Field(
        (), description="library versions that computed it, newest last; none = unknown"
    )
    computed: str = Field("", description="arithmetic of its computation; '' = unknown")
    held_out: str = Field("", description="name of the windows of its eval/loss; '' = unknown")
    files: tuple[FileEntry, ...]
    tensors: dict[str, StoredTensor]
    values: list[tuple[tuple[str | int, ...], Stored]]

    def model_post_init(self, context: None) -> None:
        if self.schema_ != SCHEMA:
            raise ValueError(f"schema {self.schema_} is not {SCHEMA}, which this version reads")
        if any(chunk.file >= len(self.files) for stored in self.tensors.values() for chunk in stored.chunks):
            raise ValueError("a tensor is in a file that is not listed")

    def content(self) -> dict[str, Json]:
        """The saved content without file names, equal for two saves of one state in one layout."""
        body = self.model_dump(mode="json", by_alias=True)
        return {**body, "files": [entry.sha256 for entry in self.files]}

    def sealed(self) -> bytes:
        """The bytes of manifest.json."""
        body = canonical(self.model_dump(mode="json", by_alias=True))
        return with_digest(body)

    def metadata(self) -> Metadata:
        """The tensors as torch.distributed.checkpoint describes them for planning."""
        described: dict[str, STORAGE_TYPES] = {}
        for name, stored in self.tensors.items():
            described[name] = TensorStorageMetadata(
                properties=TensorProperties(dtype=getattr(torch, stored.dtype)),
                size=torch.Size(stored.shape),
                chunks=[
                    ChunkStorageMetadata(torch.Size(chunk.offset), torch.Size(chunk.shape))
                    for chunk in stored.chunks
                ],
            )
        return Metadata(described)


def key(name: str, offset: tuple[int, ...], shape: tuple[int, ...], whole: tuple[int, ...]) -> str:
    """The name of a chunk in its file: the tensor's own for a whole tensor, otherwise with its offset."""
    return name if tuple(shape) == tuple(whole) else f"{name}@{','.join(map(str, offset))}"


def read_manifest(url: str, *, step: int | None = None, trajectory: str | None = None) -> Manifest:
    """The verified manifest of the checkpoint at `url`.

    Raises DamageError for a flipped bit, or a manifest of another step or trajectory.
    """
    place = join(url, MANIFEST)
    manifest = _opened(place)
    wanted = {"step": step, "trajectory": trajectory}
    for field, value in wanted.items():
        found = getattr(manifest, field)
        if value is not None and found != value:
            raise DamageError(f"{place}: holds {field} {found}, expected {value}")
    return manifest


def _opened(place: str) -> Manifest:
    body = without_digest(read_file(place), place)
    return parse_as(Manifest, body, place, "a manifest")


def read_file(place: str) -> bytes:
    """All bytes of a file. Raises DamageError if it is missing or cannot be read."""
    try:
        return read_bytes(place)
    except FileNotFoundError:
        raise DamageError(f"{place}: missing") from None
    except OSError as error:
        raise DamageError(f"{place}: cannot be read ({error.strerror or error})") from error
