"""Experts whose weights and moments are not all in memory: each has its state in a file, and a step loads
what it needs into buffers. Bit-equal to experts in memory under AdamW.

X experts of this rank in a mixture, F inner width, D hidden, P tokens sorted by expert
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.optim.adamw import adamw
from torch.utils._python_dispatch import _disable_current_modes

from atelier.engine.config.blocks import Activation
from atelier.engine.config.error import ConfigError
from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.config.tested import require
from atelier.engine.extensions.offload.cost import AHEAD, PARTS, rooms_for, rooms_on_device
from atelier.engine.extensions.offload.state_file import PAGE, StateFile
from atelier.engine.model.expert_mlp import ExpertPass, dtype_of
from atelier.engine.model.moe import ExpertWeights
from atelier.engine.model.placement import as_placed, local
from atelier.engine.tier.buffers import Buffers, TransferThreads, not_renewed, plain_memory
from atelier.engine.tier.copies import copies_to
from atelier.engine.tier.on_device import DeviceBuffers, device_buffers
from atelier.engine.tier.policy import FirstStay, LeastRecentlyUsed, Policy

MOMENTS = ("exp_avg", "exp_avg_sq")


class Leaf(NamedTuple):
    """One matrix of an expert among the numbers of its weights."""

    name: str  # name in the plain model of all experts' matrices [X, ...]
    shape: tuple[int, int]
    begin: int

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]


class Applied(NamedTuple):
    """A step of the optimiser: its learning rate, and the factor of gradients."""

    rate: float
    scale: float


class TieredExperts:
    """The experts of all mixtures of one role on this rank, of equal shapes and activations. A slot is one
    expert of one mixture.

    An expert's optimiser step is delayed until its weights are needed next: they must be read then anyway,
    and the gradient waits. So weights, gradients and moments have separate buffers, and the backward pass
    reads only weights.

    Prefetching: in the forward pass, the experts chosen by a mixture's router, then the next mixture's
    experts with most tokens last time, and the data for the next few experts' steps; in the backward pass,
    exactly the experts of the forward pass. A wrong guess costs a read, but never changes a bit.
    """

    def __init__(
        self,
        mixtures: dict[str, ExpertWeights],
        spec: AdamW,
        folder: Path,
        *,
        host_bytes: int,
        policy: Policy,
        lr_factor: float = 1.0,
        device: torch.device,
        device_bytes: int = 0,
    ) -> None:
        require("offloaded experts")
        self.spec, self.lr_factor, self.device = spec, lr_factor, device
        self.placed = {
            f"{path}.{name}": w for path, one in mixtures.items() for name, w in one.named_parameters()
        }
        first = {name: local(weight) for name, weight in next(iter(mixtures.values())).named_parameters()}
        shapes = {name: cast(tuple[int, int], tuple(weight.shape[1:])) for name, weight in first.items()}
        self.number = len(next(iter(first.values())))  # X
        self.activation: Activation = next(iter(mixtures.values())).activation
        self.inner = [shapes[name][0] for name in ("gate", "up") if name in shapes]  # F
        dtype = next(iter(first.values())).dtype
        self.inside: list[Leaf] = []
        for name, shape in shapes.items():
            begin = self.inside[-1].begin + self.inside[-1].size if self.inside else 0
            self.inside.append(Leaf(name, shape, begin))
        self.floats = self.inside[-1].begin + self.inside[-1].size  # numbers of one expert's weights
        self.places = {name: place for place, name in enumerate(mixtures)}  # index by path of the mixture
        slots = len(mixtures) * self.number
        self.weight_file, self.gradient_file = (StateFile(folder, slots, self.floats, dtype) for _ in "wg")
        self.moment_file = StateFile(folder, slots, len(MOMENTS) * self.floats, dtype)
        rooms = rooms_for(host_bytes // self.weight_file.state_bytes if host_bytes else PARTS * slots, slots)
        if rooms is None:
            raise ConfigError(
                "parallel.tiers.host_gb",
                "has no room for one expert state and its gradient",
                f"give {PARTS * self.weight_file.state_bytes / 1e9:.4g} GB or more",
            )
        self.rooms = rooms
        self.worker, self.copies = TransferThreads(), copies_to(device, always=device_bytes > 0)
        near = rooms_on_device(device_bytes // self.weight_file.state_bytes, slots)
        self.weights = self._buffers(self.weight_file, rooms.weights, near.weights, policy, self._catch_up)
        self.gradients = self._buffers(
            self.gradient_file, rooms.gradients, near.gradients, LeastRecentlyUsed()
        )
        self.moments = self._buffers(self.moment_file, rooms.moments, near.moments, FirstStay())
        self.met: dict[int, list[Tensor]] = {}  # gradient norms of this step, by slot
        self._trail: list[int] = []  # slots of the forward pass, in order, that the backward pass still needs
        self._before: dict[int, list[int]] = {}  # by a mixture's first slot: last experts, most used first
        self.applied: list[Applied] = []  # every step since the files were filled
        self.done = [0] * slots  # number of these that a slot has taken
        self.waiting: dict[int, int] = {}  # by slot: the step that its gradient is for
        self.steps = 0  # steps before the files were filled
        self._numbers: dict[str, Tensor] = {}  # step numbers, as in checkpoints
        for name, experts in mixtures.items():
            hold(experts, self, self.places[name] * self.number)

    def _buffers(
        self,
        file: StateFile,
        size: int,
        on_device: int,
        policy: Policy,
        renew: Callable[[int, Tensor], bool] = not_renewed,
    ) -> Buffers | DeviceBuffers:
        """`size` buffers in host memory for the states of a file, and `on_device` on a device that computes
        elsewhere.
        """
        memory = plain_memory if self.copies is None else self.copies.on_host
        floats = file.slot_floats
        host = Buffers(
            file, size, policy, self.worker, floats=floats, dtype=file.dtype, memory=memory, align=PAGE
        )
        return device_buffers(host, on_device, self.copies, renew=renew)

    # use

    def mixture(self, first: int, x_PD: Tensor, counts_X: Sequence[int]) -> Tensor:
        """`ExpertWeights.compute` of the mixture whose experts start at slot `first`."""
        met = [first + expert for expert, count in enumerate(counts_X) if count]
        self._before[first] = sorted(met, key=lambda slot: (-counts_X[slot - first], slot))
        is_again = torch._C._current_graph_task_id() >= 0  # recomputation in the backward pass
        for buffers in () if is_again else (self.weights, self.gradients, self.moments):
            buffers.expect(met)  # other guesses were wrong
        y_PD = _TieredMLP.apply(x_PD.to(dtype_of(x_PD)), counts_X, _Mixture(self, first, met))
        if is_again:
            return y_PD
        if torch.is_grad_enabled():
            self._trail += met
        following = self._before.get(first + self.number, [])
        self.weights.ask_all(following[: self.weights.size // 2])
        self.ask_steps(sorted(following)[:AHEAD])
        return y_PD

    def ask_steps(self, slots: Sequence[int]) -> None:
        """Prefetch data for the optimiser's steps of these slots."""
        for slot in slots:
            if self.done[slot] < len(self.applied):
                self.moments.ask(slot)
            if slot in self.waiting:
                self.gradients.ask(slot)

    def going_back(self, slot: int) -> None:
        """Prefetch the slots that the backward pass needs after this one."""
        while self._trail and self._trail.pop() != slot:
            pass
        self.weights.ask_all(self._trail[: -AHEAD - 1 : -1])

    def matrices(self, numbers: Tensor) -> tuple[Tensor, ...]:
        """An expert's matrices, as views of its weights or its gradient."""
        return tuple(numbers[leaf.begin : leaf.begin + leaf.size].view(leaf.shape) for leaf in self.inside)

    @contextmanager
    def gradient(self, slot: int) -> Iterator[tuple[Tensor, ...]]:
        """Buffers for a pass's gradient, which is added to the step's."""
        is_new = slot not in self.met
        with self.gradients.held(slot, changes=True, is_new=is_new) as sum_F:
            found = sum_F if is_new else torch.empty_like(sum_F)
            yield self.matrices(found)
            if not is_new:
                sum_F += found
            self.met[slot] = [torch.linalg.vector_norm(part) for part in self.matrices(sum_F)]

    # the optimiser

    @property
    def folder(self) -> Path:
        return self.weight_file.folder

    def check_states(self, states: Mapping[str, Tensor], place: str) -> None:
        """Raise ConfigError at `place` if only some experts have states: they share one number of steps."""
        names = [f"{path}.{leaf.name}" for path in self.places for leaf in self.inside]
        without = [name for name in names if f"{name}.step" not in states]
        if 0 < len(without) < len(names):
            raise ConfigError(
                place,
                f"has optimiser states for some experts on disk, none for {without[0]}",
                "use parallel.tiers.experts=device",
            )

    def norms(self) -> dict[str, Tensor]:
        """The norms [X] of the experts' gradients, by name of their common matrix; 0 for experts without
        gradient.
        """
        kind = {"dtype": self.weight_file.dtype, "device": self.device}
        found = {name: torch.zeros(self.number, **kind) for name in self.placed}
        paths = list(self.places)
        for slot, norms in self.met.items():
            path, expert = paths[slot // self.number], slot % self.number
            for leaf, norm in zip(self.inside, norms, strict=True):
                found[f"{path}.{leaf.name}"][expert] = norm
        return found

    def update(self, rate: float, scale: float, *, is_good: bool) -> None:
        """AdamW's step for all experts, taken for each when it is needed."""
        met, self.met = self.met, {}
        self._trail.clear()
        for buffers in (self.weights, self.gradients, self.moments):
            buffers.ask_no_more()
        if is_good:
            self.waiting |= dict.fromkeys(met, len(self.applied))
            self.applied.append(Applied(rate, scale))

    def _catch_up(self, slot: int, weights: Tensor) -> bool:
        """Take the steps that a slot still lacks; whether there were any."""
        first, until = self.done[slot], len(self.applied)
        if first == until:
            return False
        met = self.waiting.pop(slot, until)
        with self.moments.held(slot, changes=True) as moments:
            is_idle = until - first > (met < until)  # some of the steps have no gradient
            nothing = torch.zeros_like(weights) if is_idle else weights
            for number in range(first, until):
                if number != met:
                    self._step(weights, nothing, moments, number)
                    continue
                with self.gradients.held(slot) as gradient:
                    if (scale := self.applied[number].scale) < 1.0:
                        gradient.mul_(scale)
                    self._step(weights, gradient, moments, number)
                self.gradients.discard(slot)
        self.done[slot] = until
        return True

    def _step(self, weights: Tensor, gradient: Tensor, moments: Tensor, number: int) -> None:
        """AdamW's step of this number, counted since the files were filled."""
        mean, square = (moments[place * self.floats :][: self.floats] for place in range(len(MOMENTS)))
        before = torch.full((), float(self.steps + number), device=weights.device)
        adamw(
            [weights[: self.floats]], [gradient[: self.floats]], [mean], [square], [], [before],
            fused=True, amsgrad=False, beta1=self.spec.beta1, beta2=self.spec.beta2,
            lr=self.applied[number].rate * self.lr_factor, eps=self.spec.eps,
            weight_decay=self.spec.weight_decay / self.lr_factor, maximize=False,
        )  # fmt: skip

    # all of it

    def settle(self) -> None:
        """Bring every expert up to the last step, and write all buffers to the files."""
        owing = [slot for slot in range(len(self.done)) if self.done[slot] < len(self.applied)]
        for place, slot in enumerate(owing):
            self.weights.ask_all(owing[place : place + AHEAD])
            self.ask_steps(owing[place : place + AHEAD])
            with self.weights.held(slot):  # taking it brings it up to date
                pass
        self.weights.write_all()
        self.moments.write_all()
        self.steps += len(self.applied)
        self._forget_steps()

    def filled(self) -> None:
        """Called after the tensors of `whole` were filled; the files then hold the state."""
        for buffers in (self.weights, self.moments, self.gradients):
            buffers.drop_all()
        for file in (self.weight_file, self.moment_file):
            file.forget()
        self.met.clear()
        self._trail.clear()
        self._forget_steps()
        self.steps = int(next(iter(self._numbers.values()))) if self._numbers else 0

    def _forget_steps(self) -> None:
        self.applied, self.done = [], [0] * len(self.done)
        self.waiting.clear()

    def whole(self) -> dict[str, dict[str, Tensor]]:
        """By name in the plain model: weights ("weight") and optimiser states of all experts here, in the
        weights' placement; shared with the file, and up to date after `settle`.
        """
        for buffers in (self.weights, self.moments, self.gradients):
            buffers.finish()
        files = {"weight": (self.weight_file.mapped(), 0)}
        moments = self.moment_file.mapped()
        files |= {name: (moments, place * self.floats) for place, name in enumerate(MOMENTS)}
        found: dict[str, dict[str, Tensor]] = {}
        self._numbers = {name: torch.tensor(float(self.steps)) for name in self.placed}
        for path, place in self.places.items():
            mine = slice(place * self.number, (place + 1) * self.number)
            for leaf in self.inside:
                name = f"{path}.{leaf.name}"
                found[name] = {"step": self._numbers[name]}
                for part, (numbers, before) in files.items():
                    begin = before + leaf.begin
                    here = numbers[mine, begin : begin + leaf.size].unflatten(1, leaf.shape)
                    found[name][part] = as_placed(here, self.placed[name])
        return found


def hold(experts: ExpertWeights, tier: TieredExperts, first: int) -> None:
    """Take the weights out of a mixture's experts, which then compute with the tier's."""
    for name in [name for name, _ in experts.named_parameters(recurse=False)]:
        delattr(experts, name)

    def compute(x_PD: Tensor, counts_X: list[int]) -> Tensor:
        return tier.mixture(first, x_PD, counts_X)

    experts.compute, experts.reads_counts = compute, True


class _Mixture:
    """The experts used in one pass of a mixture, in order."""

    def __init__(self, tier: TieredExperts, first: int, met: list[int]) -> None:
        self.tier, self.first, self.met = tier, first, met
        self.inner = tier.inner
        self.is_back = False
        self._done = self._asked = 0

    @contextmanager
    def weights(self, expert: int) -> Iterator[Sequence[Tensor]]:
        tier, slot = self.tier, self.first + expert
        # selective recomputation must record the same operations wherever weights are
        with _disable_current_modes():
            if self.is_back:
                tier.going_back(slot)
            else:
                self._asked = max(self._asked, self._done)
                self._asked += tier.weights.ask_all(self.met[self._asked :])
                tier.ask_steps(self.met[self._done :][: AHEAD + 1])
                self._done += 1
            numbers = tier.weights.take(slot)
        try:
            yield tier.matrices(numbers)
        finally:
            with _disable_current_modes():
                tier.weights.give(slot)

    def gradients(self, expert: int) -> AbstractContextManager[Sequence[Tensor]]:
        return self.tier.gradient(self.first + expert)


class _TierContext(FunctionCtx):
    each: ExpertPass
    mixture: _Mixture
    saved_tensors: tuple[Tensor, ...]


class _TieredMLP(torch.autograd.Function):
    """Keeps the activations' inputs, but no weights: the backward pass loads them again."""

    @staticmethod
    def forward(ctx: _TierContext, x_PD: Tensor, counts_X: Sequence[int], mixture: _Mixture) -> Tensor:
        ctx.each, ctx.mixture = ExpertPass(counts_X, mixture.tier.activation), mixture
        y_PD, *inner_PF = ctx.each.forward(x_PD, mixture)
        ctx.save_for_backward(x_PD, *inner_PF)
        return y_PD

    @staticmethod
    def backward(ctx: _TierContext, *gradients: Tensor) -> tuple[Tensor, None, None]:
        x_PD, *inner_PF = ctx.saved_tensors
        ctx.mixture.is_back = True
        return ctx.each.backward(gradients[0].contiguous(), x_PD, inner_PF, ctx.mixture), None, None
