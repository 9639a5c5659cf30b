"""One role in a gang: its network, its optimiser, where it stands on the gang's clock, and what of it is
checkpointed.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from engine.loop.gate import Gate
from engine.loop.learner import Forward, Learner
from engine.objective.chunked import Mix, TeacherSide
from engine.optim.load import set_lr
from engine.parallel import Gang, Precision, arithmetic
from engine.spec.error import AtelierError, ConfigError
from engine.spec.objective.lm import LM
from engine.spec.run import Member as MemberSpec
from engine.spec.run import Segment
from engine.spec.seed import seed_of

PATIENCE = 3  # steps in a row that may be skipped for a loss or gradient that is not finite


class Member:
    """A role at `step`: the number of steps of the clock that its weights have behind them. It moves only
    while the clock is there.
    """

    def __init__(
        self, name: str, spec: MemberSpec, *, root: Learner, gang: Gang, precision: Precision, seed: int
    ) -> None:
        self.name, self.spec, self.role = name, spec, spec.role
        self.root, self.gang, self.seed = root, gang, seed
        self.precision: Precision = precision
        self.start, self.end = int(spec.role.start), end_of(spec)
        self.step = self.start
        self.stored_step = -1  # the step of its newest checkpoint that this process read or began to write
        self.optimizer: torch.optim.Optimizer | None = None
        self.gate = Gate(spec.role.gate, self.start) if spec.role.teacher else None
        self.tokens = self.forwards = self.teacher_forwards = self.num_skipped = 0
        self.last: dict[str, float] = {}  # loss and eval/loss as last measured, and eval/step: when
        self._check()

    def _check(self) -> None:
        alone = [spec for spec in self.role.objective.values() if not type(spec).needs_teacher]
        if self.role.gate != "open" and not alone:
            raise ConfigError(
                f"roles.{self.name}.gate",
                f"nothing is optimised until it opens at {self.role.gate} nats: all objectives need it",
                "add an objective of its own (lm), or gate=open",
            )

    @property
    def moves(self) -> bool:
        return self.spec.mode != "frozen"

    @property
    def is_kept(self) -> bool:
        """Whether checkpoints and metrics of it are written."""
        return self.spec.mode == "train"

    @property
    def model(self) -> nn.Module:
        return self.root.model

    @property
    def moving_optimizer(self) -> torch.optim.Optimizer:
        if self.optimizer is None:
            raise AtelierError(f"roles.{self.name}: is frozen and has no optimiser")
        return self.optimizer

    def trainable(self) -> dict[str, nn.Parameter]:
        return {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}

    def is_active(self, clock: int) -> bool:
        """Whether step `clock` is one of its own. A frozen member is active when somebody learns from it: the
        loop knows.
        """
        return self.moves and self.step == clock < self.end

    def flops_per_token(self, sequence: int) -> float:
        """FLOPs that a training token costs: forward and backward, or a third of them when nothing moves."""
        return self.role.model.flops_per_token(sequence) / (1 if self.moves else 3)

    def distils(self) -> bool:
        return self.gate is not None and self.gate.is_open

    def mix(self) -> Mix:
        """The active objectives with their shares: weight / sum of active weights."""
        if not self.moves:
            return {"lm": (LM(), 1.0)}
        active = {
            name: spec
            for name, spec in self.role.objective.items()
            if self.distils() or not type(spec).needs_teacher
        }
        whole = sum(spec.weight for spec in active.values())
        return {name: (spec, spec.weight / whole) for name, spec in active.items()}

    def forward(self, batch: dict[str, Tensor], side: TeacherSide | None, *names: int) -> Forward:
        """One forward pass with the objectives; `names` (step, micro-batch, data-parallel rank) seed its
        dropout.
        """
        if getattr(self.role.model, "dropout", 0.0):
            torch.manual_seed(seed_of(self.seed, self.role.seed_name or self.name, *names))
        self.forwards += 1
        with torch.set_grad_enabled(self.moves), arithmetic(self.precision, self.gang.device):
            return self.root(batch, self.mix(), side if self.distils() else None)

    def look(self, batch: dict[str, Tensor]) -> Tensor:
        """Sum of the next-token losses of a held-out batch; touches neither weights nor generators."""
        eagerly = torch.compiler.set_stance(
            "force_eager"
        )  # a look is too short to compile a second graph for
        with torch.no_grad(), eagerly, arithmetic(self.precision, self.gang.device):
            result: Forward = self.root(batch, {"lm": (LM(), 1.0)}, None)
        return result.sums["lm"]

    def squared_norm(self) -> Tensor:
        """This rank's part of the squared gradient norm, float64: the parts of all ranks add up to it."""
        grads = [local(weight.grad) for weight in self.trainable().values() if weight.grad is not None]
        grads = [grad for grad in grads if grad.numel()]
        if not grads:
            return torch.zeros((), dtype=torch.float64, device=self.gang.device)
        copies = self.gang.mesh["replicate"].size() if self.gang.mesh is not None else 1
        return nn.utils.get_total_norm(grads).double().square() / copies

    def update(self, norm: float, *, is_finite: bool) -> float:
        """Clip by the global norm and take the optimiser's step, or skip it when something is not finite;
        returns the lr.
        """
        optimizer, spec = self.moving_optimizer, self.role.optim
        rate = spec.lr * spec.schedule.factor(self.step, self.start, self.end)
        if is_finite:
            self.num_skipped = 0
            coefficient = spec.clip / (norm + 1e-6)
            if coefficient < 1.0:
                for weight in self.trainable().values():
                    local(weight.grad).mul_(coefficient)
            set_lr(optimizer, rate)
            optimizer.step()
        else:
            self.num_skipped += 1
        optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return rate

    def check_skipped(self) -> None:
        if self.num_skipped >= PATIENCE:
            raise AtelierError(
                f"roles.{self.name}: loss or gradient was not finite in {self.num_skipped} steps in a row, "
                f"up to step {self.step}; "
                f"lower roles.{self.name}.optim.lr or raise its warmup; the last checkpoint before is kept"
            )

    def segment(self, step: int) -> Segment:
        """The trajectory whose checkpoint `step` is; a role's first one is at its start."""
        first = self.spec.segments[0]
        if step == first.start:
            return first
        return next(part for part in self.spec.segments if part.start < step <= part.end)

    def state(self) -> dict[str, Any]:
        """Everything that moves, by names that know neither the role nor the layout. Tensors are the live
        ones.
        """
        trainable, optimizer = self.trainable(), self.moving_optimizer
        return {
            "weights": {name: weight.detach() for name, weight in trainable.items()},
            "optimizer": {name: dict(optimizer.state.get(weight, {})) for name, weight in trainable.items()},
            "gate": self.gate.state() if self.gate is not None else {},
            "counts": {
                "tokens": self.tokens,
                "forwards": self.forwards,
                "teacher_forwards": self.teacher_forwards,
                "num_skipped": self.num_skipped,
            },
            "last": dict(self.last),
        }

    def restore(self, state: Mapping[str, Any], step: int) -> None:
        """Take over what `state()` of a checkpoint gave back; its tensors were filled in place."""
        if self.gate is not None:
            self.gate.restore(state["gate"])
        counts = state["counts"]
        self.tokens, self.forwards = counts["tokens"], counts["forwards"]
        self.teacher_forwards, self.num_skipped = counts["teacher_forwards"], counts["num_skipped"]
        self.last = dict(state["last"])
        self.step = self.stored_step = step

    def prime_optimizer(self) -> None:
        """Make the optimiser's states exist as they are before the first step, all zero, so that checkpoints
        always have the same names.
        """
        optimizer = self.moving_optimizer
        for weight in self.trainable().values():
            weight.grad = torch.zeros_like(weight)
        set_lr(optimizer, 0.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for state in optimizer.state.values():
            for value in state.values():
                value.zero_()


def end_of(spec: MemberSpec) -> int:
    """The step at which a member's training ends; 0 for a frozen one."""
    return spec.segments[-1].end if spec.segments else 0


def local(tensor: Tensor | None) -> Tensor:
    """The part of a sharded tensor that lies on this rank."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore


def is_finite(*numbers: float) -> bool:
    return all(math.isfinite(number) for number in numbers)
