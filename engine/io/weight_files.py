"""The files of a model's weights: model.safetensors, or for large models shards with an index of every
tensor's shard, as in transformers. Torch-free.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence

from atelier.engine.config.base import Json
from atelier.engine.config.error import DamageError, DataError, printable
from atelier.engine.config.record import FileEntry
from atelier.engine.io.tensorfile import TensorEntry, in_file_order

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
METADATA = {"format": "pt"}  # of a weights file
AGAIN = "the model has to be written again"  # the way out of a model that was written wrong
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


def shard_name(number: int, count: int) -> str:
    """The file of shard `number`, counted from 1."""
    return f"model-{number:05d}-of-{count:05d}.safetensors"


def plan_files(entries: Iterable[TensorEntry], most: int) -> dict[str, list[TensorEntry]]:
    """The tensors of each file, in file order: one file, or shards of at most `most` bytes; a larger tensor
    gets its own shard.
    """
    shards: list[list[TensorEntry]] = [[]]
    filled = 0
    for entry in in_file_order(entries):
        if shards[-1] and filled + entry.num_bytes > most:
            shards.append([])
            filled = 0
        shards[-1].append(entry)
        filled += entry.num_bytes
    if len(shards) == 1:
        return {WEIGHTS: shards[0]}
    return {shard_name(number, len(shards)): shard for number, shard in enumerate(shards, 1)}


def index_of(files: Mapping[str, Sequence[TensorEntry]]) -> bytes:
    """The bytes of the index of these shards."""
    owners = {entry.name: file for file, entries in files.items() for entry in entries}
    size = sum(entry.num_bytes for entries in files.values() for entry in entries)
    index = {"metadata": {"total_size": size}, "weight_map": owners}
    return (json.dumps(index, indent=2, sort_keys=True) + "\n").encode()


def read_index(index: Mapping[str, Json], known: Iterable[str], place: str) -> dict[str, set[str]]:
    """The tensor names of each shard. `known`: the existing files.

    Raises DataError for a document that is not an index, for a shard outside the model's folder, and for a
    missing one.
    """
    owners, there = index.get("weight_map"), set(known)
    if not isinstance(owners, dict) or not owners:
        raise DataError(f"{place}: weight_map is {_short(owners)}, not an object of tensor: shard; {AGAIN}")
    shards: dict[str, set[str]] = {}
    for name, shard in owners.items():
        where = f"{place}: weight_map.{_short(name)}"
        if not isinstance(shard, str):
            raise DataError(f"{where} is {_short(shard)}, not the name of a file; {AGAIN}")
        if "/" in shard or "\\" in shard or shard in ("", ".", ".."):
            raise DataError(f"{where} is {_short(shard)}, which is outside the model's folder; {AGAIN}")
        if shard not in there:
            raise DataError(f"{where} is {_short(shard)}, a file that the model does not have; {AGAIN}")
        shards.setdefault(shard, set()).add(name)
    return shards


def check_shard(found: Iterable[str], wanted: Iterable[str], shard: str, place: str) -> None:
    """Raise DataError unless a shard holds exactly the tensors in the index."""
    found, wanted = set(found), set(wanted)
    if found == wanted:
        return
    faults = [f"no {_short(name)}" for name in sorted(wanted - found)]
    faults += [f"{_short(name)}, which is not in the index" for name in sorted(found - wanted)]
    many = f" ({len(faults)} differences in all)" if len(faults) > 1 else ""
    raise DataError(f"{place}: {shard} holds {faults[0]}{many}; {AGAIN}")


def weights_digest(files: Iterable[FileEntry], place: str) -> str:
    """The digest of a model's weights: the sha256 of one file; for shards the sha256 of their sorted lines
    `name sha256`. `files`: the model's, in any folder.

    Raises DamageError if there are none.
    """
    digests = {entry.path.rsplit("/", 1)[-1]: entry.sha256 for entry in files}
    if WEIGHTS in digests:
        return digests[WEIGHTS]
    shards = sorted(name for name in digests if _SHARD.fullmatch(name))
    if not shards:
        raise DamageError(f"{place}: a model without {WEIGHTS} and without shards")
    lines = "".join(f"{name} {digests[name]}\n" for name in shards)
    return hashlib.sha256(lines.encode()).hexdigest()


def _short(value: Json) -> str:
    return printable(value if isinstance(value, str) else repr(value), 80)
