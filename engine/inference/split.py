"""Inference with a model split over the ranks of a gang. Rank 0 calls it as if it were in one process, and
sends each forward pass to the other ranks.

Blocks are split over the pipeline axis, matrices over tensor, experts over expert; over shard, weights are
gathered block by block. Passes that are sent together are shared among the data ranks (replicate x shard x
expert); the pipeline and tensor ranks of a data rank compute each of its passes together.

B rows, T tokens, D hidden, V vocabulary
"""

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from atelier.engine.config.parallel import InferenceLayout
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.row_classes import RowClasses
from atelier.engine.inference.models import Batch, GangCommand, GangModel, Pass
from atelier.engine.inference.opened import bare, filled
from atelier.engine.inference.sampling import exact, last_logits
from atelier.engine.inference.scoring import class_logits_of, scores_of
from atelier.engine.model.attention import Cache
from atelier.engine.model.contract import Carried, Model, blocks_of
from atelier.engine.model.load import blank, build
from atelier.engine.model.placement import local
from atelier.engine.parallel.expert import split_experts
from atelier.engine.parallel.gang import Gang
from atelier.engine.parallel.grid import Grid
from atelier.engine.parallel.pipeline import keep_stage
from atelier.engine.parallel.shard import shard
from atelier.engine.parallel.tensor import split_matrices
from atelier.engine.plan.inference import stage_blocks
from atelier.engine.plan.layout_checks import check_inference

PATIENCE = timedelta(days=10_000)
HEADER = 6  # numbers that describe a tensor between stages: its type, its dims, their sizes
TYPES = (torch.float32, torch.float64, torch.bfloat16)


class RankPart(nn.Module):
    """One rank's part of a model, the root of its sharding: `work` runs with the root's weights."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Tensor | None]) -> Tensor | None:
        return work()


class SplitCache(Cache):
    """Rank 0's handle of a batch's caches: the data ranks hold them, each those of some rows. `numbers` name
    them.
    """

    def __init__(self, numbers: list[int], room: int, token_bytes: int) -> None:
        nothing = torch.zeros((0, 0))
        super().__init__([], nothing, nothing, token_bytes=token_bytes)
        self.numbers, self.room = numbers, room


class SplitModel(GangModel):
    """This rank's part of a model. Rank 0 sends forward passes to all; the others `follow` until it stops."""

    def __init__(self, model: Model, spec: ModelSpec, grid: Grid, dtype: torch.dtype) -> None:
        self.spec, self._model, self._grid, self._dtype = spec, model, grid, dtype
        self._talk = _talk()
        self._part = RankPart(model)
        shard(self._part, blocks_of(model), grid=grid, zero=3, precision="fp32")
        with blank():
            self._token_bytes = build(spec).new_cache(1, 1, dtype).token_bytes
        self._caches: dict[int, Cache] = {}
        self._numbers = itertools.count(1)
        self._dropped: list[int] = []
        self._is_busy = False

    @property
    def device(self) -> torch.device:
        return self._grid.gang.device

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def token_bytes(self) -> int:
        return self._token_bytes

    def new_cache(self, batch_size: int, max_len: int, dtype: torch.dtype) -> Cache:
        parts = min(batch_size, self._grid.axes.data)
        numbers = list(itertools.islice(self._numbers, parts))
        cache = SplitCache(numbers, max_len, self._token_bytes)
        weakref.finalize(cache, self._dropped.extend, numbers)
        return cache

    def logits(self, passes: Sequence[tuple[Batch, Cache]]) -> list[Tensor]:
        asked, sizes = [], []
        for batch, cache in passes:
            assert isinstance(cache, SplitCache)  # one of `new_cache`
            parts = {name: values.tensor_split(len(cache.numbers)) for name, values in batch.items()}
            sizes.append(len(cache.numbers))
            for place, number in enumerate(cache.numbers):
                rows = {name: some[place] for name, some in parts.items()}
                asked.append(Pass(rows, number % self._grid.axes.data, number, cache.room))
        found = iter(self._ask(GangCommand("logits", asked)))
        return [torch.cat(list(itertools.islice(found, size))) for size in sizes]

    def label_scores(
        self, batches: Iterable[Batch], columns: int, *, finds_best: bool
    ) -> Iterator[tuple[Tensor, Tensor]]:
        data = self._grid.axes.data
        together = data * self._grid.pipeline  # so that all ranks compute
        batches = iter(batches)
        while some := list(itertools.islice(batches, together)):
            asked = [Pass(batch, number % data) for number, batch in enumerate(some)]
            for nats_BT, best_BT in self._ask(GangCommand("scores", asked, columns, finds_best)):
                yield nats_BT.cpu(), best_BT.cpu() > 0.5

    def class_logits(self, batch: Batch, spec: RowClasses) -> Tensor:
        (logits_BC,) = self._ask(GangCommand("classes", [Pass(batch, 0)], classes=spec))
        return logits_BC

    def _ask(self, command: GangCommand) -> list[Tensor]:
        placed = [
            one._replace(batch={name: values.to(self.device) for name, values in one.batch.items()})
            for one in command.passes
        ]
        command, self._dropped[:] = command._replace(passes=placed, dropped=[*self._dropped]), []
        self._is_busy = True
        command.send(self._talk)
        found = self._do(command)
        self._is_busy = False
        return found

    def stop(self) -> None:
        """Let the other ranks go on, unless this one failed within a pass, where they wait for it: then the
        end of this process ends theirs.
        """
        if not self._is_busy:
            GangCommand("stop").send(self._talk)

    def follow(self) -> None:
        """Compute what rank 0 sends until it stops."""
        while True:
            self._grid.gang.heartbeat.at("collective")
            command = GangCommand.receive(self._talk, self.device)
            if command.want == "stop":
                return
            self._do(command)

    @torch.inference_mode(False)  # sharding needs plain tensors, and so does a cache that outlives this
    @torch.no_grad()
    def _do(self, command: GangCommand) -> list[Tensor]:
        """The results of all passes, on every rank."""
        for number in command.dropped:
            self._caches.pop(number, None)
        grid = self._grid
        shapes = [self._shape(each, command) for each in command.passes]
        kind = torch.float64 if command.want == "scores" else exact(self.dtype)
        sizes = [torch.Size(shape).numel() for shape in shapes]
        found = torch.zeros(sum(sizes), dtype=kind, device=self.device)
        parts = [each.view(shape) for each, shape in zip(found.split(sizes), shapes, strict=True)]
        mine = [number for number, each in enumerate(command.passes) if each.owner == grid.data_index]
        owners = [each.owner for each in command.passes]
        for turn in range(max(map(owners.count, owners))):
            if turn < len(mine):
                one = command.passes[mine[turn]]
                result = self._computed(one, self._cache(one), command)
                if result is not None and grid.is_counted:
                    parts[mine[turn]].copy_(result)
            elif grid.axes.shard * grid.axes.expert > 1:
                # ranks that gather weights or send tokens to each other's experts compute equally often
                one = command.passes[0]
                self._computed(one, self._empty_cache(one), command)
        dist.all_reduce(found)
        return parts

    def _shape(self, one: Pass, command: GangCommand) -> tuple[int, ...]:
        """The shape of a pass's result."""
        if command.want == "scores":
            return (2, *one.batch["labels_BT"].shape)
        return (one.rows, command.classes.num_classes if command.classes else self.spec.ids)

    def _cache(self, one: Pass) -> Cache | None:
        if one.cache and one.cache not in self._caches:
            self._caches[one.cache] = self._model.new_cache(one.rows, one.room, self.dtype)
        return self._caches.get(one.cache)

    def _empty_cache(self, one: Pass) -> Cache | None:
        return self._model.new_cache(one.rows, one.room, self.dtype) if one.cache else None

    def _computed(self, one: Pass, cache: Cache | None, command: GangCommand) -> Tensor | None:
        """The result of a pass on ranks of the last stage; others send on what they computed."""
        grid, model = self._grid, self._model

        def work() -> Tensor | None:
            shared = model.shared(one.batch, cache)
            carried = model.begin(one.batch) if grid.is_first else self._received()
            carried, relations = model.through(carried, shared, cache)
            if not grid.is_last:
                self._send(carried)
                return None
            hidden_BTD = model.leave(carried, shared, relations, cache).hidden
            head_VD, group = local(model.head_weight), grid.group("tensor")
            if command.classes is not None:
                return class_logits_of(model, command.classes, hidden_BTD, one.batch)
            if command.want == "scores":
                columns, finds_best = command.columns, command.finds_best
                return torch.stack(
                    scores_of(hidden_BTD, one.batch, head_VD, columns, group, finds_best=finds_best)
                )
            return last_logits(hidden_BTD[:, -1], head_VD, self.spec.ids, group)

        return self._part(work)

    def _send(self, carried: Carried) -> None:
        behind = self._grid.places["pipeline"] + 1
        for name in self._passed_on():
            sent = carried[name].contiguous()
            head = [TYPES.index(sent.dtype), sent.dim(), *sent.shape]
            head += [0] * (HEADER - len(head))
            for part in (torch.tensor(head, device=self.device), sent):
                dist.send(part, group=self._grid.pipeline_group, group_dst=behind)

    def _received(self) -> Carried:
        before, carried = self._grid.places["pipeline"] - 1, {}
        for name in self._passed_on():
            head = torch.empty(HEADER, dtype=torch.int64, device=self.device)
            dist.recv(head, group=self._grid.pipeline_group, group_src=before)
            kind, dims, *shape = head.tolist()
            carried[name] = torch.empty(shape[:dims], dtype=TYPES[kind], device=self.device)
            dist.recv(carried[name], group=self._grid.pipeline_group, group_src=before)
        return carried

    def _passed_on(self) -> list[str]:
        return [*self._model.carries(), *self._model.sums()]


@lru_cache(1)  # a group has threads of its own: one for all models
def _talk() -> dist.ProcessGroup:
    """The group over which rank 0 sends passes. Its timeout is long: a served model may wait for days for its
    next request.
    """
    return cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=PATIENCE))


_grids: dict[tuple[int, InferenceLayout], Grid] = {}  # by gang: they make groups too


def split_model(
    spec: ModelSpec, weights: Mapping[str, Tensor], layout: InferenceLayout, gang: Gang, dtype: torch.dtype
) -> SplitModel:
    """This rank's part of the model, in a gang of several ranks; reads only its part of the weights. Raises
    ConfigError for axes that the model does not support.
    """
    check_inference(layout, spec, place="split")
    axes = InferenceLayout.model_validate(layout.model_dump(include=set(InferenceLayout.model_fields)))
    if (grid := _grids.get((id(gang), axes))) is None:
        grid = _grids[id(gang), axes] = Grid(gang, layout.axes, pipeline=layout.pipeline)
    model = bare(spec, dtype)
    if layout.pipeline > 1:
        counts = stage_blocks(spec, layout.pipeline)
        place = grid.places["pipeline"]
        begin = sum(counts[:place])
        keep_stage(model, range(begin, begin + counts[place]), is_first=grid.is_first, is_last=grid.is_last)
    split_matrices(model, grid, sequence_parallel=False)
    split_experts(model, grid)
    made = SplitModel(model, spec, grid, dtype)
    filled(model, weights, gang.device)
    return made
