"""Gather a teacher's answers to one batch from its ranks, and open them at the students' site, where each
rank takes those of its own rows.

B rows, T tokens, N scored tokens
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from atelier.engine.config.base import ANSWERS
from atelier.engine.config.batch import NOT_SCORED
from atelier.engine.config.error import DataError
from atelier.engine.extensions.sites.config.train.link import Link
from atelier.engine.loop.attachments import Tap
from atelier.engine.model.weights import StoredWeights
from atelier.engine.objective.top import TopSide, answers_of, kept_mass, side_of, types
from atelier.engine.parallel.gang import Gang
from atelier.engine.parallel.grid import Grid

ROWS = {"samples_B": torch.int64, "scored_B": torch.int32}  # numbers of the samples, and of their tokens
LEAST_KEPT = 0.5  # least mass of the tokens that are sent, at a temperature above 1
LOSS = {"loss": torch.float64}  # the teacher's in the step; empty where no token is scored


class AnswerParts(Tap):
    """The answers of a teacher to the batch of a step."""

    name = lesson = ANSWERS

    def __init__(self, link: Link, gang: Gang, grid: Grid, vocab: int) -> None:
        self._gang, self._grid, self._link, self._vocab = gang, grid, link, vocab
        self._top = vocab if link.top == "all" else link.top
        self._parts: list[dict[str, Tensor]] = []
        self._is_finite = True

    def begin(self) -> None:
        """Collect answers in the next step."""
        self.is_asked = True

    def add(
        self, batch: Mapping[str, Tensor], clock: int, hidden_BTD: Tensor, head_weight_VD: Tensor
    ) -> None:
        """Collect the answers to a micro-batch of this rank's rows."""
        labels_BT = batch["labels_BT"]
        self._is_finite &= bool(torch.isfinite(hidden_BTD).all())
        found = answers_of(
            hidden_BTD,
            head_weight_VD[: self._vocab],  # no padding
            labels_BT,
            top=self._top,
            values=self._link.values,
            heat=self._link.temperature,
        )
        rows = {"samples_B": batch["samples_B"], "scored_B": (labels_BT != NOT_SCORED).sum(1).int()}
        self._parts.append(rows | found)

    def message(self, clock: int) -> dict[str, Tensor]:
        """The tensors to send: the answers to the whole batch, in the order of its rows, and the teacher's
        loss. A collective. Raises DataError if answers are not finite.
        """
        mine = {name: torch.cat([part[name] for part in self._parts]) for name in self._parts[0]}
        self._parts, self.is_asked = [], False
        size, place = self._grid.axes.data, self._grid.data_index
        counts = torch.zeros(3, size, dtype=torch.int64, device=self._gang.device)
        own = (len(mine["samples_B"]), len(mine["values_NK"]), int(not self._is_finite))
        counts[:, place] = torch.tensor(own, device=counts.device)
        ends = self._gang.sum(counts).cumsum(1)
        if ends[2, -1]:
            raise DataError("a teacher's answers to students at other sites are not finite")
        sent: dict[str, Tensor] = {}
        kept = types(self._vocab, self._top, self._link.values, mine["values_NK"].dtype) | ROWS
        for name, dtype in kept.items():
            part, number = mine[name], int(name not in ROWS)
            whole = part.new_zeros(int(ends[number, -1]), *part.shape[1:])
            end = int(ends[number, place])
            whole[end - len(part) : end] = part
            sent[name] = self._gang.sum(whole).cpu().to(dtype)
        loss = [] if self.loss is None else [self.loss]
        return sent | {"loss": torch.tensor(loss, dtype=torch.float64)}


@dataclass(frozen=True)
class Received:
    """A teacher's answers to the batch of a step. `spans`: begin and end of each sample's tokens."""

    tensors: Mapping[str, Tensor]
    spans: Mapping[int, tuple[int, int]]
    loss: float | None
    vocab: int
    values: str
    place: str
    heat: float = 1.0

    @property
    def measured(self) -> dict[str, float]:
        """The mean mass of the tokens that were sent, as a metric; none where all were sent."""
        others_N = self.tensors.get("others_N")
        if others_N is None or not len(others_N):
            return {}
        return {"answers/kept": kept_mass(others_N, self.values)}

    def check_mass(self) -> None:
        """Raise DataError if the sent tokens have too little mass at a temperature above 1: a student would
        hardly learn from them, and its loss would look small.
        """
        kept, top = self.measured.get("answers/kept", 1.0), self.tensors["values_NK"].shape[1]
        if self.heat > 1 and kept < LEAST_KEPT:
            raise DataError(
                f"{self.place}: at temperature {self.heat:g} the {top} tokens of"
                f" an answer have {kept:.1%} of the mass, below {LEAST_KEPT:.0%}; give link.top=all, more"
                " tokens, or a lower temperature of the objective and the link"
            )

    def side(self, batch: Mapping[str, Tensor]) -> TopSide:
        """The answers to a micro-batch of this rank. Raises DataError if its samples or tokens differ."""
        labels_BT, parts = batch["labels_BT"], list[Tensor]()
        scored_B = (labels_BT != NOT_SCORED).sum(1).tolist()
        for sample, scored in zip(batch["samples_B"].tolist(), scored_B, strict=True):
            begin, end = self.spans.get(sample, (0, -1))
            if end - begin != scored:
                has = "is not there" if end < 0 else f"has {end - begin} tokens"
                raise DataError(f"{self.place}: sample {sample} {has}; this site has {scored}")
            parts.append(torch.arange(begin, end))
        rows_N = torch.cat(parts)
        mine = {name: each[rows_N] for name, each in self.tensors.items()}
        return side_of(
            mine, labels_BT, vocab=self.vocab, values=self.values, place=self.place, heat=self.heat
        )


def opened(path: Path, place: str, link: Link, vocab: int) -> Received:
    """Read the verified file `path`; `place` names it in errors. Raises DataError for tensors that are not
    answers.
    """
    top = vocab if link.top == "all" else link.top
    stored = StoredWeights(path)
    exact = stored.place("values_NK").dtype if "values_NK" in stored else torch.float32
    exact = exact if exact in (torch.float32, torch.float64) else torch.float32
    expected = types(vocab, top, link.values, exact) | ROWS | LOSS
    found = {name: stored.place(name).dtype for name in stored}
    if found != expected:
        said = ", ".join(f"{name} {dtype}" for name, dtype in sorted(found.items(), key=str))
        raise DataError(
            f"{place}: holds {said[:200] or 'nothing'}, not answers in the form of link.top and link.values"
        )
    shapes = stored.shapes()
    loss = stored["loss"].flatten().tolist()
    if shapes["loss"] not in ((0,), (1,)) or not all(math.isfinite(each) for each in loss):
        raise DataError(f"{place}: the teacher's loss is {loss[:3]}")
    rows, tokens = shapes["samples_B"][:1], shapes["values_NK"][:1]
    wanted = {"samples_B": rows, "scored_B": rows, "values_NK": (*tokens, top), "loss": shapes["loss"]}
    wanted |= {"ids_NK": (*tokens, top), "others_N": tokens} if top < vocab else {}
    for name, shape in shapes.items():
        if shape != wanted[name]:
            raise DataError(f"{place}: {name} is {shape}, not {wanted[name]}")
    samples, scored = stored["samples_B"].tolist(), stored["scored_B"]
    ends = scored.cumsum(0).tolist()
    total = ends[-1] if ends else 0
    if len(set(samples)) < len(samples) or (scored < 0).any() or (total,) != tokens:
        raise DataError(
            f"{place}: {len(samples)} samples; one is there twice, or they do not have {tokens[0]} tokens"
        )
    spans = {
        sample: (end - size, end) for sample, end, size in zip(samples, ends, scored.tolist(), strict=True)
    }
    wide = {torch.uint16: torch.int32}  # which torch cannot select from
    tensors = {
        name: stored[name].to(wide.get(t, t)) for name, t in expected.items() if name not in ROWS | LOSS
    }
    return Received(tensors, spans, loss[0] if loss else None, vocab, link.values, place, link.temperature)
