"""Gradients of a private training (config/train/privacy.py; 1607.00133, algorithm 1): one row at a time, each
clipped, summed over all ranks, with noise added once.

Adapters are whole on every rank (engine/parallel/shard.py), so a row's gradient exists before any sum over
ranks. N numbers of all trained weights.
"""

import hashlib
import secrets
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from atelier.engine.checkpoint.state import Nested, Tree
from atelier.engine.config.base import Json
from atelier.engine.config.error import AtelierError
from atelier.engine.config.sections import site_here
from atelier.engine.extensions.privacy.config.train.privacy import Privacy
from atelier.engine.extensions.privacy.epsilon import Visits, statement, visits
from atelier.engine.loop.attachments import GradientHandler
from atelier.engine.loop.counts import Counts
from atelier.engine.loop.hooks import Hook, HookContext
from atelier.engine.parallel.grid import Grid


def normal(key: bytes, place: str, count: int) -> np.ndarray:
    """`count` standard normal numbers, float64: a pure function of its arguments. SHAKE-256 is the generator,
    which cannot be continued without the key; then the transform of Box and Muller (1958).
    """
    half = -(-count // 2)
    raw = hashlib.shake_256(key + f"/{place}".encode()).digest(16 * half)
    uniform_2H = ((np.frombuffer(raw, dtype="<u8") >> np.uint64(11)) + 0.5) * 2.0**-53
    radius_H, angle_H = np.sqrt(-2.0 * np.log(uniform_2H[:half])), 2.0 * np.pi * uniform_2H[half:]
    return np.concatenate([radius_H * np.cos(angle_H), radius_H * np.sin(angle_H)])[:count]


class PrivateGradients(GradientHandler):
    """The gradients of one role's step. `batch`: rows of a step on all ranks; `key`: of the noise, 32 bytes
    in hex.
    """

    name = "privacy"

    def __init__(
        self, spec: Privacy, weights: Mapping[str, nn.Parameter], grid: Grid, *, batch: int, key: str
    ) -> None:
        super().__init__()
        self._spec, self._weights, self._grid, self._batch = spec, dict(weights), grid, batch
        self.key = key
        self.rows, self.visits = 0, Visits(1, 1)  # rows of the data; visits of one row
        self._step, self._where = 0, ""
        self._sum_N = torch.zeros(0)
        self._counts = torch.zeros(0)

    def begin(self, step: int, trajectory: str) -> None:
        """Begin a step. Branches of one trunk, which share its key, get different noise."""
        device = self._grid.gang.device
        size = sum(weight.numel() for weight in self._weights.values())
        self._step, self._where = step, trajectory
        self._sum_N = torch.zeros(size, dtype=torch.float64, device=device)
        self._counts = torch.zeros(3, dtype=torch.float64, device=device)  # rows, clipped, not finite

    def add(self) -> None:
        """Take a micro-batch, which is one row, and clip its gradient. A gradient that is not finite adds
        nothing: one row must not stop or skip the step.
        """
        grad_N = torch.cat([_flat(weight) for weight in self._weights.values()])
        for weight in self._weights.values():
            weight.grad = None
        norm = torch.linalg.vector_norm(grad_N)
        is_good = torch.isfinite(norm)
        scale = torch.clamp(self._spec.clip / norm, max=1.0)
        self._sum_N += torch.where(is_good, grad_N * scale, 0.0)
        self._counts += torch.stack([torch.ones_like(norm), is_good & (norm > self._spec.clip), ~is_good])

    def finish(self) -> None:
        """Set the gradient: the sum over all ranks plus noise, divided by `batch`. Raises AtelierError if no
        row had a finite gradient.
        """
        own = torch.cat([self._sum_N, self._counts])
        if self._grid.gang.is_first and self._spec.noise:
            own[: len(self._sum_N)] += self._noise().to(own)
        total = self._grid.sum(own)
        num_rows, num_clipped, num_lost = total[len(self._sum_N) :].tolist()
        if num_lost == num_rows:
            raise AtelierError(f"step {self._step + 1}: no row has a finite gradient; lower optim.lr")
        self.measured = {"privacy/clipped": num_clipped / num_rows, "privacy/lost": num_lost / num_rows}
        grads = total[: len(self._sum_N)] / self._batch
        sizes = [weight.numel() for weight in self._weights.values()]
        for weight, grad in zip(self._weights.values(), grads.split(sizes), strict=True):
            weight.grad = grad.view(weight.shape).to(weight.dtype)

    def _noise(self) -> Tensor:
        key, scale = bytes.fromhex(self.key), self._spec.noise * self._spec.clip
        place = f"{self._where}/{self._step}"
        parts = [normal(key, f"{place}/{name}", one.numel()) for name, one in self._weights.items()]
        return torch.from_numpy(np.concatenate(parts) * scale)

    def divisor(self, batch: Mapping[str, Tensor], counts: Counts) -> int:
        """The row's own scored tokens, so that no other row changes its gradient."""
        return max(1, int((batch["labels_BT"] >= 0).sum()))

    def state(self) -> Tree:
        return {"key": self.key}

    def restore(self, state: Nested, step: int) -> None:
        self.key = str(state["key"])

    def summary(self, steps: int) -> dict[str, Json]:
        """Privacy entries of the model's record after `steps` steps."""
        spec, batch = self._spec, self._batch
        return {self.name: statement(spec, rows=self.rows, batch=batch, steps=steps, visits=self.visits)}


def _flat(weight: nn.Parameter) -> Tensor:
    grad = weight.grad
    if grad is None:
        return torch.zeros(weight.numel(), dtype=torch.float64, device=weight.device)
    return grad.detach().double().flatten()


class PrivateTraining(Hook):
    """Makes the gradients of all roles private."""

    def __init__(self, context: HookContext) -> None:
        super().__init__(context)
        members, train = context.members, context.training.train
        rows = train.global_batch
        privacy = Privacy.of(train)
        assert privacy is not None  # otherwise the hook is not used
        blend = context.data.blend(train.sequence)
        for name in sorted(members):
            member = members[name]
            if not member.moves or member.body is None:
                continue
            key = secrets.token_hex(32)
            if not privacy.secret:
                key = hashlib.sha256(f"{train.seed}/{site_here(train)}/{name}".encode()).hexdigest()
            own = PrivateGradients(
                privacy,
                member.weights.trainable(),
                member.grid,
                batch=train.here().global_batch,
                key=context.gang.from_first(key),
            )
            own.rows = blend.num_rows
            own.visits = visits(blend.drawn(member.start * rows, member.end * rows), rows)
            member.body.gradient_handler = own
            member.attach(own)
