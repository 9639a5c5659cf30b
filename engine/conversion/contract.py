"""Inputs and outputs of conversions. engine/conversion/<kind>.py has

    convert(rule, parent, made) -> Converted

where `made` is the spec of the new model. Weights are read and made one by one when they are written.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from atelier.engine.config.base import Json
from atelier.engine.config.conversions import COPIED, FIRST
from atelier.engine.config.registry import ModelSpec
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.model.contract import Model
from atelier.engine.model.weights import Weight


class WeightPiece(NamedTuple):
    """Origin of some numbers of a new weight: a weight of a parent ('' = none), their share of the new
    weight, the rule's operation, and the parent's role.
    """

    source: str
    share: float
    how: str
    parent: str = FIRST

    def plain(self) -> list[Json]:
        """As stored in ANCESTRY."""
        return [*self[:3], *([] if self.parent == FIRST else [self.parent])]


@dataclass(frozen=True)
class Parent:
    """A finished model. `model` reads it whole; `text`: batches of training text, for rules that read some;
    `old`, `new`: its tokenizer and the requested one; `others`: further parents by role, read with `scratch`.
    """

    weights: Mapping[str, Tensor]
    spec: ModelSpec
    model: Callable[[], Model]
    text: Iterable[Mapping[str, Tensor]] = ()
    old: Vocabulary | None = None
    new: Vocabulary | None = None
    others: Mapping[str, ArtifactInput] = field(default_factory=dict)
    scratch: Path = Path()


@dataclass
class Converted:
    """The new model's weights, each made on demand; their origins; and further entries of the record."""

    weights: dict[str, Weight] = field(default_factory=dict)
    ancestry: dict[str, tuple[WeightPiece, ...]] = field(default_factory=dict)
    about: dict[str, Json] = field(default_factory=dict)

    def add(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        make: Callable[[], Tensor],
        *pieces: WeightPiece,
    ) -> None:
        """Add a weight that `make` computes."""

        def checked() -> Tensor:
            made = make().contiguous()
            if made.shape != torch.Size(shape) or made.dtype != dtype:
                raise RuntimeError(f"{name} was made {tuple(made.shape)} {made.dtype}, not {shape} {dtype}")
            return made

        self.weights[name] = Weight(tuple(shape), dtype, checked)
        self.ancestry[name] = pieces

    def keep(self, name: str, parent: Parent, source: str = "") -> None:
        """Add an unchanged weight of the parent, under its name or from `source`."""
        found = source or name
        weight = parent.weights[found]
        self.add(name, tuple(weight.shape), weight.dtype, lambda: parent.weights[found], copied(found))


def copied(source: str, share: float = 1.0) -> WeightPiece:
    return WeightPiece(source, share, COPIED)


def new(how: str, share: float = 1.0) -> WeightPiece:
    """Numbers that are not from a weight of the parent."""
    return WeightPiece("", share, how)
