"""The ids that all prompts begin with, such as solved examples, read once for all rows.

B rows, T tokens of a row, S tokens seen
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import cast

import torch
from torch import Tensor, nn

from atelier.engine.data.asked import PromptOptions
from atelier.engine.inference.sampling import TextModel
from atelier.engine.model.attention import Cache
from atelier.engine.model.contract import Output
from atelier.engine.model.gpt import Decoder
from atelier.engine.parallel.grid import Grid
from atelier.engine.tier.ring import ring_of

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
    pairs = zip(min(prompts), max(prompts), strict=False)  # what these two share, all between them do
    found = tuple(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return found if len(found) >= LEAST else ()


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
