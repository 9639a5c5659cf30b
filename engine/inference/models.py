"""The interface of models for inference: of one in this process, and of one over the ranks of a gang, which
compute the forward passes that rank 0 sends.

B rows, T tokens, V vocabulary, C classes
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from atelier.engine.config.base import canonical, parse
from atelier.engine.config.registry import ModelSpec, spec_class
from atelier.engine.config.row_classes import RowClasses
from atelier.engine.model.attention import Cache
from atelier.engine.model.contract import Output
from atelier.engine.parallel.gang import broadcast_bytes

TYPES = (torch.int64, torch.bool, torch.float32)

Batch = dict[str, Tensor]


class WholeModel(Protocol):
    """The part of engine.model.contract.Model that sampling and scoring use."""

    spec: ModelSpec

    @property
    def head_weight(self) -> Tensor: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def __call__(self, batch: Batch, cache: Cache | None = None) -> Output: ...

    def new_cache(self, batch_size: int, max_len: int, dtype: torch.dtype) -> Cache: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...


class GangModel(ABC):
    """A model whose parts are on several ranks (engine/inference/split.py). It gives logits and scores, no
    hidden states.
    """

    spec: ModelSpec

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype: ...

    @property
    @abstractmethod
    def token_bytes(self) -> int:
        """Bytes of keys and values of one token of a row."""

    @abstractmethod
    def new_cache(self, batch_size: int, max_len: int, dtype: torch.dtype) -> Cache: ...

    @abstractmethod
    def logits(self, passes: Sequence[tuple[Batch, Cache]]) -> list[Tensor]:
        """The logits [B, V] after the last token of each pass, whose tokens join its cache. No cache may
        occur twice.
        """

    @abstractmethod
    def label_scores(
        self, batches: Iterable[Batch], columns: int, *, finds_best: bool
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """As `scoring.label_scores`."""

    @abstractmethod
    def class_logits(self, batch: Batch, spec: RowClasses) -> Tensor:
        """As `scoring.row_class_logits`."""


TextModel: TypeAlias = WholeModel | GangModel


class Pass(NamedTuple):
    """A forward pass, computed by data rank `owner`. `cache`: number of the cache of its rows, 0 = none;
    `room`: its tokens a row.
    """

    batch: Batch
    owner: int
    cache: int = 0
    room: int = 0

    @property
    def rows(self) -> int:
        return len(self.batch["tokens_BT"])


class GangCommand(NamedTuple):
    """The next computation of all ranks: `passes` for the "logits" after their last tokens, for the "scores"
    of their labels (`columns` and `finds_best` as in `scoring.label_scores`), or for the logits of their
    rows' "classes"; or "stop". `dropped`: numbers of caches that are no longer needed.
    """

    want: Literal["logits", "scores", "classes", "stop"]
    passes: list[Pass] = []
    columns: int = 0
    finds_best: bool = False
    classes: RowClasses | None = None
    dropped: list[int] = []

    def send(self, group: dist.ProcessGroup) -> None:
        """Send it from rank 0 to the others, over a group of gloo."""
        passes, body = [], []
        for each in self.passes:
            entries = [[name, TYPES.index(v.dtype), *v.shape] for name, v in each.batch.items()]
            passes.append([each.owner, each.cache, each.room, entries])
            body += [values.contiguous().cpu().numpy().tobytes() for values in each.batch.values()]
        classes = None if self.classes is None else self.classes.model_dump(mode="json")
        head = canonical([self.want, self.columns, self.finds_best, classes, self.dropped, passes])
        broadcast_bytes(b"\n".join([head, b"".join(body)]), group)

    @classmethod
    def receive(cls, group: dist.ProcessGroup, device: torch.device) -> "GangCommand":
        """The next one from rank 0, with tensors on `device`."""
        head, _, body = broadcast_bytes(None, group).partition(b"\n")
        want, columns, finds_best, arguments, dropped, sent = json.loads(head)
        classes = None
        if arguments is not None:
            kind = cast(type[RowClasses], spec_class("objective", arguments["kind"]))
            classes = parse(kind, arguments, "classes")
        passes, at = [], 0
        for owner, cache, room, entries in sent:
            batch: Batch = {}
            for name, number, *shape in entries:
                dtype = TYPES[number]
                size = dtype.itemsize * torch.Size(shape).numel()
                values = torch.frombuffer(bytearray(body[at : at + size]), dtype=dtype)
                batch[name], at = values.view(shape).to(device), at + size
            passes.append(Pass(batch, owner, cache, room))
        return cls(want, passes, columns, finds_best, classes, dropped)
