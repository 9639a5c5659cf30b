"""Gradients of a private training (engine/config/privacy.py; 1607.00133, algorithm 1): a row at a time, each
clipped, summed over all ranks, with noise once.

Adapters are whole on every rank (engine/parallel/shard.py), so that a row's gradient is there before any sum
over ranks. N numbers of all trained weights.
"""

import hashlib
import secrets
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from atelier.engine.config.base import Json
from atelier.engine.config.error import AtelierError
from atelier.engine.config.privacy import Privacy, Visits
from atelier.engine.config.train import Train
from atelier.engine.data.blend import Blend
from atelier.engine.loop.role_state import RoleState
from atelier.engine.parallel.grid import Grid
from atelier.engine.plan.epsilon import statement


def normal(key: bytes, place: str, count: int) -> np.ndarray:
    """`count` standard normal numbers, float64: a pure function of its arguments, by SHAKE-256 as a generator
    that nobody without the key can continue, and the transform of Box and Muller (1958).
    """
    half = -(-count // 2)
    raw = hashlib.shake_256(key + f"/{place}".encode()).digest(16 * half)
    uniform_2H = ((np.frombuffer(raw, dtype="<u8") >> np.uint64(11)) + 0.5) * 2.0**-53
    radius_H, angle_H = np.sqrt(-2.0 * np.log(uniform_2H[:half])), 2.0 * np.pi * uniform_2H[half:]
    return np.concatenate([radius_H * np.cos(angle_H), radius_H * np.sin(angle_H)])[:count]


class PrivateGradients:
    """The gradients of one role's step. `batch`: rows of a step on all ranks; `key`: of the noise, 32 bytes
    in hex. `values`: metrics of the last step.
    """

    def __init__(
        self, spec: Privacy, weights: Mapping[str, nn.Parameter], grid: Grid, *, batch: int, key: str
    ) -> None:
        self._spec, self._weights, self._grid, self._batch = spec, dict(weights), grid, batch
        self.key, self.values = key, dict[str, float]()
        self.rows, self.visits = 0, Visits(1, 1)  # of the data, and of a row of it
        self._step, self._where = 0, ""
        self._sum_N = torch.zeros(0)
        self._counts = torch.zeros(0)

    def begin(self, step: int, where: str) -> None:
        """Begin the step of this number, from 0, of the trajectory `where`: branches of one trunk, which have
        its key, have noise of their own.
        """
        device = self._grid.gang.device
        size = sum(weight.numel() for weight in self._weights.values())
        self._step, self._where = step, where
        self._sum_N = torch.zeros(size, dtype=torch.float64, device=device)
        self._counts = torch.zeros(3, dtype=torch.float64, device=device)  # rows, clipped, not finite

    def add_row(self) -> None:
        """After the backward pass of one row: add its gradient, clipped. One that is not finite adds nothing:
        it must not stop or skip the step, which another row would not have done.
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
        """Sum over all ranks, with the noise, and give the weights their gradients: means over `batch`. A
        collective. Raises AtelierError where no row had a finite gradient.
        """
        own = torch.cat([self._sum_N, self._counts])
        if self._grid.gang.is_first and self._spec.noise:
            own[: len(self._sum_N)] += self._noise().to(own)
        total = self._grid.sum(own)
        num_rows, num_clipped, num_lost = total[len(self._sum_N) :].tolist()
        if num_lost == num_rows:
            raise AtelierError(f"step {self._step + 1}: no row has a finite gradient; a lower optim.lr")
        self.values = {"privacy/clipped": num_clipped / num_rows, "privacy/lost": num_lost / num_rows}
        grads = total[: len(self._sum_N)] / self._batch
        sizes = [weight.numel() for weight in self._weights.values()]
        for weight, grad in zip(self._weights.values(), grads.split(sizes), strict=True):
            weight.grad = grad.view(weight.shape).to(weight.dtype)

    def _noise(self) -> Tensor:
        key, scale = bytes.fromhex(self.key), self._spec.noise * self._spec.clip
        place = f"{self._where}/{self._step}"
        parts = [normal(key, f"{place}/{name}", one.numel()) for name, one in self._weights.items()]
        return torch.from_numpy(np.concatenate(parts) * scale)

    def statement(self, steps: int) -> dict[str, Json]:
        """What the model's record says after so many steps."""
        return statement(self._spec, rows=self.rows, batch=self._batch, steps=steps, visits=self.visits)


def _flat(weight: nn.Parameter) -> Tensor:
    grad = weight.grad
    if grad is None:
        return torch.zeros(weight.numel(), dtype=torch.float64, device=weight.device)
    return grad.detach().double().flatten()


def begin_privacy(members: Iterable[RoleState], train: Train, blend: Blend, *, rows_a_step: int) -> None:
    """Make the roles' gradients private. A collective. `train` is of this site, `rows_a_step` are of all."""
    for member in members:
        if not member.moves or member.body is None:
            continue
        key = secrets.token_hex(32)
        if not train.privacy.secret:
            key = hashlib.sha256(f"{train.seed}/{train.link.site}/{member.name}".encode()).hexdigest()
        private = PrivateGradients(
            train.privacy,
            member.weights.trainable(),
            member.grid,
            batch=train.global_batch,
            key=member.gang.from_first(key),
        )
        private.rows = blend.num_rows
        private.visits = blend.visits(member.start * rows_a_step, member.end * rows_a_step, rows_a_step)
        member.private = member.body.private = private
