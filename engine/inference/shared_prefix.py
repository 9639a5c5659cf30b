"""What prompts have in common is read once: what all of them begin with, such as solved examples, in a pass
of its own; what neighbours begin with, such as a passage, in one row.

B rows, T tokens of a row, S tokens seen
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atelier.engine.data.asked import PromptOptions
from atelier.engine.data.option_rows import row_size
from atelier.engine.inference.sampling import TextModel
from atelier.engine.model.attention import Attend, Cache, attend
from atelier.engine.model.contract import Output
from atelier.engine.model.gpt import Decoder
from atelier.engine.parallel.grid import Grid
from atelier.engine.tier.ring import ring_of

LONGEST = 512  # tokens of a row of several requests: attention within a row grows with its square
LEAST = 16  # ids: for fewer the copies of keys and values cost more than they save


def shared_ids(model: TextModel, requests: Sequence[PromptOptions], grid: Grid) -> tuple[int, ...]:
    """The ids that all prompts begin with, each prompt's last one left out; none where they are few, and for
    models whose keys and values are not in one place: with an encoder, split, or read from disk.
    """
    network = cast(nn.Module, model)
    is_whole = isinstance(network, Decoder) and ring_of(network) is None and grid.axes.tensor == 1
    if not is_whole or model.spec.reads_encoder or len(requests) < 2:
        return ()
    prompts = [each.prompt[:-1] for each in requests]
    size = _num_alike(min(prompts), max(prompts))  # what these two share, all between them do
    return prompts[0][:size] if size >= LEAST else ()


class Asked(NamedTuple):
    """Requests that are one row: their numbers, and how many ids of their prompts are its branch 0."""

    numbers: tuple[int, ...]
    shared: int
    size: int  # tokens of the row


def joined(requests: Sequence[PromptOptions], skipped: int, *, is_paired: bool) -> list[Asked]:
    """All requests in order as rows, without the first `skipped` ids. Neighbours are one row where that saves
    at least LEAST tokens; with an encoder each is its own.
    """
    found: list[Asked] = []
    for number, each in enumerate(requests):
        own = Asked((number,), len(each.prompt), row_size(each.prompt, each.options) - skipped)
        both = None if is_paired or not found else _both(requests, found[-1], own, skipped)
        if both is not None and both.size <= min(LONGEST, found[-1].size + own.size - LEAST):
            found[-1] = both
        else:
            found.append(own)
    return found


def _both(requests: Sequence[PromptOptions], one: Asked, other: Asked, skipped: int) -> Asked | None:
    before, after = requests[one.numbers[0]].prompt, requests[other.numbers[0]].prompt
    most = min(one.shared, len(after))
    shared = skipped + _num_alike(before[skipped:most], after[skipped:most])
    if shared < skipped + LEAST:
        return None
    numbers = one.numbers + other.numbers
    size = shared - skipped - 1
    for each in (requests[number] for number in numbers):
        size += (len(each.prompt) - shared) * len(each.options) + sum(map(len, each.options))
    return Asked(numbers, shared, size)


def _num_alike(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class SharedPrefix:
    """Keys and values of the ids that all rows begin with."""

    def __init__(self, model: TextModel, ids: Sequence[int]) -> None:
        self._model, self._num_ids = cast(Decoder, model), len(ids)
        self._dtype, device = model.head_weight.dtype, model.head_weight.device
        self._read = self._model.new_cache(1, len(ids), self._dtype)
        tokens_BT = torch.tensor([ids], device=device)
        batch = {
            "tokens_BT": tokens_BT,
            "positions_BT": torch.arange(len(ids), device=device)[None],
            "documents_BT": torch.zeros_like(tokens_BT),
        }
        self._model(batch, cache=self._read)

    def output(self, batch: dict[str, Tensor]) -> Output:
        """The model's output for rows that go on behind the ids; their positions count the ids."""
        num_rows, size = batch["tokens_BT"].shape
        return self._model(batch, cache=self._for(num_rows, size))

    def _for(self, num_rows: int, size: int) -> Cache:
        """The cache of `num_rows` rows that have read the ids, with room for `size` more in each."""
        cache = self._model.new_cache(num_rows, self._num_ids + size, self._dtype)
        for own, read in zip(cache.blocks, self._read.blocks, strict=True):
            own.extend(read.keys.expand(num_rows, -1, -1, -1), read.values.expand(num_rows, -1, -1, -1))
        cache.extend(self._read.documents_BS.expand(num_rows, -1), None)
        if self._read.positions_BS is not None:
            cache.seen_positions(self._read.positions_BS.expand(num_rows, -1))
        return cache


@contextmanager
def causal_attention(model: TextModel, batch: dict[str, Tensor]) -> Iterator[None]:
    """While a batch of rows of one text each is read, attention needs no mask: torch's kernel then skips
    later keys. Padding stands behind the texts, so that none sees it.
    """
    network = cast(nn.Module, model)
    found: list[Attend] = []
    if isinstance(network, Decoder) and not network.spec.window and "branches_BT" not in batch:
        found = [each for each in network.modules() if isinstance(each, Attend) and each.is_causal]
    for each in found:
        vars(each)["forward"] = partial(_without_mask, each.scale)  # torch calls it in place of the class's
    try:
        yield
    finally:
        for each in found:
            del vars(each)["forward"]


def _without_mask(scale: float | None, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:  # bf16 on a CPU has a faster way
        return attend(query, key, value, mask, scale=scale)
    is_grouped = query.shape[1] > key.shape[1]
    return F.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=is_grouped, scale=scale
    )
