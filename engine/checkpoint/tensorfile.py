"""One safetensors file: hashed while it is written, and parsed only after its digest agreed.

The library's writer makes a second copy of every tensor and needs a second pass for the digest. The format is
eight bytes of header length, a JSON header and the raw bytes, so this writer writes from the tensors' own
memory.
"""

import hashlib
import json
from typing import Any, cast

import safetensors.torch
import torch

from atelier.engine.checkpoint.manifest import read_file
from atelier.engine.config.error import ConfigError, DamageError
from atelier.engine.config.record import FileEntry
from atelier.engine.io.storage import BLOCK, join, writing

_ALIGN = 8
_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}


def check_dtype(name: str, tensor: torch.Tensor) -> None:
    """Raise ConfigError for a dtype that safetensors does not have."""
    if tensor.dtype not in _NAMES:
        raise ConfigError(
            name, f"{tensor.dtype} has no safetensors type", "save it as another dtype, e.g. view_as_real"
        )


def write_tensors(url: str, name: str, tensors: dict[str, torch.Tensor]) -> FileEntry:
    """Write CPU tensors as `name` under `url`, durable when this returns. Raises OSError naming the file."""
    # widest types first, so that every tensor starts at a multiple of its element size
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header, position = {}, 0
    for entry, tensor in ordered:
        end = position + tensor.numel() * tensor.element_size()
        header[entry] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGN)
    place = join(url, name)
    digest, total = hashlib.sha256(), 0
    try:
        with writing(place) as file:
            for part in (
                len(text).to_bytes(8, "little"),
                text,
                *(_bytes_of(tensor) for _, tensor in ordered),
            ):
                view = memoryview(part)
                for start in range(0, len(view), BLOCK):
                    digest.update(view[start : start + BLOCK])
                    file.write(view[start : start + BLOCK])
                total += len(view)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), place) from error
    return FileEntry(path=name, bytes=total, sha256=digest.hexdigest())


def read_tensors(url: str, entry: FileEntry) -> dict[str, torch.Tensor]:
    """The tensors of a file of the checkpoint at `url`; the hashed bytes are the ones parsed.

    Raises DamageError when size or digest do not match.
    """
    place = join(url, entry.path)
    data = read_file(place)
    if len(data) != entry.bytes:
        raise DamageError(f"{place}: {len(data)} bytes, its record says {entry.bytes}")
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise DamageError(f"{place}: content does not match its digest")
    return safetensors.torch.load(data)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    flat = tensor.contiguous().reshape(-1)
    return memoryview(cast(Any, flat.view(torch.uint8).numpy())) if flat.numel() else memoryview(b"")
