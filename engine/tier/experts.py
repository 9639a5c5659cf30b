"""Experts whose weights and moments are not in memory all at once: each has a state in a file, and what a
step needs is brought into buffers. Bit-equal to experts in memory under AdamW.

X experts of this rank in a mixture, F inner width, D hidden, P tokens sorted by expert
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.optim.adamw import adamw

from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.config.parallel import Tiers
from atelier.engine.model.moe import ExpertWeights, mlp
from atelier.engine.model.placement import as_placed, local
from atelier.engine.tier.cache import StateCache
from atelier.engine.tier.policy import POLICIES
from atelier.engine.tier.state_file import StateFile

PARTS = ("weight", "exp_avg", "exp_avg_sq")  # of a state


class Leaf(NamedTuple):
    """One of an expert's matrices in its state."""

    name: str  # in the plain model, that of all experts' matrices [X, ...]
    shape: tuple[int, int]
    begin: int  # among the weights of a state

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]


class TieredExperts:
    """The experts of all mixtures of one role on this rank, of equal shapes. A slot is one expert of one
    mixture.
    """

    def __init__(
        self, mixtures: dict[str, ExpertWeights], spec: AdamW, folder: Path, *, host_bytes: int, policy: str
    ) -> None:
        self.spec = spec
        self.placed = {
            f"{path}.{name}": w for path, one in mixtures.items() for name, w in one.named_parameters()
        }
        first = {name: local(weight) for name, weight in next(iter(mixtures.values())).named_parameters()}
        shapes = {name: cast(tuple[int, int], tuple(weight.shape[1:])) for name, weight in first.items()}
        self.number = len(next(iter(first.values())))  # X
        dtype = next(iter(first.values())).dtype
        self.inside: list[Leaf] = []
        for name, shape in shapes.items():
            begin = self.inside[-1].begin + self.inside[-1].size if self.inside else 0
            self.inside.append(Leaf(name, shape, begin))
        self.floats = self.inside[-1].begin + self.inside[-1].size  # of one expert's weights
        self.places = {name: place for place, name in enumerate(mixtures)}  # by path of the mixture
        self.file = StateFile(folder, len(mixtures) * self.number, len(PARTS) * self.floats, dtype)
        size = host_bytes // self.file.state_bytes if host_bytes else self.file.slots
        self.cache = StateCache(self.file, size, POLICIES[policy](), self._catch_up)
        self.rates: list[float] = []  # of every step since the file was filled
        self.done = [0] * self.file.slots  # of these, how many a slot has had
        self.steps = 0  # before the file was filled
        self.gradients: dict[int, Tensor] = {}  # [floats] by slot, of what was met
        self._numbers: dict[str, Tensor] = {}  # of steps, as checkpoints have them
        for name, experts in mixtures.items():
            hold(experts, self, self.places[name] * self.number)

    # use

    def mixture(self, first: int, x_PD: Tensor, counts_X: Sequence[int]) -> Tensor:
        """`ExpertWeights.compute` of the mixture whose experts begin at slot `first`."""
        parts = [
            _ExpertMLP.apply(x, self, first + expert) if count else x
            for expert, (x, count) in enumerate(zip(x_PD.split(list(counts_X)), counts_X, strict=True))
        ]
        return torch.cat(parts)

    def weights(self, state: Tensor) -> tuple[Tensor, ...]:
        """An expert's matrices, as views of its state or of its gradient."""
        return tuple(state[leaf.begin : leaf.begin + leaf.size].view(leaf.shape) for leaf in self.inside)

    def add_gradient(self, slot: int, gradients: Sequence[Tensor]) -> None:
        known = self.gradients.get(slot)
        if known is None:
            self.gradients[slot] = torch.cat([gradient.flatten() for gradient in gradients])
            return
        for mine, gradient in zip(self.weights(known), gradients, strict=True):
            mine += gradient

    # the optimiser

    def gradients_of(self, name: str) -> Iterator[Tensor]:
        """The gradients of one matrix of a mixture's experts, by its name; of those that were met."""
        path, _, leaf = name.rpartition(".")
        index = [each.name for each in self.inside].index(leaf)
        first = self.places[path] * self.number
        for slot in range(first, first + self.number):
            if slot in self.gradients:
                yield self.weights(self.gradients[slot])[index]

    def update(self, rate: float, scale: float, *, is_good: bool) -> None:
        """AdamW's step of all experts: now of those that were met, of the others when they are needed."""
        met, self.gradients = self.gradients, {}
        if not is_good:
            return
        before = len(self.rates)
        for slot in sorted(met):
            if scale < 1.0:
                met[slot].mul_(scale)
            with self.cache.held(slot, changes=True) as state:
                self._owed(slot, state, until=before)
                self._step(state, met.pop(slot), rate, self.steps + before + 1)
                self.done[slot] = before + 1
        self.rates.append(rate)

    def _catch_up(self, slot: int, state: Tensor) -> bool:
        return self._owed(slot, state, until=len(self.rates))

    def _owed(self, slot: int, state: Tensor, *, until: int) -> bool:
        """Take the steps without a gradient that a state has not had yet; whether there were any."""
        first = self.done[slot]
        nothing = torch.zeros(self.floats if first < until else 0, dtype=state.dtype)
        for number in range(first, until):
            self._step(state, nothing, self.rates[number], self.steps + number + 1)
        self.done[slot] = max(first, until)
        return first < until

    def _step(self, state: Tensor, gradient: Tensor, rate: float, number: int) -> None:
        """Step `number` of AdamW, from 1 on, on one state."""
        weights, mean, square = state.view(len(PARTS), self.floats)
        before = torch.tensor(float(number - 1))
        adamw(
            [weights], [gradient], [mean], [square], [], [before],
            fused=True, amsgrad=False, beta1=self.spec.beta1, beta2=self.spec.beta2, lr=rate,
            weight_decay=self.spec.weight_decay, eps=self.spec.eps, maximize=False,
        )  # fmt: skip

    # all of it

    def settle(self) -> None:
        """Bring every state up to the last step, and the file up to the buffers."""
        for slot in range(self.file.slots):
            if self.done[slot] < len(self.rates):
                with self.cache.held(slot, changes=True) as state:
                    self._owed(slot, state, until=len(self.rates))
        self.cache.write_all()
        self.steps += len(self.rates)
        self.rates, self.done = [], [0] * self.file.slots

    def filled(self) -> None:
        """What `whole` returned was filled: the truth is in the file."""
        self.cache.drop()
        self.file.forget()
        self.gradients.clear()
        self.rates, self.done = [], [0] * self.file.slots
        self.steps = int(next(iter(self._numbers.values()))) if self._numbers else 0

    def whole(self) -> dict[str, dict[str, Tensor]]:
        """By name in the plain model: weights ("weight") and optimiser states of all experts here, in the
        placement of the weights; shared with the file, and true after `settle`.
        """
        states = self.file.mapped()
        found: dict[str, dict[str, Tensor]] = {}
        self._numbers = {name: torch.tensor(float(self.steps)) for name in self.placed}
        for path, place in self.places.items():
            mine = states[place * self.number : (place + 1) * self.number]
            for leaf in self.inside:
                name = f"{path}.{leaf.name}"
                parts: dict[str, Tensor] = {"step": self._numbers[name]}
                for number, part in enumerate(PARTS):
                    begin = number * self.floats + leaf.begin
                    here = mine[:, begin : begin + leaf.size].unflatten(1, leaf.shape)
                    parts[part] = as_placed(here, self.placed[name])
                found[name] = parts
        return found


def put_on_disk(model: nn.Module, optim: AdamW, folder: Path, tiers: Tiers) -> TieredExperts:
    """Take the experts of all mixtures of a model, which is on the meta device, out of it."""
    mixtures = {path: each for path, each in model.named_modules() if isinstance(each, ExpertWeights)}
    return TieredExperts(mixtures, optim, folder, host_bytes=int(tiers.host_gb * 1e9), policy=tiers.policy)


def hold(experts: ExpertWeights, tier: TieredExperts, first: int) -> None:
    """Take the weights out of a mixture's experts, which from now on compute with the tier's."""
    for name in [name for name, _ in experts.named_parameters(recurse=False)]:
        delattr(experts, name)

    def compute(x_PD: Tensor, counts_X: list[int]) -> Tensor:
        return tier.mixture(first, x_PD, counts_X)

    experts.compute = compute


class _TierContext(FunctionCtx):
    tier: TieredExperts
    slot: int
    products: torch.autocast  # the type of products in the forward pass
    saved_tensors: tuple[Tensor, ...]


class _ExpertMLP(torch.autograd.Function):
    """One expert's MLP. Keeps its input alone: the backward pass brings the weights again, and computes the
    inner activations again.
    """

    @staticmethod
    def forward(ctx: _TierContext, x: Tensor, tier: TieredExperts, slot: int) -> Tensor:
        ctx.tier, ctx.slot = tier, slot
        kind = x.device.type
        ctx.products = torch.autocast(
            kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), cache_enabled=False
        )
        ctx.save_for_backward(x)
        with tier.cache.held(slot) as state:
            return mlp(x, tier.weights(state))

    @staticmethod
    def backward(ctx: _TierContext, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        (x,) = ctx.saved_tensors
        with ctx.tier.cache.held(ctx.slot) as state, torch.enable_grad():
            x = x.detach().requires_grad_()
            weights = tuple(weight.detach().requires_grad_() for weight in ctx.tier.weights(state))
            with ctx.products:
                y = mlp(x, weights)
            found = torch.autograd.grad(y, (x, *weights), gradients[0])
        ctx.tier.add_gradient(ctx.slot, found[1:])
        return found[0], None, None
