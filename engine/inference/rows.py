"""Continue several texts together, each with the same bits as alone.

Matrix products round rows differently for different batch sizes, but alike for one size, whatever the other
rows are. So a pass always has SLOTS rows, filled up if there are fewer, and operations that depend on other
rows run row by row: prompts, attention to a row's own cache, experts, draws. When a model is loaded, it is
tested that nothing else depends on slot or other rows; if something does, rows are computed alone.

N slots, T tokens (1), S tokens seen, V vocabulary, D hidden, H heads, K key/value heads, E head width
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from atelier.engine.config.error import AtelierError, ConfigError, DataError
from atelier.engine.config.generation import Sampling
from atelier.engine.data.control_prompt import Prefix
from atelier.engine.inference.models import Batch, GangModel, TextModel
from atelier.engine.inference.sampling import last_logits, next_logits, piece_of, room_behind, sample
from atelier.engine.model.attention import Attend, Cache, Seen
from atelier.engine.model.gpt import Decoder
from atelier.engine.model.moe import Mixed, MoE
from atelier.engine.tier.ring import ring_of

SLOTS = 8  # the same on every machine, because bits depend on it
MASK_BYTES = 16  # per entry of a mask, temporaries included
SCORE_BYTES = 12  # per entry and head, if attention has its own bias
CLOSE = 1e-3  # share of the largest logit: above rounding differences between a pass of one row and of SLOTS


@dataclass
class ServedRow:
    """A text being continued: `ids` were drawn, `num_seen` tokens are cached, prompt included. `fault`: why
    it ended early.
    """

    before: Prefix
    sampling: Sampling
    longest: int  # tokens, prompt included
    cache: Cache
    draws: torch.Generator
    num_seen: int = 0
    ids: list[int] = field(default_factory=list)
    is_done: bool = False
    fault: AtelierError | None = None

    @property
    def is_read(self) -> bool:
        """Whether its whole prompt is cached."""
        return self.num_seen >= len(self.before.ids)


class Last(NamedTuple):
    """A row's last token, which is not cached yet, and its position."""

    token: int
    place: int
    cache: Cache


class Rows:
    """Passes of a model over rows; `num_passes` counts them, prompts included."""

    def __init__(self, model: TextModel, ends: Sequence[int]) -> None:
        self.model, self.ends, self.num_passes = model, ends, 0
        self.are_together = False
        network = cast(nn.Module, model)
        if isinstance(network, Decoder) and ring_of(network) is None:
            self._pass = _Pass()
            _take_apart(network, self._pass)
            self.are_together = self._is_exact()

    def room(self, before: Prefix, sampling: Sampling) -> int:
        """Bytes of keys and values that a text's row may need; raises as `begin`."""
        model = self.model
        one = model if isinstance(model, GangModel) else model.new_cache(1, 1, model.dtype)
        longest = room_behind(self.model, before.ids, sampling.max_tokens) + len(before.encoder or ())
        return longest * one.token_bytes

    def reading(self, before: Prefix) -> int:
        """Bytes of the mask of a pass over the start of a text; for an encoder, which reads everything at
        once, also of its heads' scores.
        """
        size = len(before.encoder or ())
        heads = cast(int, getattr(self.model.spec, "num_heads", 1))
        return (
            MASK_BYTES * piece_of(len(before.ids)) * len(before.ids)
            + (MASK_BYTES + SCORE_BYTES * heads) * size * size
        )

    def begin(self, before: Prefix, sampling: Sampling) -> ServedRow:
        """Read the start of a text, as far as one pass reads.

        Raises ConfigError if it is longer than the learned positions.
        """
        longest = room_behind(self.model, before.ids, sampling.max_tokens)
        cache = self.model.new_cache(1, longest, self.model.dtype)
        draws = torch.Generator().manual_seed(sampling.seed)
        row = ServedRow(before, sampling, longest, cache, draws)
        self.read(row)
        return row

    def read(self, row: ServedRow) -> None:
        """Read the next piece of the row's prompt; after the last piece draw the first id."""
        before, begin = row.before, row.num_seen
        end = min(begin + piece_of(len(before.ids)), len(before.ids))
        soft = None if before.soft is None else before.soft[begin:end]
        self.num_passes += 1
        logits_V = next_logits(
            self.model, before.ids[begin:end], begin, row.cache, soft, None if begin else before.encoder
        )
        row.num_seen = end
        if row.is_read:
            self._draw(row, logits_V)

    def step(self, rows: Sequence[ServedRow]) -> None:
        """Draw the next id of each of these unfinished rows, at most SLOTS."""
        last = [Last(row.ids[-1], row.num_seen, row.cache) for row in rows]
        if self.are_together:
            self.num_passes += 1
            found = list(self._logits(last))
        else:
            self.num_passes += len(rows)
            found = self._alone(last)
        for row, logits_V in zip(rows, found, strict=True):
            row.num_seen += 1
            self._draw(row, logits_V)

    def _draw(self, row: ServedRow, logits_V: Tensor) -> None:
        try:
            token = sample(logits_V, row.sampling.temperature, row.sampling.top_p, row.draws)
        except DataError as error:  # the logits are not finite: only this row ends
            row.fault, row.is_done = error, True
            return
        if token in self.ends:
            row.is_done = True
            return
        row.ids.append(token)
        row.is_done = row.num_seen + 1 >= row.longest

    def _alone(self, rows: Sequence[Last]) -> list[Tensor]:
        """The logits [V] after each last token, each in a pass of its own."""
        if not isinstance(self.model, GangModel):
            return [next_logits(self.model, [one.token], one.place, one.cache) for one in rows]
        passes = [(_one_token(one, self.model.device), one.cache) for one in rows]
        return [logits_BV[0] for logits_BV in self.model.logits(passes)]

    @torch.inference_mode()
    def _logits(self, rows: Sequence[Last]) -> Tensor:
        """[rows, V] logits after the last tokens, which join the caches."""
        model, empty = self.model, SLOTS - len(rows)
        assert not isinstance(model, GangModel)  # whose rows are never computed together
        device = model.device
        tokens_NT = torch.tensor([*(row.token for row in rows), *[self.ends[0]] * empty], device=device)[
            :, None
        ]
        places_NT = torch.tensor([*(row.place for row in rows), *[0] * empty], device=device)[:, None]
        batch = {
            "tokens_BT": tokens_NT,
            "positions_BT": places_NT,
            "documents_BT": torch.zeros_like(tokens_NT),
        }
        self._pass.num_rows = len(rows)
        try:
            caches = _Caches([row.cache for row in rows], places_NT, self._pass)
            hidden_NTD = model(batch, cache=caches).hidden
        finally:
            self._pass.num_rows = 0
        return last_logits(hidden_NTD[:, -1], model.head_weight, model.spec.ids)[: len(rows)]

    def _is_exact(self) -> bool:
        """Whether a row's logits have equal bits in the first and other slots, alone and beside others, and
        equal those of a pass of that row alone except for rounding.
        """
        size = self.model.spec.ids
        beside = [self._read([n % size]) for n in range(1, SLOTS)]
        row = self._read([size // 2])
        try:
            plain_V = next_logits(self.model, [row.token], row.place, copy.deepcopy(row.cache))
            alone_V = self._logits([_copied(row)])[0]
            found = [
                self._logits([_copied(row) for _ in range(SLOTS)]),
                self._logits([_copied(row), *map(_copied, beside)])[:1],
                self._logits([*map(_copied, beside), _copied(row)])[-1:],
            ]
        except (RuntimeError, ConfigError):  # another kind of attention, or a model with one position
            return False
        same = all(bool((each_NV == alone_V).all()) for each_NV in found)
        return same and bool((alone_V - plain_V).abs().max() <= CLOSE * plain_V.abs().max())

    def _read(self, ids: list[int]) -> Last:
        cache = self.model.new_cache(1, len(ids) + 1, self.model.dtype)
        logits_V = next_logits(self.model, ids, 0, cache)
        return Last(int(logits_V.argmax()), len(ids), cache)


def _one_token(row: Last, device: torch.device) -> Batch:
    return {
        "tokens_BT": torch.tensor([[row.token]], device=device),
        "positions_BT": torch.tensor([[row.place]], device=device),
        "documents_BT": torch.zeros((1, 1), dtype=torch.int64, device=device),
    }


def _copied(row: Last) -> Last:
    return row._replace(cache=copy.deepcopy(row.cache))


class _Pass:
    """The current pass: its number of used slots (0 = no pass over SLOTS), and the rows' keys and values in
    the current block.
    """

    num_rows = 0
    seen: Sequence[Seen] = ()


class _Block(Seen):
    """One block's keys and values of all rows of a pass, in each row's own buffers."""

    def __init__(self, seen: Sequence[Seen], now: _Pass) -> None:
        self._seen, self._now = seen, now

    def extend(self, key_BKTE: Tensor, value_BKTE: Tensor) -> tuple[Tensor, Tensor]:
        """Append each row's keys and values to its own; `_RowAttend` reads them there."""
        for at, seen in enumerate(self._seen):
            seen.extend(key_BKTE[at : at + 1], value_BKTE[at : at + 1])
        self._now.seen = self._seen
        return key_BKTE, value_BKTE


class _Caches(Cache):
    """The caches of a pass's rows as one, for a mask of the longest row: documents are 0, or -1 where a row
    has no token.
    """

    def __init__(self, caches: Sequence[Cache], places_NT: Tensor, now: _Pass) -> None:
        blocks = zip(*(cache.blocks for cache in caches), strict=True)
        self.blocks = [_Block(seen, now) for seen in blocks]
        self._places_NS = torch.arange(int(places_NT.max()) + 1, device=places_NT.device).expand(SLOTS, -1)
        self._documents_NS = -(self._places_NS > places_NT).long()

    def extend(self, documents_BT: Tensor, branches_BT: Tensor | None) -> tuple[Tensor, Tensor]:
        return self._documents_NS, torch.zeros_like(self._documents_NS)

    def seen_positions(self, positions_BT: Tensor) -> Tensor:
        return self._places_NS


class _RowAttend(nn.Module):
    """Attention computed row by row in passes over SLOTS rows, each over its own keys."""

    def __init__(self, inner: Attend, now: _Pass) -> None:
        super().__init__()
        self.inner, self._now = inner, now

    def forward(self, query_BHTE: Tensor, key_BKSE: Tensor, value_BKSE: Tensor, mask: Tensor) -> Tensor:
        if not self._now.num_rows:
            return self.inner(query_BHTE, key_BKSE, value_BKSE, mask)
        mixed_NHTE = torch.zeros_like(query_BHTE)
        for at, seen in enumerate(self._now.seen):
            # copy: products may round differently at addresses that are not multiples of 64 bytes
            query = query_BHTE[at : at + 1].clone()
            mixed_NHTE[at] = self.inner(query, *seen.seen(), mask[at : at + 1, ..., : seen.length])[0]
        return mixed_NHTE


class _RowMixture(nn.Module):
    """A mixture of experts computed row by row in passes over SLOTS rows, because an expert's number of
    tokens changes the rounding.
    """

    def __init__(self, inner: MoE, now: _Pass) -> None:
        super().__init__()
        self.inner, self._now = inner, now

    def forward(self, x_BTD: Tensor, tokens_BT: Tensor) -> Mixed:
        if not self._now.num_rows:
            return self.inner(x_BTD, tokens_BT)
        y_NTD = torch.zeros_like(x_BTD)
        found: Mixed | None = None
        for at in range(self._now.num_rows):
            found = Mixed(*self.inner(x_BTD[at : at + 1].clone(), tokens_BT[at : at + 1]))
            y_NTD[at] = found.y_BTD[0]
        assert found is not None
        return found._replace(y_BTD=y_NTD)


def _take_apart(network: nn.Module, now: _Pass) -> None:
    """Make attention and mixtures compute row by row in passes over SLOTS rows; nothing else changes."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Attend):
                setattr(module, name, _RowAttend(child, now))
            elif isinstance(child, MoE):
                setattr(module, name, _RowMixture(child, now))
