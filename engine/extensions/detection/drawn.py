"""The tokens that a generator has drawn for the hidden tokens of a step's rows, for roles that learn which
tokens are replaced (objective/replaced.py).

The generator's step s makes rows from the samples' numbers and draws tokens from the logits of one forward
pass, with its weights after s steps. A detector only needs the samples' numbers, the hidden places and the
drawn ids: it makes the rows again and inserts the ids. Its step s + d learns from them, so with d > 0 the
tokens of the last d steps are kept (and checkpointed).

B rows, T tokens, R samples of a step with hidden tokens, N hidden tokens of a step, in order
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from atelier.engine.checkpoint.state import Nested, Tree
from atelier.engine.config.batch import NOT_SCORED, PLACES
from atelier.engine.config.error import DataError
from atelier.engine.config.seed import seed_of
from atelier.engine.config.train import Train
from atelier.engine.extensions.detection.config.lesson.drawings import STATE
from atelier.engine.extensions.detection.config.objective.replaced import Replaced
from atelier.engine.extensions.detection.gumbel import drawn
from atelier.engine.io.tensorfile import NARROW
from atelier.engine.loop.attachments import Tap
from atelier.engine.loop.stage import rows_of, slice_of
from atelier.engine.model.transformer import noise_keys
from atelier.engine.model.weights import StoredWeights
from atelier.engine.parallel.gang import Gang
from atelier.engine.parallel.grid import Grid

NAMES = ("samples", "hidden", "places", "ids")


@dataclass(frozen=True)
class Drawn:
    """The drawn tokens of one step: for R samples their numbers and counts of hidden tokens; for N tokens
    their places in rows and ids. int64, on the host. `place`: for messages.
    """

    samples_R: Tensor
    hidden_R: Tensor
    places_N: Tensor
    ids_N: Tensor
    place: str

    @cached_property
    def _spans(self) -> dict[int, tuple[int, int]]:
        ends = self.hidden_R.cumsum(0).tolist()
        spans = zip(self.samples_R.tolist(), self.hidden_R.tolist(), ends, strict=True)
        return {sample: (end - size, end) for sample, size, end in spans}

    def put(self, batch: Mapping[str, Tensor], parts: Sequence[int]) -> dict[str, Tensor]:
        """A micro-batch of whole rows with the drawn tokens inserted in its rows of these mixture parts.
        Raises DataError if other tokens are hidden.
        """
        is_hidden_BT, tokens_BT = hidden(batch, parts), batch["tokens_BT"]
        here_BT = is_hidden_BT.cpu()  # one copy, because each copy waits for the device
        ids = [self.ids_N[:0]]
        for row, sample in enumerate(batch["samples_B"].tolist()):
            expected_N = here_BT[row].nonzero()[:, 0]
            begin, end = self._spans.get(sample, (0, 0))
            if len(expected_N) != end - begin:
                has = f"has {end - begin} drawn tokens" if sample in self._spans else "is not there"
                raise DataError(f"{self.place}: sample {sample} {has}, but {len(expected_N)} are hidden here")
            if not torch.equal(self.places_N[begin:end], expected_N):
                raise DataError(
                    f"{self.place}: sample {sample} has tokens drawn at places that are not hidden"
                )
            ids.append(self.ids_N[begin:end])
        return {**batch, "tokens_BT": tokens_BT.masked_scatter(is_hidden_BT, torch.cat(ids).to(tokens_BT))}

    def sent(self, num_ids: int) -> dict[str, Tensor]:
        """The tensors for other sites, with a vocabulary of `num_ids`."""
        every = (self.samples_R, self.hidden_R, self.places_N, self.ids_N)
        return {
            name: each.to(dtype) for (name, dtype), each in zip(types(num_ids).items(), every, strict=True)
        }

    def numbers(self) -> dict[str | int, Tree]:
        """As plain numbers, for a checkpoint."""
        every = (self.samples_R, self.hidden_R, self.places_N, self.ids_N)
        return {name: each.tolist() for name, each in zip(NAMES, every, strict=True)}


def types(num_ids: int) -> dict[str, torch.dtype]:
    """The types of the tensors that are sent, by name, with a vocabulary of `num_ids`."""
    ids = torch.uint16 if num_ids <= NARROW else torch.int32
    return dict(zip(NAMES, (torch.int64, torch.int32, torch.int32, ids), strict=True))


def opened_drawn(path: Path, place: str, *, num_ids: int, step: int, train: Train) -> Drawn:
    """The verified drawings of a step in the file `path`, called `place` in messages. Raises DataError if the
    tensors are not of that step.
    """
    stored, expected = StoredWeights(path), types(num_ids)
    found = {name: stored.place(name).dtype for name in stored}
    shapes = stored.shapes()
    if found != expected:
        said = ", ".join(f"{name} {dtype}" for name, dtype in sorted(found.items(), key=str))
        raise DataError(f"{place}: holds {said[:200] or 'nothing'} instead of drawn tokens")
    for name, of in (("samples", "hidden"), ("hidden", "samples"), ("places", "ids"), ("ids", "places")):
        if len(shapes[name]) != 1 or shapes[name] != shapes[of]:
            raise DataError(f"{place}: {name} is {shapes[name]}, but {of} {shapes[of]}")
    samples_R, hidden_R, places_N, ids_N = (stored[name].to(torch.int64) for name in NAMES)
    first = train.progressive.samples_before(step, train.global_batch)
    last = first + train.at(step).global_batch - 1
    if len(samples_R) and not first <= int(samples_R.min()) <= int(samples_R.max()) <= last:
        raise DataError(
            f"{place}: samples {samples_R.tolist()[:3]} are not of step {step + 1}: {first} to {last}"
        )
    if (samples_R.diff() <= 0).any() or (hidden_R < 1).any() or int(hidden_R.sum()) != len(ids_N):
        raise DataError(
            f"{place}: {len(samples_R)} samples, with one twice or other than {len(ids_N)} tokens"
        )
    if len(ids_N) and not 0 <= int(ids_N.min()) <= int(ids_N.max()) < num_ids:
        raise DataError(f"{place}: an id is not below the vocabulary of {num_ids}")
    return Drawn(samples_R, hidden_R, places_N, ids_N, place)


def hidden(batch: Mapping[str, Tensor], parts: Sequence[int]) -> Tensor:
    """[B, T] mask of hidden tokens in rows of these mixture parts."""
    return (batch["labels_BT"] != NOT_SCORED) & rows_of(batch["parts_B"], parts)[:, None]


class Drawing(Tap):
    """A generator's tap: the tokens that it draws, on this rank. `parts`: mixture parts with hidden tokens;
    `num_ids`: size of the vocabulary; `keep`: the largest delay of its detectors.
    """

    def __init__(
        self,
        train: Train,
        seed_name: str,
        gang: Gang,
        grid: Grid,
        *,
        parts: Sequence[int],
        num_ids: int,
        keep: int,
    ) -> None:
        self._train, self._seed_name, self._gang, self._grid = train, seed_name, gang, grid
        self._parts, self._num_ids, self._keep = parts, num_ids, keep
        self.name, self.lesson = STATE, Replaced.lesson
        self._cells: list[Tensor] = []  # (sample, place, id) of each token drawn on this rank
        self._kept: dict[int, Drawn] = {}

    def add(
        self, batch: Mapping[str, Tensor], clock: int, hidden_BTD: Tensor, head_weight_VD: Tensor
    ) -> None:
        """Draw for a micro-batch of this rank's tokens."""
        rows_N, columns_N = hidden(batch, self._parts).nonzero(as_tuple=True)
        width = batch["tokens_BT"].shape[1]
        places_T = batch.get(PLACES["T"], torch.arange(width, device=rows_N.device)).to(rows_N.device)
        keys_BT = noise_keys(
            seed_of(self._train.seed, self._seed_name, clock, "drawn"), batch["samples_B"], places_T
        )
        ids_N = drawn(
            hidden_BTD[rows_N, columns_N],
            head_weight_VD,
            keys_BT[rows_N, columns_N],
            num_ids=self._num_ids,
            part=slice_of(self._grid, len(head_weight_VD)),
        )
        self._cells.append(torch.stack([batch["samples_B"][rows_N], places_T[columns_N], ids_N]))

    def finish(self, clock: int) -> None:
        """Gather the tokens that all ranks have drawn in the step. A collective."""
        now, train = self._train.at(clock), self._train
        first = train.progressive.samples_before(clock, train.global_batch)
        whole = torch.zeros(now.global_batch, now.sequence, dtype=torch.int64, device=self._gang.device)
        if self._grid.is_counted and self._cells:
            samples_N, places_N, ids_N = torch.cat(self._cells, dim=1)
            whole[samples_N - first, places_N] = ids_N + 1
        self._cells, self.is_asked = [], False
        whole = self._gang.sum(whole).cpu()
        rows_N, places_N = whole.nonzero(as_tuple=True)
        rows_R, hidden_R = rows_N.unique_consecutive(return_counts=True)
        found = Drawn(rows_R + first, hidden_R, places_N, whole[rows_N, places_N] - 1, f"step {clock + 1}")
        since = {step: each for step, each in self._kept.items() if step >= clock - self._keep}
        self._kept = since | {clock: found}

    def message(self, clock: int) -> dict[str, Tensor]:
        """As the tap's."""
        return self.at(clock).sent(self._num_ids)

    def at(self, step: int) -> Drawn:
        """The tokens drawn in a step. Raises DataError if they are not kept."""
        if step not in self._kept:
            raise DataError(
                f"step {step + 1}: its drawn tokens are not kept: the generator trained past it without"
                " the role that learns from them; start both together"
            )
        return self._kept[step]

    def state(self) -> dict[str, Tree]:
        """The steps that detectors still have to learn from after the last one."""
        last = max(self._kept, default=0)
        return {str(step): each.numbers() for step, each in self._kept.items() if step > last - self._keep}

    def restore(self, state: Nested, step: int) -> None:
        for kept, numbers in state.items():
            samples_R, hidden_R, places_N, ids_N = (
                torch.tensor(numbers[name], dtype=torch.int64) for name in NAMES
            )
            place = f"step {int(kept) + 1}"
            self._kept[int(kept)] = Drawn(samples_R, hidden_R, places_N, ids_N, place)
