"""Load a checkpoint into a state's tensors, in any layout. Nothing is parsed before its digest is verified.

torch.distributed.checkpoint's planner finds which saved chunks overlap which local shards.
"""

from collections import defaultdict
from typing import Any, cast

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import ReadItem

from atelier.engine.checkpoint.collective_call import RankGroup, all_or_none, check_gang, nothing
from atelier.engine.checkpoint.folder import step_of
from atelier.engine.checkpoint.manifest import MANIFEST, Chunk, Manifest, key, read_manifest
from atelier.engine.checkpoint.state import Nested, State, nested, tensors_of
from atelier.engine.checkpoint.tensorfile import read_tensors
from atelier.engine.checkpoint.writer import drain
from atelier.engine.config.error import ConfigError, DamageError, nearest
from atelier.engine.io.storage import join


def load(url: str, state: State, *, step: int, trajectory: str, gang: RankGroup) -> Nested:
    """Fill the tensors of `state` from the checkpoint at `url`; return its Python values, nested.

    Every rank calls it; the layout may differ from the saving one. The state's own Python values are ignored;
    tensors that only the checkpoint has are not read. DamageError names a file that is damaged or of another
    step or trajectory. ConfigError names a tensor that the checkpoint lacks or has with another shape or
    dtype, before any tensor changes. After a DamageError in a data file the tensors are partly filled: load
    another checkpoint.
    """
    check_gang(gang)
    drain()  # a save under way uses the gang's group
    reading = _Reading(url, state, step, trajectory)
    all_or_none(gang, reading.plan, nothing)
    all_or_none(gang, reading.fill, nothing)
    return nested(reading.manifest.values)


def load_full(url: str, prefix: str = "") -> dict[str, torch.Tensor]:
    """All tensors of the checkpoint at `url` whose names begin with `prefix`, whole, on the CPU, by dotted
    name. Raises DamageError naming a damaged file.
    """
    manifest = read_manifest(url, step=step_of(url))
    pieces: defaultdict[int, list[tuple[str, Chunk]]] = defaultdict(list)
    result: dict[str, torch.Tensor] = {}
    for name, stored in manifest.tensors.items():
        if not name.startswith(prefix):
            continue
        result[name] = torch.empty(stored.shape, dtype=getattr(torch, stored.dtype))
        for chunk in stored.chunks:
            pieces[chunk.file].append((name, chunk))
    for number in sorted(pieces):
        file = read_tensors(url, manifest.files[number])
        for name, chunk in pieces[number]:
            _narrow(result[name], chunk.offset, chunk.shape).copy_(_piece(url, manifest, file, name, chunk))
    return result


class _Reading:
    """The two steps of a load on one rank: `plan` changes nothing, `fill` copies into the tensors."""

    manifest: Manifest

    def __init__(self, url: str, state: State, step: int, trajectory: str) -> None:
        self.url, self.state, self.step, self.trajectory = url, state, step, trajectory
        self.planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.items: list[ReadItem] = []

    def plan(self) -> None:
        if step_of(self.url) != self.step:
            raise ConfigError(
                self.url,
                f"is not the address of step {self.step}",
                "use atelier.engine.checkpoint.folder.address",
            )
        self.manifest = read_manifest(self.url, step=self.step, trajectory=self.trajectory)
        tensors = tensors_of(self.state)
        for name, tensor in tensors.items():
            self._check(name, tensor)
        self.planner.set_up_planner(cast(Any, tensors), self.manifest.metadata())
        self.items = self.planner.create_local_plan().items

    def fill(self) -> None:
        """Read and verify each file that this rank needs once, and copy its chunks into the tensors."""
        wanted: defaultdict[int, list[tuple[ReadItem, Chunk]]] = defaultdict(list)
        for item in self.items:
            chunk = self._chunk(item)
            wanted[chunk.file].append((item, chunk))
        for number in sorted(wanted):
            file = read_tensors(self.url, self.manifest.files[number])
            for item, chunk in wanted[number]:
                piece = _piece(self.url, self.manifest, file, item.storage_index.fqn, chunk)
                source = _narrow(piece, item.storage_offsets, item.lengths)
                target = self.planner.resolve_tensor(item).detach()
                target.copy_(source)
                self.planner.commit_tensor(item, target)

    def _chunk(self, item: ReadItem) -> Chunk:
        stored = self.manifest.tensors[item.storage_index.fqn]
        offset = tuple(item.storage_index.offset or ())
        return next(chunk for chunk in stored.chunks if chunk.offset == offset)

    def _check(self, name: str, tensor: torch.Tensor) -> None:
        place = join(self.url, MANIFEST)
        stored = self.manifest.tensors.get(name)
        if stored is None:
            near = nearest(name, self.manifest.tensors)
            raise ConfigError(place, f"has no tensor {name}", f"the nearest name is {near}" if near else "")
        if stored.shape != tuple(tensor.shape):
            raise ConfigError(
                place,
                f"{name} has shape {stored.shape}, the state's has {tuple(tensor.shape)}",
                "build the model that was saved",
            )
        dtype = str(tensor.dtype).removeprefix("torch.")
        if stored.dtype != dtype:
            raise ConfigError(
                place,
                f"{name} is {stored.dtype}, the state's is {dtype}",
                "load in the precision it was saved in",
            )
        if tensor.is_meta:
            raise ConfigError(name, "is on the meta device", "give the model memory before loading into it")


def _piece(
    url: str, manifest: Manifest, file: dict[str, torch.Tensor], name: str, chunk: Chunk
) -> torch.Tensor:
    """The tensor of a parsed file that holds `chunk`. Raises DamageError if it does not match the
    manifest.
    """
    place = join(url, manifest.files[chunk.file].path)
    stored = manifest.tensors[name]
    found = file.get(key(name, chunk.offset, chunk.shape, stored.shape))
    if found is None or tuple(found.shape) != chunk.shape or found.dtype != getattr(torch, stored.dtype):
        raise DamageError(f"{place}: does not hold {name} at {chunk.offset}, where the manifest has it")
    return found


def _narrow(tensor: torch.Tensor, offset: tuple[int, ...], shape: tuple[int, ...]) -> torch.Tensor:
    for dim, (start, length) in enumerate(zip(offset, shape, strict=True)):
        tensor = tensor.narrow(dim, start, length)
    return tensor
