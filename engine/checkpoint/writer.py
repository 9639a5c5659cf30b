"""Save a state while training continues: copy it, then write the copy in the background.

torch.distributed.checkpoint plans which rank writes which shard, replicas once. Its driver and writers are
not used: they pickle metadata and non-tensor values, warn on every save without a process group, and wrap
errors in their own types.
"""

import mmap
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

import numpy as np
import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import STORAGE_TYPES, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

from atelier.engine.checkpoint.collective_call import RankGroup, all_or_none, check_gang
from atelier.engine.checkpoint.commit import Commit
from atelier.engine.checkpoint.folder import step_of
from atelier.engine.checkpoint.manifest import Chunk, Manifest, StoredTensor, key
from atelier.engine.checkpoint.state import State, Value, merged, tensors_of, values_of
from atelier.engine.checkpoint.tensorfile import write_tensors
from atelier.engine.config.error import ConfigError
from atelier.engine.config.record import FileEntry
from atelier.engine.model.weights import entry_of

# Files are verified and parsed in memory, so this limits a load's extra memory.
FILE_BYTES = 256 << 20
_ALIGN = 64  # bytes

# One thread: saves run in call order, which is equal on every rank, and only one at a time uses the gang's
# group.
_writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")

Box = tuple[str, tuple[int, ...]]


class About(TypedDict, total=False):
    """Manifest fields that the caller knows."""

    codes: tuple[str, ...]
    libraries: tuple[str, ...]
    computed: str
    held_out: str


class Pending:
    """A save under way. `blocked_s`: seconds that the copy blocked the caller."""

    def __init__(self, future: "Future[float]", blocked_s: float) -> None:
        self._future, self.blocked_s = future, blocked_s

    def done(self) -> bool:
        """Whether it has ended, successfully or not."""
        return self._future.done()

    def wait(self) -> None:
        """Wait until the checkpoint is durable. Raises the error of a failed save, the same on every rank."""
        self._future.result()

    @property
    def write_s(self) -> float:
        """Seconds from the start of writing to the commit; 0.0 until it succeeded."""
        return self._future.result() if self.done() and self._future.exception() is None else 0.0


def save_async(
    url: str,
    state: State,
    *,
    step: int,
    trajectory: str,
    gang: RankGroup,
    spill: Path | None = None,
    **about: Unpack[About],
) -> Pending:
    """Save `state` at `url` (.../step-00000100) in the background; every rank calls it, in the same order.
    `about`: further manifest fields; `spill`: a folder for the copy of a state that does not fit in memory.

    After the return, `state` may change: the save uses a copy. The copy exists until the save ends, so wait
    for a trajectory's last save before the next. `state` is a nested dict of tensors, DTensors and Python
    values (int, float, str, bool, None, lists and tuples of them) that are equal on all ranks or named
    `rank.<r>.*`. Raises ConfigError for an address of another step. `wait()` raises ConfigError for values
    that cannot be saved exactly and OSError for a full disk or I/O error; then nothing of this attempt is
    left and earlier checkpoints are unchanged.
    """
    started = time.perf_counter()
    check_gang(gang)
    if step_of(url) != step:
        raise ConfigError(
            url, f"is not the address of step {step}", "use atelier.engine.checkpoint.folder.address"
        )
    save = _Save(url, step, trajectory, gang, about)
    save.copy(state, spill)
    return Pending(_writer.submit(save.run), time.perf_counter() - started)


def drain() -> None:
    """Wait until no save of this process is under way; errors stay with their Pending."""
    _writer.submit(int).result()


def _planner() -> DefaultSavePlanner:
    return DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)


def _copies(planner: DefaultSavePlanner, plan: SavePlan, spill: Path | None) -> dict[Box, torch.Tensor]:
    """This rank's shards of all tensors, copied to CPU memory or to a file in `spill`."""
    sources = {_box(item): cast(torch.Tensor, planner.resolve_data(item)).detach() for item in plan.items}
    starts = list(
        accumulate((-(-source.nbytes // _ALIGN) * _ALIGN for source in sources.values()), initial=0)
    )
    on_device = any(source.is_cuda for source in sources.values())
    arena = _on_disk(starts[-1], spill) if spill and starts[-1] else _in_memory(starts[-1], on_device)
    copies: dict[Box, torch.Tensor] = {}
    for (box, source), start in zip(sources.items(), starts, strict=False):
        place = arena[start : start + source.nbytes].view(source.dtype).view(source.shape)
        copies[box] = place.copy_(source, non_blocking=on_device)
    if on_device:
        torch.cuda.synchronize()
    return copies


def _in_memory(size: int, on_device: bool) -> torch.Tensor:
    if on_device:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    # numpy uses huge pages, torch does not: page faults take most of a copy's time
    return torch.from_numpy(np.empty(size, np.uint8))


def _on_disk(size: int, folder: Path) -> torch.Tensor:
    """Bytes of an unnamed file, which is removed with its last tensor."""
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, size)  # a full disk raises now instead of a signal later
        return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=torch.uint8)


class _Save:
    """One save: `copy` in the caller's thread, `run` in the writer's."""

    def __init__(self, url: str, step: int, trajectory: str, gang: RankGroup, about: About) -> None:
        self.url, self.step, self.trajectory, self.gang, self.about = url, step, trajectory, gang, about
        self.plan = SavePlan([])
        self.values: list[Value] = []
        self.copies: dict[Box, torch.Tensor] = {}
        self.refused: Exception | None = None
        self.commit: Commit | None = None  # this and the following: rank 0 only
        self.described = Metadata({})

    def copy(self, state: State, spill: Path | None) -> None:
        """Copy this rank's part of `state`; an error is kept until `run`, where all ranks receive it."""
        try:
            tensors = tensors_of(state)
            self.values = values_of(state, self.gang.rank)
            for name, tensor in tensors.items():
                entry_of(name, tensor.shape, tensor.dtype)  # refuses a type that cannot be written
            planner = _planner()
            planner.set_up_planner(cast(Any, tensors), is_coordinator=self.gang.rank == 0)
            self.plan = planner.create_local_plan()
            self.copies = _copies(planner, self.plan, spill)
        except Exception as error:
            self.refused = error

    def run(self) -> float:
        """Plan collectively, write this rank's files, commit on rank 0; returns the seconds taken."""
        started = time.perf_counter()
        try:
            place, attempt, plan = all_or_none(self.gang, self._offer, self._begin)
            all_or_none(self.gang, lambda: self._write(place, attempt, plan), self._finish)
        except BaseException:
            if self.commit is not None:
                with suppress(OSError):  # raise the original error
                    self.commit.discard()
            raise
        finally:
            self.copies.clear()
        return time.perf_counter() - started

    def _offer(self) -> tuple[SavePlan, list[Value]]:
        if self.refused is not None:
            raise self.refused
        return self.plan, self.values

    def _begin(self, found: list[tuple[SavePlan, list[Value]]]) -> list[tuple[str, str, SavePlan]]:
        self.values = merged([values for _, values in found])
        plans, self.described = _planner().create_global_plan([plan for plan, _ in found])
        self.commit = Commit(self.url)
        self.commit.begin()
        return [(self.commit.place, self.commit.attempt, plan) for plan in plans]

    def _write(self, place: str, attempt: str, plan: SavePlan) -> list[tuple[FileEntry, list[Box]]]:
        written = []
        for number, items in enumerate(_groups(plan.items)):
            tensors = {_key(item): self.copies[_box(item)] for item in items}
            name = f"rank-{self.gang.rank:04d}-{number:03d}-{attempt}.safetensors"
            written.append((write_tensors(place, name, tensors), [_box(item) for item in items]))
        return written

    def _finish(self, found: list[list[tuple[FileEntry, list[Box]]]]) -> list[None]:
        written = [pair for part in found for pair in part]
        file_of = {box: number for number, (_, boxes) in enumerate(written) for box in boxes}
        manifest = Manifest(
            schema=1,
            step=self.step,
            trajectory=self.trajectory,
            world=self.gang.world,
            **self.about,
            files=tuple(entry for entry, _ in written),
            tensors={
                name: _stored(name, meta, file_of)
                for name, meta in sorted(self.described.state_dict_metadata.items())
            },
            values=self.values,
        )
        cast(Commit, self.commit).finish(manifest)
        return [None] * self.gang.world


def _stored(name: str, meta: STORAGE_TYPES, file_of: dict[Box, int]) -> StoredTensor:
    tensor = cast(TensorStorageMetadata, meta)
    return StoredTensor(
        dtype=str(tensor.properties.dtype).removeprefix("torch."),
        shape=tuple(tensor.size),
        chunks=tuple(
            Chunk(
                file=file_of[name, tuple(chunk.offsets)],
                offset=tuple(chunk.offsets),
                shape=tuple(chunk.sizes),
            )
            for chunk in tensor.chunks
        ),
    )


def _box(item: WriteItem) -> Box:
    return item.index.fqn, tuple(item.index.offset or ())


def _key(item: WriteItem) -> str:
    data = cast(Any, item.tensor_data)
    return key(item.index.fqn, _box(item)[1], data.chunk.sizes, data.size)


def _groups(items: list[WriteItem]) -> Iterator[list[WriteItem]]:
    """Group items into files of at most FILE_BYTES; a larger tensor gets its own file."""
    files: defaultdict[int, list[WriteItem]] = defaultdict(list)
    number, filled = 0, 0
    for item in sorted(items, key=_box):
        size = item.tensor_storage_size() or 0
        if files[number] and filled + size > FILE_BYTES:
            number, filled = number + 1, 0
        files[number].append(item)
        filled += size
    yield from (group for group in files.values() if group)
