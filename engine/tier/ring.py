"""Ring-memory inference (SE-MoE, 2205.10034, section 3.2) for models larger than memory: blocks and experts
stay in the model's files and are read into a few buffers just before they compute, while others compute.
Results have the same bits as in memory.

X experts of a mixture, P tokens sorted by expert, D hidden
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from atelier.engine.config.base import Json
from atelier.engine.config.registry import ModelSpec
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.model.contract import Carried, Model, Output, Relations, blocks_of, stored
from atelier.engine.model.expert_mlp import dtype_of, one_expert
from atelier.engine.model.load import blank, build, read_model, read_weights
from atelier.engine.model.moe import ExpertWeights
from atelier.engine.model.placement import local
from atelier.engine.model.weights import StoredWeights
from atelier.engine.plan.streamed import LINE, STREAM, TOGETHER, Shares, divided, least_of, too_little
from atelier.engine.tier.buffers import Buffers, TransferThreads, plain_memory
from atelier.engine.tier.copies import copies_to
from atelier.engine.tier.on_device import DeviceBuffers
from atelier.engine.tier.pieces import FileSpan, StoredUnits
from atelier.engine.tier.policy import LeastRecentlyUsed

RING = "ring"  # attribute of a streamed model


class Piece(NamedTuple):
    """A weight of a unit: its module, its name there, and its numbers in the unit's buffer."""

    owner: nn.Module
    leaf: str
    shape: torch.Size
    begin: int

    def of(self, buffer: Tensor) -> Tensor:
        return buffer[self.begin : self.begin + self.shape.numel()].view(self.shape)


class Unit(NamedTuple):
    """Weights that are loaded together: a block's without its experts', or one expert's."""

    pieces: list[Piece]
    sources: list[FileSpan]
    floats: int

    def install(self, buffer: Tensor) -> None:
        for piece in self.pieces:
            put(piece.owner, piece.leaf, piece.of(buffer))


def read_model_within(
    source: ArtifactInput,
    scratch: Path,
    memory: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    place: str = "--memory",
) -> tuple[Model, ModelSpec]:
    """The model of an artifact for inference, and its spec, with at most `memory` bytes of weights in memory
    at once (all if they fit, or if 0). Raises ConfigError at `place` if two blocks and two experts do not
    fit; otherwise as `read_model`.
    """
    if not memory:
        return read_model(source, scratch, device=device, dtype=dtype)
    files, spec = read_weights(source, scratch)
    with blank():
        model = build(spec)
    if sum(weight.numel() for _, weight in stored(model)) * dtype.itemsize <= memory:
        return read_model(source, scratch, device=device, dtype=dtype)
    Ring(model, files, memory, device=device, dtype=dtype, place=place)
    return model, spec


def ring_of(model: nn.Module) -> "Ring | None":
    """The ring that streams the model; None if all of it is in memory."""
    found = model.__dict__.get(RING)
    return found if isinstance(found, Ring) else None


def outputs_of(model: Model, batches: Iterable[dict[str, Tensor]]) -> Iterator[Output]:
    """The model's outputs for these batches, one after another; for a streamed model several batches at
    once.
    """
    ring = ring_of(model)
    if ring is None:
        yield from (model(batch) for batch in batches)
        return
    waiting: list[dict[str, Tensor]] = []
    held = 0
    for batch in batches:
        waiting.append(batch)
        rows, tokens = batch["tokens_BT"].shape
        held += rows * tokens * (model.spec.hidden * ring.dtype.itemsize + tokens)
        if held >= TOGETHER:
            yield from ring.outputs(waiting)
            waiting, held = [], 0
    if waiting:
        yield from ring.outputs(waiting)


class Ring:
    """The blocks and experts of a model on the meta device. Before a block computes, its weights become views
    of a buffer and the next block is requested. A mixture requests the experts of its tokens once the router
    has chosen: first those in memory, then those with most tokens.

    `is_mapped`: give the bits of `read_model`, which maps files; otherwise of weights in their own memory.
    `rank`: index among the ranks that split experts equally.
    """

    def __init__(
        self,
        model: Model,
        files: StoredWeights,
        memory: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        place: str,
        is_mapped: bool = True,
        rank: int = 0,
    ) -> None:
        self.model, self.files, self.device, self.dtype, self.place = model, files, device, dtype, place
        self.is_mapped, self.rank = is_mapped, rank
        model.__dict__[RING] = self  # it lives as long as the model
        self.names = {module: path for path, module in model.named_modules()}
        blocks = blocks_of(model)
        mixtures = [module for module in model.modules() if isinstance(module, ExpertWeights)]
        self.blocks = [self._unit(m for m in block.modules() if m not in mixtures) for block in blocks]
        numbers = [(mixture, n) for mixture in mixtures for n in range(len(local(mixture.weights()[0])))]
        self.experts = [self._expert(mixture, number) for mixture, number in numbers]
        inside = {module for block in blocks for module in block.modules()}
        rest = self._unit(module for module in model.modules() if module not in inside)
        self.shares = self._divided(memory, rest)
        self.worker, self.copies = TransferThreads(), copies_to(device)
        self._stay([rest, *self.blocks[: self.shares.stay]])
        self.block_buffers = self._buffers(self.blocks, self.shares.blocks)
        self.expert_buffers = self._buffers(self.experts, self.shares.experts)
        self.after = {number: number + 1 for number in range(self.shares.stay, len(blocks) - 1)}
        self.last = len(blocks) - 1
        self.num_met = 0  # experts with tokens, over all passes of mixtures
        self._inside: set[int] = set()  # blocks that compute
        self.after[self.last] = self.shares.stay
        for number, block in enumerate(blocks[self.shares.stay :], self.shares.stay):
            block.register_forward_pre_hook(partial(self._enter, number))
            block.register_forward_hook(partial(self._leave, number), always_call=True)
        for mixture in mixtures:
            mixture.reads_counts = True
            mixture.compute = partial(self._mixture, mixture, numbers.index((mixture, 0)))

    def _unit(self, modules: Iterable[nn.Module]) -> Unit:
        """The weights that these modules hold themselves."""
        pieces: list[Piece] = []
        sources: list[FileSpan] = []
        end = 0
        for module in modules:
            for leaf, weight in stored_by(module):
                source = self._source(f"{self.names[module]}.{leaf}".lstrip("."), end)
                pieces.append(Piece(module, leaf, weight.shape, source.into))
                sources.append(source)
                end = source.into + source.count
        return Unit(pieces, sources, self._up(end))

    def _expert(self, mixture: ExpertWeights, number: int) -> Unit:
        pieces: list[Piece] = []
        sources: list[FileSpan] = []
        end = 0
        for leaf, weights in mixture.named_parameters(recurse=False):
            first = self.rank * len(local(weights))
            source = self._source(f"{self.names[mixture]}.{leaf}", end, row=number, first=first)
            pieces.append(Piece(mixture, leaf, weights.shape[1:], source.into))
            sources.append(source)
            end = source.into + source.count
        return Unit(pieces, sources, self._up(end))

    def _source(self, name: str, after: int, row: int | None = None, first: int = 0) -> FileSpan:
        """A stored weight, or a row of it counted from `first`, placed after `after` numbers of a buffer,
        with the same offset in a cache line as in memory.
        """
        path, offset, shape, dtype = self.files.place(name)
        count = math.prod(shape if row is None else shape[1:])
        within = (row or 0) * count
        if self.is_mapped and dtype == self.dtype:
            within += offset % LINE // dtype.itemsize
        begin = offset + ((row or 0) + first) * count * dtype.itemsize
        return FileSpan(path, begin, count, dtype, self._up(after) + within % self._line)

    def _up(self, floats: int) -> int:
        """The number rounded up to whole cache lines, if required."""
        return -(-floats // self._line) * self._line

    @property
    def _line(self) -> int:
        return LINE // self.dtype.itemsize

    def _divided(self, memory: int, rest: Unit) -> Shares:
        """Raises ConfigError if there is too little memory."""
        size = self.dtype.itemsize
        blocks = [unit.floats * size for unit in self.blocks]
        expert = max((unit.floats for unit in self.experts), default=0) * size
        shares = divided(memory, rest.floats * size, blocks, expert, len(self.experts))
        if shares is None:
            least = least_of(rest.floats * size, blocks, expert)
            raise too_little(self.place, memory / 1e9, "the model", least)
        return shares

    def _stay(self, units: Sequence[Unit]) -> None:
        """Load units into memory permanently."""
        files = StoredUnits([unit.sources for unit in units])
        for number, unit in enumerate(units):
            buffer = torch.empty(unit.floats, dtype=self.dtype, device=self.device)
            files.read(number, buffer)
            unit.install(buffer)

    def _buffers(self, units: Sequence[Unit], size: int) -> Buffers | DeviceBuffers:
        """`size` buffers on the device; in front of a device's a few in host memory."""
        copies = self.copies
        host = Buffers(
            StoredUnits([unit.sources for unit in units]),
            size if copies is None else min(size, 2 * STREAM),
            LeastRecentlyUsed(),
            self.worker,
            floats=max((unit.floats for unit in units), default=0) if size else 0,
            dtype=self.dtype,
            memory=plain_memory if copies is None else copies.on_host,
        )
        return host if copies is None else DeviceBuffers(host, size, copies)

    @property
    def bytes_read(self) -> int:
        """Bytes read by the buffers so far."""
        found = (buffers.backing for buffers in (self.block_buffers, self.expert_buffers))
        return sum(one.bytes_read for one in found if isinstance(one, StoredUnits))

    def counts(self) -> dict[str, Json]:
        """Peak memory and loads of units."""
        blocks, experts = self.block_buffers, self.expert_buffers
        return {
            "blocks": len(self.blocks),
            "blocks_in_memory": self.shares.stay + blocks.most,
            "experts": len(self.experts),
            "experts_in_memory": experts.most,
            "experts_met": self.num_met,
            "experts_read": experts.misses,
            "read_bytes": self.bytes_read,
            "waited_s": round(blocks.waited_s + experts.waited_s, 3),
        }

    def read_all(self) -> None:
        """Read every block and expert that is not resident once, as a pass without computation does."""
        asked = [(self.block_buffers, range(self.shares.stay, len(self.blocks)))]
        asked += [(self.expert_buffers, range(len(self.experts)))]
        for buffers, units in asked:
            for unit in units:
                buffers.take(unit)
                buffers.ask_all(units[unit - units.start + 1 :][:1])
                buffers.give(unit)

    # during a forward pass

    def outputs(self, batches: Sequence[dict[str, Tensor]]) -> Iterator[Output]:
        """The model's outputs for several batches, each as if alone: every block computes all of them before
        the next, so it is read once.
        """
        model, blocks = self.model, self.model.blocks
        shared = [model.shared(batch) for batch in batches]
        carried: list[Carried] = [model.begin(batch) for batch in batches]
        relations: list[Relations | None] = [None] * len(batches)
        try:
            for name, block in blocks.named_children():
                model.blocks = nn.ModuleList()
                model.blocks.add_module(name, block)
                for place, (some, others) in enumerate(zip(carried, shared, strict=True)):
                    carried[place], relations[place] = model.through(some, others)
        finally:
            model.blocks = blocks
        for some, others, last in zip(carried, shared, relations, strict=True):
            yield model.leave(some, others, last)

    def _enter(self, number: int, block: nn.Module, given: tuple[Any, ...]) -> None:  # as torch calls a hook
        if number != self.last:  # only computed blocks, in a model with branches
            self.after[self.last] = number
        self.last = number
        self.blocks[number].install(self.block_buffers.take(number))
        self._inside.add(number)
        self.block_buffers.ask(self.after.get(number, number))

    def _leave(self, number: int, block: nn.Module, given: tuple[Any, ...], result: object) -> None:
        if number in self._inside:  # otherwise entering it failed
            self._inside.discard(number)
            self.block_buffers.give(number)

    def _mixture(self, mixture: ExpertWeights, first: int, x_PD: Tensor, counts_X: list[int]) -> Tensor:
        """`ExpertWeights.compute` of a mixture whose first expert is unit `first`."""
        buffers, found = self.expert_buffers, list(x_PD.to(dtype_of(x_PD)).split(counts_X))
        met = [expert for expert, count in enumerate(counts_X) if count]
        self.num_met += len(met)
        met.sort(key=lambda expert: (first + expert not in buffers, -counts_X[expert], expert))
        asked = 0
        for done, expert in enumerate(met):
            asked = max(asked, done)
            asked += buffers.ask_all(first + other for other in met[asked:])
            with buffers.held(first + expert) as buffer:
                weights = tuple(piece.of(buffer) for piece in self.experts[first + expert].pieces)
                found[expert] = one_expert(found[expert], weights, mixture.activation)
        return torch.cat(found)


def stored_by(module: nn.Module) -> list[tuple[str, Tensor]]:
    """The weights that a module holds itself, as in an artifact."""
    own = list(module.named_parameters(recurse=False))
    kept = [
        each
        for each in module.named_buffers(recurse=False)
        if each[0] not in module._non_persistent_buffers_set
    ]
    return own + kept


def put(owner: nn.Module, leaf: str, weight: Tensor) -> None:
    """Set a parameter or buffer of a module to a tensor, without copy."""
    if leaf in owner._parameters:
        owner._parameters[leaf] = nn.Parameter(weight, requires_grad=False)
    else:
        owner._buffers[leaf] = weight
