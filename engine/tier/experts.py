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
from torch.utils._python_dispatch import _disable_current_modes

from atelier.engine.config.error import ConfigError
from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.config.parallel import Tiers
from atelier.engine.model.moe import ExpertWeights, mlp
from atelier.engine.model.placement import as_placed, local
from atelier.engine.tier.buffers import Buffers, TransferThread
from atelier.engine.tier.policy import POLICIES, LeastRecentlyUsed
from atelier.engine.tier.state_file import StateFile

PARTS = ("weight", "exp_avg", "exp_avg_sq")  # of a state
AHEAD = 2  # experts that are read while one computes, in the backward pass and the optimiser's


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

    What is read ahead: in the forward pass the experts that a mixture's router chose, then those of the next
    mixture that had most tokens the last time; in the backward pass exactly what the forward pass met; then
    what the optimiser will move. A wrong guess costs a read, never a bit.
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
        self.gradient_file = StateFile(folder, self.file.slots, self.floats, dtype)
        both = self.file.state_bytes + self.gradient_file.state_bytes
        size = min(host_bytes // both if host_bytes else self.file.slots, self.file.slots)
        if size < 1:
            raise ConfigError(
                "parallel.tiers.host_gb",
                "has no room for one expert state and its gradient",
                f"{both / 1e9:.4g} GB has",
            )
        worker, kind = TransferThread(), {"dtype": dtype, "device": torch.device("cpu")}
        self.states = Buffers(
            self.file, size, POLICIES[policy](), worker, floats=self.file.floats, renew=self._catch_up, **kind
        )
        self.gradients = Buffers(
            self.gradient_file, size, LeastRecentlyUsed(), worker, floats=self.floats, **kind
        )
        self.met: set[int] = set()  # slots with a gradient in this step
        self._trail: list[int] = []  # slots in the order of the forward pass, still to come in the backward
        self._before: dict[int, list[int]] = {}  # by first slot of a mixture: whom its tokens met, most first
        self.rates: list[float] = []  # of every step since the file was filled
        self.done = [0] * self.file.slots  # of these, how many a slot has had
        self.steps = 0  # before the file was filled
        self._numbers: dict[str, Tensor] = {}  # of steps, as checkpoints have them
        for name, experts in mixtures.items():
            hold(experts, self, self.places[name] * self.number)

    # use

    def mixture(self, first: int, x_PD: Tensor, counts_X: Sequence[int]) -> Tensor:
        """`ExpertWeights.compute` of the mixture whose experts begin at slot `first`."""
        parts = list(x_PD.split(list(counts_X)))
        met = [first + expert for expert, count in enumerate(counts_X) if count]
        self._before[first] = sorted(met, key=lambda slot: (-counts_X[slot - first], slot))
        asked = 0
        for done, slot in enumerate(met):  # always in this order: recomputation has to meet the same one
            asked = max(asked, done)
            asked += self.states.ask_all(met[asked:])
            parts[slot - first] = _ExpertMLP.apply(parts[slot - first], self, slot)
        if torch.is_grad_enabled():
            self._trail += met
        following = self._before.get(first + self.number, [])
        self.states.ask_all(following[: self.states.size // 2])
        return torch.cat(parts)

    def going_back(self, slot: int) -> None:
        """Read ahead what the backward pass comes to after this slot."""
        while self._trail and self._trail.pop() != slot:
            pass
        self.states.ask_all(self._trail[: -AHEAD - 1 : -1])

    def weights(self, state: Tensor) -> tuple[Tensor, ...]:
        """An expert's matrices, as views of its state or of its gradient."""
        return tuple(state[leaf.begin : leaf.begin + leaf.size].view(leaf.shape) for leaf in self.inside)

    def add_gradient(self, slot: int, gradients: Sequence[Tensor]) -> None:
        is_new = slot not in self.met
        with self.gradients.held(slot, changes=True, is_new=is_new) as sum_F:
            for mine, gradient in zip(self.weights(sum_F), gradients, strict=True):
                if is_new:
                    mine.copy_(gradient)
                else:
                    mine += gradient
        self.met.add(slot)

    # the optimiser

    def norms(self) -> dict[str, Tensor]:
        """The norms [X] of the experts' gradients, by name of the matrix that they share; 0 where there is
        none.
        """
        found = {name: torch.zeros(self.number, dtype=self.file.dtype) for name in self.placed}
        paths = list(self.places)
        for slot, gradient in self._each(self.gradients, sorted(self.met)):
            path, expert = paths[slot // self.number], slot % self.number
            for leaf, part in zip(self.inside, self.weights(gradient), strict=True):
                found[f"{path}.{leaf.name}"][expert] = torch.linalg.vector_norm(part)
        return found

    def update(self, rate: float, scale: float, *, is_good: bool) -> None:
        """AdamW's step of all experts: now of those that were met, of the others when they are needed."""
        met, self.met = self.met, set()
        self._trail.clear()
        if not is_good:
            return
        before = len(self.rates)
        order = sorted(met, key=lambda slot: (slot not in self.states, slot))
        self.gradients.ask_all(order[:AHEAD])
        for place, (slot, state) in enumerate(self._each(self.states, order, changes=True)):
            self.gradients.ask_all(order[place : place + AHEAD])
            with self.gradients.held(slot) as gradient:
                if scale < 1.0:
                    gradient.mul_(scale)
                self._owed(slot, state, until=before)
                self._step(state, gradient, rate, self.steps + before + 1)
            self.done[slot] = before + 1
        self.rates.append(rate)

    @staticmethod
    def _each(
        buffers: Buffers, slots: Sequence[int], *, changes: bool = False
    ) -> Iterator[tuple[int, Tensor]]:
        """These slots one after another, the next ones read meanwhile."""
        for place, slot in enumerate(slots):
            buffers.ask_all(slots[place : place + AHEAD])
            with buffers.held(slot, changes=changes) as state:
                yield slot, state

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
        owing = [slot for slot in range(self.file.slots) if self.done[slot] < len(self.rates)]
        for _ in self._each(self.states, owing):  # to be taken is to be brought up
            pass
        self.states.write_all()
        self.steps += len(self.rates)
        self.rates, self.done = [], [0] * self.file.slots

    def filled(self) -> None:
        """What `whole` returned was filled: the truth is in the file."""
        self.states.drop_all()
        self.gradients.drop_all()
        self.file.forget()
        self.met.clear()
        self._trail.clear()
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
        # selective recomputation records what it sees: it sees the same wherever the state is
        with _disable_current_modes(), tier.states.held(slot) as state:
            return mlp(x, tier.weights(state))

    @staticmethod
    def backward(ctx: _TierContext, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        (x,) = ctx.saved_tensors
        ctx.tier.going_back(ctx.slot)
        with ctx.tier.states.held(ctx.slot) as state, torch.enable_grad():
            x = x.detach().requires_grad_()
            weights = tuple(weight.detach().requires_grad_() for weight in ctx.tier.weights(state))
            with ctx.products:
                y = mlp(x, weights)
            found = torch.autograd.grad(y, (x, *weights), gradients[0])
        ctx.tier.add_gradient(ctx.slot, found[1:])
        return found[0], None, None
