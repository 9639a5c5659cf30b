"""The interface of models: the forward pass in pieces, what it returns, how weights may be split over ranks
(declared by path, applied by engine/parallel); and the type of matrix products.
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
    """A layer's queries [B, H, T, E] and keys [B, K, T, E] as inputs of its attention: per token, the scores
    are their products.
    """

    query_BHTE: Tensor
    key_BKTE: Tensor

    def detached(self) -> "Relations":
        return Relations(self.query_BHTE.detach(), self.key_BKTE.detach())


@dataclass(frozen=True)
class Output:
    """`hidden` [B, T, D] after the final norm; `aux`: the sums that the model's `sums()` name; `relations` of
    the last layer and its attention `mask` [B, 1, T, S] (bool or additive), for attention distillation (None
    = the model does not offer them); `weights`: those of the model's that objectives read through its graph,
    by name.
    """

    hidden: Tensor
    relations: Relations | None = None
    mask: Tensor | None = None
    aux: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)


# FSDP attaches its backward hooks to the tensors in an output's tree; a dataclass is a leaf until registered
_pytree.register_dataclass(Output)

# "vocabulary"  a row for each token: rows are split
# "out"         a matrix whose outputs are split
# "in"          a matrix whose inputs are split, so that its results are parts of a sum
# "tokens"      works on each token alone: with sequence parallelism it gets some of them
# "inside"      a module whose matrices are "out" and "in": its input is whole inside
# "across"      the same, for a module with two inputs (of two lengths, perhaps)
# "mixture"     a module that sends tokens to experts: its input and (first) output are whole
# "memory"      a product-key memory: its value rows are split by columns, its input is whole
# "whole"       not split
Split = Literal[
    "vocabulary", "out", "in", "tokens", "inside", "across", "mixture", "memory", "whole", "heads"
]


class Sum(NamedTuple):
    """A sum over tokens that leaves a model's blocks, as a balance or z-loss: its shape, and its weight in
    what is optimised, relative to a scored token's loss. Weight 0: it is only counted, without gradient, and
    given to the model's `after_step`.

    Each token must be counted once: where a module's tokens are whole on every rank of the tensor axis
    ("inside" and "mixture"), every one of these ranks has the same sum.
    """

    shape: tuple[int, ...] = ()
    weight: float = 0.0


Carried = dict[str, Tensor]  # what a pipeline stage passes to the next one, by name
SharedType = TypeVar("SharedType")  # what all blocks of a model read besides that


class Model(nn.Module, Generic[SharedType]):
    """What the engine needs of a model: its forward pass in pieces, so that stages can be cut between its
    `blocks`, and data about its weights. It knows nothing of ranks.

    Buffers are weights that no gradient moves (a router's bias): they are stored and published like the
    parameters, and `after_step` may change them. Methods that a model has not overridden
    raise ConfigError when they are needed.
    """

    spec: ModelSpec
    blocks: nn.ModuleList

    def _unsaid(self, name: str) -> ConfigError:
        kind = self.spec.kind
        return ConfigError(
            f"model.{kind}",
            f"is asked for its `{name}`, but {type(self).__name__} has none",
            f"give it one in engine/model/{kind}.py (docs/extend/adding-a-model.md)",
        )

    @property
    def head_weight(self) -> Tensor:
        """[V, D]: the head is not applied by the model but by the objectives."""
        raise self._unsaid("head_weight")

    def initial(self, name: str) -> tuple[str, float]:
        """Initialisation of the weight `name`: ("normal", std), ("ones", 0) or ("zeros", 0)."""
        raise self._unsaid("initial")

    def shared(self, batch: dict[str, Tensor], cache: Cache | None = None) -> SharedType:
        """What all blocks read besides the tensors that they pass on; uses no weights."""
        raise self._unsaid("shared")

    def enter(self, batch: dict[str, Tensor]) -> Carried:
        """The input of the first block."""
        raise self._unsaid("enter")

    def through(
        self, carried: Carried, shared: SharedType, cache: Cache | None = None
    ) -> tuple[Carried, Relations | None]:
        """Run the blocks that are here, in order; also returns the relations of the last one."""
        raise self._unsaid("through")

    def leave(
        self,
        carried: Carried,
        shared: SharedType,
        relations: Relations | None = None,
        cache: Cache | None = None,
    ) -> Output:
        """The model's output from what the last block passes on."""
        raise self._unsaid("leave")

    def forward(self, batch: dict[str, Tensor], cache: Cache | None = None) -> Output:
        """Hidden states of the batch's tokens; with a cache they follow the cached tokens."""
        shared = self.shared(batch, cache)
        carried, relations = self.through(self.begin(batch), shared, cache)
        return self.leave(carried, shared, relations, cache)

    def new_cache(self, batch_size: int, max_len: int, dtype: torch.dtype) -> Cache:
        """An empty cache to generate with: of `max_len` tokens in each of `batch_size` rows, all of type
        `dtype`.
        """
        raise self._unsaid("new_cache")

    def class_logits(self, hidden_BD: Tensor, name: str) -> Tensor:
        """[B, C] of the class head `name`; only models with such heads have it."""
        raise self._unsaid("class_logits")

    def begin(self, batch: dict[str, Tensor]) -> Carried:
        """The input of the first block, with all sums at 0."""
        carried = self.enter(batch)
        some = next(iter(carried.values()))
        kind = {"dtype": torch.promote_types(some.dtype, torch.float32), "device": some.device}
        return carried | {name: torch.zeros(each.shape, **kind) for name, each in self.sums().items()}

    def carries(self) -> dict[str, tuple[str | int, ...]]:
        """The dims of what blocks pass on: "B" rows, "T" or "U" tokens (engine/config/batch.py), "H"
        a rank's heads, or a size.
        """
        return {"hidden_BTD": ("B", "T", self.spec.hidden)}

    def sums(self) -> dict[str, Sum]:
        """The sums that blocks add to, by name; passed on like the rest."""
        return {}

    def parts(self) -> dict[str, list[str]]:
        """The children that `enter` and `leave` need."""
        raise self._unsaid("parts")

    def splits(self) -> dict[str, Split]:
        """How each module's weights can be split by the tensor axis; paths with a * stand for all blocks."""
        raise self._unsaid("splits")

    def set_dropout(self, share: float) -> None:
        """Multiply the dropout of the spec by `share` from now on."""
        if share != 1.0 and getattr(self.spec, "dropout", 0.0):
            raise ConfigError(
                "train.progressive",
                f"changes dropout, but a model of kind {self.spec.kind} does not say how",
                f"give engine/model/{self.spec.kind}.py a set_dropout, or dropout=0",
            )

    def after_step(self, sums: Mapping[str, Tensor]) -> None:
        """Called after a step's update, on every rank that holds a part of the model, with the sums of weight
        0 over the whole global batch, float64. May change buffers in place.
        """

    def measured(self, sums: Mapping[str, Tensor], tokens: int) -> dict[str, float]:
        """What the sums of weight 0 of a step of so many tokens say, as metrics; uses no weights."""
        return {}


def stored(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight that a model artifact has, by name: parameters and buffers that are kept."""
    yield from model.named_parameters()
    for path, module in model.named_modules():
        for name, buffer in module.named_buffers(path, recurse=False):
            if name.rsplit(".", 1)[-1] not in module._non_persistent_buffers_set:
                yield name, buffer


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The plain model's blocks and those of its task nets: all modules in a list called `blocks`."""
    lists = [module for path, module in model.named_modules() if path.split(".")[-1] == "blocks"]
    return [block for each in lists for block in each.children()]


def compute_dtype(weight: Tensor) -> torch.dtype:
    """Autocast's type if it is on for the weight's device, else the weight's own."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def rounded(x: Tensor) -> Tensor:
    """`x` in the type of products, cast once for all its readers: autocast would cast, keep and communicate
    it for each of them.
    """
    return x.to(compute_dtype(x))
