"""The weights of one role on this rank, with gradients and optimiser. Only this file walks them, so weights
off the device can be supported here.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from atelier.engine.checkpoint.state import Tree
from atelier.engine.config.error import ConfigError
from atelier.engine.config.registry import OptimSpec
from atelier.engine.loop.attachments import WeightOwner
from atelier.engine.loop.stage import RoleModel, StageModule
from atelier.engine.model.contract import Model, stored
from atelier.engine.model.placement import fill, is_split, local
from atelier.engine.optim.load import build as build_optimizer
from atelier.engine.optim.load import set_lr
from atelier.engine.parallel.grid import Grid

Values = Callable[[str, torch.Size], Tensor]
EXPERTS = 3  # dims of experts' matrices [X, M, N]


def fill_stages(stages: Iterable[StageModule], values: Values, device: torch.device) -> None:
    """Allocate the stages on `device` and fill this rank's shard of every weight with initial values."""
    for stage in stages:
        if stage.ring is not None:
            continue  # it reads its own weights
        stage.to_empty(device=device)
        for path, weight in stored(stage):
            fill(weight, partial(values, path.removeprefix("model."), weight.shape))
        if stage.owner is not None:
            for name, state in stage.owner.whole().items():
                fill(state["weight"], partial(values, name, state["weight"].shape))
            stage.owner.filled()


def _squared(grads: Iterable[Tensor]) -> Tensor:
    """The squared norm of each, float64."""
    norms = [torch.linalg.vector_norm(grad) for grad in grads]
    return torch.stack(norms).double().square() if norms else torch.zeros(0, dtype=torch.float64)


def _same_shape(whole: Tensor, state: Tensor, name: str) -> Tensor:
    if whole.shape != state.shape:
        raise ConfigError(name, f"is {tuple(whole.shape)}, but the optimiser's is {tuple(state.shape)}")
    return whole


class RoleWeights:
    """Weights by name in the plain model: parameters, some of them trained, and buffers. `body` is None on
    ranks that hold no part of the role; `plain`: the model on the meta device. Raises ConfigError if a role
    that trains has no weight to train.
    """

    def __init__(self, plain: Model, body: RoleModel | None, grid: Grid, optim: OptimSpec | None) -> None:
        self.body, self.grid = body, grid
        self.every_name = [name for name, _ in stored(plain)]  # names of all weights, on any rank
        moving = [name for name, weight in plain.named_parameters() if weight.requires_grad]
        self._places = {name: place for place, name in enumerate(moving)}  # index among the squared norms
        self.optimizer: torch.optim.Optimizer | None = None  # None if nothing is trained
        if optim is not None and not moving:
            raise ConfigError("trainable", "no weight is trainable", "use trainable=full")
        if optim is not None and self.trainable():
            self.optimizer = build_optimizer(optim, self.trainable().items(), plain.spec.lr_factors())
            self._prime(self.optimizer)

    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that this rank holds."""
        return self.body.parameters() if self.body is not None else {}

    def trainable(self) -> dict[str, nn.Parameter]:
        return {name: weight for name, weight in self.parameters().items() if weight.requires_grad}

    def stored(self) -> dict[str, Tensor]:
        """Parameters and buffers that this rank holds, as in a finished model."""
        found: dict[str, Tensor] = self.parameters() | self.buffers()
        return found | {name: state["weight"] for name, state in self._owned().items()}

    @property
    def _owners(self) -> list[WeightOwner]:
        return self.body.owners if self.body is not None else []

    def _owned(self) -> dict[str, dict[str, Tensor]]:
        """Current weights and optimiser states that are not on the device."""
        found: dict[str, dict[str, Tensor]] = {}
        for owner in self._owners:
            owner.settle()
            found |= owner.whole()
        return found

    def buffers(self) -> dict[str, Tensor]:
        return self.body.buffers() if self.body is not None else {}

    def _prime(self, optimizer: torch.optim.Optimizer) -> None:
        """Create the optimiser's states, all zero, so that checkpoints always have the same names."""
        for weight in self.trainable().values():
            weight.grad = torch.zeros_like(weight)
        set_lr(optimizer, 0.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self.forget_steps()

    def forget_steps(self) -> None:
        """Reset the optimiser's states to zero, as before the first step."""
        for state in self.optimizer.state.values() if self.optimizer is not None else ():
            for value in state.values():
                value.zero_()

    def take(self, states: Mapping[str, Tensor], place: str) -> None:
        """Start with an optimiser's states, `<weight>.<state>`; missing ones stay zero.

        Raises ConfigError at `place` for states of another shape, or that an owner of weights cannot take.
        """
        owned = self._owned()
        for owner in self._owners:
            owner.check_states(states, place)
        optimizer = self.optimizer.state if self.optimizer is not None else {}
        found = {name: dict(optimizer.get(weight, {})) for name, weight in self.trainable().items()}
        for name, each in (found | owned).items():
            for key, value in each.items():
                if (whole := states.get(f"{name}.{key}")) is not None and key != "weight":
                    fill(value, partial(_same_shape, whole, value, f"{name}.{key}"))
        self.restored()

    def squares(self) -> Tensor:
        """This rank's contribution to each trained weight's squared gradient norm, float64; summed over ranks
        they give the norm. All gradients must be complete.
        """
        total = torch.zeros(len(self._places), dtype=torch.float64, device=self.grid.gang.device)
        if self.body is None:
            return total
        self.body.settle_gradients()
        places, grads, copies = [], [], []
        for name, weight in self.trainable().items():
            if weight.grad is None or not self.body.is_counted(name) or not local(weight.grad).numel():
                continue
            if weight.dim() == EXPERTS:  # each expert alone, so the norm has the same bits in every layout
                each = _squared(local(weight.grad).unbind()).sum()
                total[self._places[name]] = each / self.grid.copies(weight)
                continue
            places.append(self._places[name])
            grads.append(local(weight.grad))
            copies.append(self.grid.copies(weight))
        if grads:
            total[places] = _squared(grads) / torch.tensor(copies, device=total.device)
        for owner in self.body.owners:
            for name, norms_X in owner.norms().items():
                total[self._places[name]] = norms_X.double().square().sum()
        return total

    def update(self, rate: float, scale: float, *, is_good: bool) -> None:
        """Take the optimiser's step with gradients times min(`scale`, 1), or drop them if not `is_good`."""
        for owner in self._owners:
            owner.update(rate, scale, is_good=is_good)
        if self.optimizer is None:
            return
        if is_good:
            for weight in self.trainable().values() if scale < 1.0 else ():
                if weight.grad is not None:
                    local(weight.grad).mul_(scale)
            set_lr(self.optimizer, rate)
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def after_step(self, sums: Mapping[str, Tensor]) -> None:
        """Give the model its sums over the step's global batch; it may change its buffers."""
        if self.body is not None and sums:
            self.body.after_step(sums)

    def state(self) -> dict[str, Tree]:
        """The trained weights with optimiser states, and the buffers: live tensors, by names independent of
        role and layout.
        """
        trainable = self.trainable()
        states = self.optimizer.state if self.optimizer is not None else {}
        weights: dict[str | int, Tree] = {name: weight.detach() for name, weight in trainable.items()}
        optimizer: dict[str | int, Tree] = {
            name: dict(states.get(weight, {})) for name, weight in trainable.items()
        }
        for name, state in self._owned().items():
            weights[name] = state["weight"]
            optimizer[name] = {key: value for key, value in state.items() if key != "weight"}
        return {"weights": weights | self.buffers(), "optimizer": optimizer}

    def restored(self) -> None:
        """Called after the tensors of `state` were filled from a checkpoint."""
        for owner in self._owners:
            owner.filled()

    def held_by_all(self, axis: str) -> dict[str, Tensor]:
        """Weights and optimiser states that all ranks along the axis hold in common, by name."""
        mine: dict[str, Tensor] = {}
        if self.body is not None and self.body.is_streamed:
            return mine  # weights are in verified files
        for name, weight in self.stored().items():
            if is_split(weight, axis):
                continue
            mine[name] = local(weight.detach())
            states = self.optimizer.state.get(weight, {}) if self.optimizer is not None else {}
            mine |= {f"{name} ({key})": local(state) for key, state in states.items()}
        return mine
