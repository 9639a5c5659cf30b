"""The interface of models: the forward pass in parts, its outputs, and how weights may be split over ranks
(declared by path, applied by engine/parallel); also the type of matrix products.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from atelier.engine.config.error import ConfigError
from atelier.engine.config.registry import ModelSpec
from atelier.engine.model.attention import Cache


class Relations(NamedTuple):
    """A layer's queries [B, H, T, E] and keys [B, K, T, E] as inputs of its attention; their products are the
    scores.
    """

    query_BHTE: Tensor
    key_BKTE: Tensor

    def detached(self) -> "Relations":
        return Relations(self.query_BHTE.detach(), self.key_BKTE.detach())


@dataclass(frozen=True)
class Output:
    """`hidden` [B, T, D] after the final norm. `aux`: the sums named in the model's `sums()`. `relations` of
    the last layer and its attention `mask` [B, 1, T, S] (bool or additive), for attention distillation (None
    = not supported). `weights`: model weights that objectives read through its graph, by name.
    """

    hidden: Tensor
    relations: Relations | None = None
    mask: Tensor | None = None
    aux: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)


# FSDP attaches its backward hooks to the tensors in an output's tree; a dataclass is a leaf until registered
_pytree.register_dataclass(Output)

# "vocabulary"  one row per token: rows are split
# "out"         a matrix whose outputs are split
# "in"          a matrix whose inputs are split; its results are parts of a sum
# "tokens"      works on each token alone: sequence parallelism gives it a part of them
# "inside"      a module whose matrices are "out" and "in": its input is whole inside
# "across"      the same, for a module with two inputs, possibly of different lengths
# "mixture"     a module that sends tokens to experts: its input and (first) output are whole
# "memory"      a product-key memory: value rows are split by columns, the input is whole
# "whole"       not split
Split = Literal[
    "vocabulary", "out", "in", "tokens", "inside", "across", "mixture", "memory", "whole", "heads"
]


class Sum(NamedTuple):
    """A sum over tokens from a model's blocks, such as a balance or z-loss: its shape, and its weight in the
    loss relative to a scored token's loss. With weight 0 it is computed without gradient and passed to the
    model's `after_step`.

    Each token must be counted once. If a module's tokens are whole on every tensor rank ("inside" and
    "mixture"), all these ranks have the same sum.
    """

    shape: tuple[int, ...] = ()
    weight: float = 0.0


Carried = dict[str, Tensor]  # tensors from a pipeline stage to the next, by name
SharedType = TypeVar("SharedType")  # further inputs of all blocks


class Model(nn.Module, Generic[SharedType]):
    """The engine's requirements of a model: its forward pass in parts, so that stages can be cut between its
    `blocks`, and data about its weights. It does not depend on ranks.

    Buffers are weights without gradient (such as a router's bias): they are stored and published like
    parameters, and `after_step` may change them. Methods without override raise ConfigError when needed.
    """

    spec: ModelSpec
    blocks: nn.ModuleList

    def _unsaid(self, name: str) -> ConfigError:
        kind = self.spec.kind
        return ConfigError(
            f"model.{kind}",
            f"needs `{name}`, but {type(self).__name__} does not define it",
            f"define it in engine/model/{kind}.py (docs/extend/adding-a-model.md)",
        )

    @property
    def head_weight(self) -> Tensor:
        """[V, D] weight of the head, which the objectives apply, not the model."""
        raise self._unsaid("head_weight")

    @property
    def device(self) -> torch.device:
        return self.head_weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights in matrix products."""
        return self.head_weight.dtype

    def initial(self, name: str) -> tuple[str, float]:
        """Initialisation of the weight `name`: ("normal", std), ("ones", 0) or ("zeros", 0)."""
        raise self._unsaid("initial")

    def shared(self, batch: dict[str, Tensor], cache: Cache | None = None) -> SharedType:
        """Inputs of all blocks besides the tensors that they pass on; uses no weights."""
        raise self._unsaid("shared")

    def enter(self, batch: dict[str, Tensor]) -> Carried:
        """The input of the first block."""
        raise self._unsaid("enter")

    def through(
        self, carried: Carried, shared: SharedType, cache: Cache | None = None
    ) -> tuple[Carried, Relations | None]:
        """Run this stage's blocks in order; also returns the relations of the last one."""
        raise self._unsaid("through")

    def leave(
        self,
        carried: Carried,
        shared: SharedType,
        relations: Relations | None = None,
        cache: Cache | None = None,
    ) -> Output:
        """The model's output from the tensors of the last block."""
        raise self._unsaid("leave")

    def forward(self, batch: dict[str, Tensor], cache: Cache | None = None) -> Output:
        """Hidden states of the batch's tokens; with a cache they follow the cached tokens."""
        shared = self.shared(batch, cache)
        carried, relations = self.through(self.begin(batch), shared, cache)
        return self.leave(carried, shared, relations, cache)

    def new_cache(self, batch_size: int, max_len: int, dtype: torch.dtype) -> Cache:
        """An empty cache for generation: `max_len` tokens in each of `batch_size` rows, of type `dtype`."""
        raise self._unsaid("new_cache")

    def class_logits(self, hidden_BD: Tensor, name: str) -> Tensor:
        """[B, C] logits of the class head `name`; only for models with such heads."""
        raise self._unsaid("class_logits")

    def begin(self, batch: dict[str, Tensor]) -> Carried:
        """The input of the first block, in 32 bits under autocast, with all sums at 0."""
        carried = self.enter(batch)
        some = next(iter(carried.values()))
        kind = {"dtype": torch.promote_types(some.dtype, torch.float32), "device": some.device}
        if torch.is_autocast_enabled(some.device.type):  # FSDP gathers the embedding in 16 bits
            carried = {name: each.to(kind["dtype"]) for name, each in carried.items()}
        return carried | {name: torch.zeros(each.shape, **kind) for name, each in self.sums().items()}

    def carries(self) -> dict[str, tuple[str | int, ...]]:
        """The dims of the tensors between blocks: "B" rows, "T" or "U" tokens (engine/config/batch.py), "H" a
        rank's heads, or a size.
        """
        return {"hidden_BTD": ("B", "T", self.spec.hidden)}

    def sums(self) -> dict[str, Sum]:
        """The sums that blocks add to, by name; passed on like other tensors."""
        return {}

    def parts(self) -> dict[str, list[str]]:
        """The children that `enter` and `leave` need."""
        raise self._unsaid("parts")

    def splits(self) -> dict[str, Split]:
        """How the tensor axis can split each module's weights; paths with a * stand for all blocks."""
        raise self._unsaid("splits")

    def set_dropout(self, share: float) -> None:
        """Multiply the dropout of the spec by `share` from now on."""
        if share != 1.0 and getattr(self.spec, "dropout", 0.0):
            raise ConfigError(
                "train.progressive",
                f"changes dropout, but kind {self.spec.kind} does not support it",
                f"define set_dropout in engine/model/{self.spec.kind}.py, or use dropout=0",
            )

    def after_step(self, sums: Mapping[str, Tensor]) -> None:
        """Called after a step's update on every rank with a part of the model. `sums`: those of weight 0 over
        the global batch, float64. May change buffers in place.
        """

    def measured(self, sums: Mapping[str, Tensor], tokens: int) -> dict[str, float]:
        """Metrics from the sums of weight 0 of a step of `tokens` tokens; uses no weights."""
        return {}


def stored(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight of a model artifact by name: parameters and persistent buffers."""
    yield from model.named_parameters()
    for path, module in model.named_modules():
        for name, buffer in module.named_buffers(path, recurse=False):
            if name.rsplit(".", 1)[-1] not in module._non_persistent_buffers_set:
                yield name, buffer


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of the plain model and of its task nets: all modules in a list called `blocks`."""
    lists = [module for path, module in model.named_modules() if path.split(".")[-1] == "blocks"]
    return [block for each in lists for block in each.children()]


def compute_dtype(weight: Tensor) -> torch.dtype:
    """Autocast's type if it is on for the weight's device, otherwise the weight's type."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def rounded(x: Tensor) -> Tensor:
    """`x` in the type of products, cast once: autocast would cast, keep and communicate it for each
    reader.
    """
    return x.to(compute_dtype(x))
