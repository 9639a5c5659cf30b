"""Objectives on slices of a vocabulary: ranks as threads, whose collectives meet at a barrier."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock
from typing import cast

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from atelier.engine.config.objective.lm import LM
from atelier.engine.config.objective.logits import Logits
from atelier.engine.objective import chunked
from atelier.engine.objective.chunked import Mix, TeacherSide, objective_sums
from atelier.engine.objective.vocab_slice import LogitCache, VocabSlice, without_padding

N, D, V, RANKS = 9, 6, 12, 2
PATIENCE_S = 1.0
ONE, WARM = Logits(), Logits(temperature=2.0)


class Meeting:
    """The ranks of a slice. A rank that takes another number of collectives breaks the barrier."""

    def __init__(self) -> None:
        self.barrier, self.lock = Barrier(RANKS, timeout=PATIENCE_S), Lock()
        self.parts: list[Tensor] = []

    def meet(self, part: Tensor, how: str) -> Tensor:
        with self.lock:
            self.parts.append(part.clone())
        self.barrier.wait()
        found = torch.stack(self.parts)
        self.barrier.wait()
        self.parts.clear()
        self.barrier.wait()
        return part.copy_(found.sum(0) if how == "sum" else found.amax(0))


class ThreadSlice(VocabSlice):
    def sum(self, part: Tensor) -> Tensor:
        return cast(Meeting, self.group).meet(part, "sum")

    def max(self, part: Tensor) -> Tensor:
        return cast(Meeting, self.group).meet(part, "max")


@pytest.mark.parametrize("ids", [V, V - 1, V // RANKS, V // RANKS - 1])
@pytest.mark.parametrize(
    "mix", [{"lm": (LM(), 1.0), "kd": (ONE, 1.0)}, {"lm": (LM(z_weight=0.1), 0.5), "kd": (WARM, 1.0)}]
)
def test_slices_with_and_without_padding_take_the_same_collectives(
    monkeypatch: pytest.MonkeyPatch, mix: Mix, ids: int
) -> None:
    """Padding is behind the tokens: some ranks have none, others nothing else."""
    monkeypatch.setattr(chunked, "ranks_of", lambda _: RANKS)
    draw = torch.Generator().manual_seed(ids)
    hidden, taught = (torch.randn(1, N, D, generator=draw, dtype=torch.float64) for _ in range(2))
    head, teaching = (torch.randn(V, D, generator=draw, dtype=torch.float64) for _ in range(2))
    labels = torch.randint(0, ids, (1, N), generator=draw)
    meeting, each = Meeting(), V // RANKS

    def rank(number: int) -> dict[str, Tensor]:
        mine = slice(number * each, (number + 1) * each)
        part = ThreadSlice(cast(ProcessGroup, meeting), number * each, each)
        teacher = TeacherSide(taught, teaching[mine], LogitCache())
        _, sums = objective_sums(hidden, head[mine], labels, mix, teacher, part=part, ids=ids)
        return sums

    with ThreadPoolExecutor(RANKS) as ranks:
        found = list(ranks.map(rank, range(RANKS)))
    student, told = ((side[0] @ own.t()) for side, own in ((hidden, head), (taught, teaching)))
    kd, lm = mix["kd"][0], mix["lm"][0]
    assert isinstance(kd, Logits) and isinstance(lm, LM)
    heat = kd.temperature
    log_q, log_p = (
        (without_padding(each, ids, V) / heat).log_softmax(1)[:, :ids] for each in (student, told)
    )
    expected = {
        "lm": torch.nn.functional.cross_entropy(student, labels[0], reduction="sum")
        + lm.z_weight * (student.logsumexp(1) ** 2).sum(),
        "kd": heat**2 * (log_p.exp() * (log_p - log_q)).sum(),
    }
    for sums in found:
        torch.testing.assert_close(dict(sums), expected)
