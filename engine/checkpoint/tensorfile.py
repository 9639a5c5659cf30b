"""One safetensors file of a checkpoint: hashed while written from the tensors' own memory, parsed only after
its digest is verified.
"""

import hashlib
from itertools import chain

import safetensors.torch
import torch

from atelier.engine.checkpoint.manifest import read_file
from atelier.engine.config.error import DamageError
from atelier.engine.config.record import FileEntry
from atelier.engine.io.storage import join, put_parts
from atelier.engine.io.tensorfile import head, in_file_order
from atelier.engine.model.weights import bytes_of, entry_of


def write_tensors(url: str, name: str, tensors: dict[str, torch.Tensor]) -> FileEntry:
    """Write CPU tensors as `name` under `url`, durable when this returns. Raises OSError naming the file."""
    place = join(url, name)
    entries = in_file_order(entry_of(key, tensor.shape, tensor.dtype) for key, tensor in tensors.items())
    parts = (bytes_of(tensors[entry.name]) for entry in entries)
    try:
        return put_parts(place, chain([head(entries)], parts))
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), place) from error


def read_tensors(url: str, entry: FileEntry) -> dict[str, torch.Tensor]:
    """The tensors of a file of the checkpoint at `url`; exactly the hashed bytes are parsed.

    Raises DamageError if size or digest do not match.
    """
    place = join(url, entry.path)
    data = read_file(place)
    if len(data) != entry.bytes:
        raise DamageError(f"{place}: has {len(data)} bytes, but its record has {entry.bytes}")
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise DamageError(f"{place}: content does not match its digest")
    return safetensors.torch.load(data)
