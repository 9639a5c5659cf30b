"""Autoregressive sampling with cached keys and values.

B rows, P tokens of a prompt, T tokens, D hidden, V vocab
"""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from atelier.engine.config.batch import ENCODER
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.config.generation import Sampling
from atelier.engine.config.registry import ModelSpec
from atelier.engine.inference.models import GangModel, TextModel, WholeModel
from atelier.engine.model.attention import Cache
from atelier.engine.model.contract import Output
from atelier.engine.objective.vocab_slice import VocabSlice

MASKED = 1 << 22  # entries of a pass's attention mask: one pass reads up to 2,048 tokens
FEWEST = 64  # minimum of tokens per pass over longer texts


def last_logits(
    hidden_BD: Tensor, head_VD: Tensor, columns: int, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Logits [B, V] of the first `columns` of the vocabulary, at least float32. `group`: the ranks that split
    it.
    """
    if group is None:
        logits_BV = hidden_BD @ head_VD[:columns].t()
    else:
        logits_BV = VocabSlice(group, 0, len(head_VD)).whole(hidden_BD @ head_VD.t())[:, :columns]
    return logits_BV.to(exact(logits_BV.dtype))


def exact(dtype: torch.dtype) -> torch.dtype:
    """The type of a result that is computed in `dtype`: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def sample(logits_V: Tensor, temperature: float, top_p: float, generator: torch.Generator) -> int:
    """Draw a token id from softmax(logits / temperature) cut to its nucleus: the fewest most probable tokens
    that together reach `top_p` (1904.09751). Temperature 0 takes the most probable token (the lowest id of
    equals) without a draw.

    Computed in float64 on the CPU from one uniform draw, so equal logits and seed give equal tokens.
    """
    draw_1 = torch.zeros(1, dtype=torch.float64)
    if temperature:
        draw_1 = torch.rand(1, dtype=torch.float64, generator=generator)
    return int(sample_rows(logits_V[None], torch.tensor([temperature], dtype=torch.float64), top_p, draw_1))


def sample_rows(logits_BV: Tensor, temperatures_B: Tensor, top_p: float, draws_B: Tensor) -> Tensor:
    """One token id [B] per row at the row's temperature, as `sample`, from uniform draws in [0, 1).

    Raises DataError if the logits are not finite.
    """
    logits_BV = logits_BV.detach().to("cpu", torch.float64)
    if not bool(torch.isfinite(logits_BV).all()):
        raise DataError("the model's logits are not finite; its weights are damaged or its training diverged")
    best_B, is_cold_B = logits_BV.argmax(1), temperatures_B == 0
    if bool(is_cold_B.all()):
        return best_B
    heat_B1 = torch.where(is_cold_B, 1.0, temperatures_B)[:, None].double()
    # subtract the maximum first: dividing by a tiny temperature would overflow
    share_BV = ((logits_BV - logits_BV.amax(1, keepdim=True)) / heat_B1).softmax(-1)
    share_BV, order_BV = share_BV.sort(descending=True, stable=True)
    reached_BV = share_BV.cumsum(1)
    last_B1 = (reached_BV < top_p).sum(1, keepdim=True).clamp(max=reached_BV.shape[1] - 1)
    aims_B1 = draws_B[:, None] * reached_BV.gather(1, last_B1)
    places_B1 = torch.searchsorted(reached_BV, aims_B1, right=True).minimum(last_B1)
    return torch.where(is_cold_B, best_B, order_BV.gather(1, places_B1)[:, 0])


@torch.inference_mode()
def continuations(
    model: TextModel,
    prompts: Sequence[Sequence[int]],
    *,
    length: int,
    temperatures_B: Tensor,
    top_p: float,
    draws: Callable[[int], Tensor],
    ends: Sequence[int],
    soft: Sequence[int] | None = None,
    encoders: Sequence[Sequence[int]] | None = None,
) -> list[list[int]]:
    """The continuation of each prompt, up to and including the first of `ends` or `length` ids in total, each
    at its temperature [B]. `draws(t)`: uniform draws [B] for the ids at position t; `soft`: soft prompts at
    the positions of prompts, which must then have equal length; `encoders`: encoder inputs, for models with
    an encoder.

    Shorter prompts are continued while longer ones are still read: most efficient for few prompts of similar
    length.
    """
    sizes_B = torch.tensor([len(prompt) for prompt in prompts])
    first, last = int(sizes_B.min()), int(sizes_B.max())
    given_BP = torch.tensor([[*prompt, *[ends[0]] * (last - len(prompt))] for prompt in prompts])
    device = model.device
    cache = model.new_cache(len(prompts), length, model.dtype)
    ends_E = torch.tensor(ends)
    rows_BT, num_seen, is_open_B = given_BP[:, :first], 0, torch.ones(len(prompts), dtype=torch.bool)
    soft_BT = None if soft is None else torch.tensor(soft, device=device).expand(len(prompts), -1)
    read = None if encoders is None else encoder_inputs(encoders, device)
    for place in range(first, length):
        logits_BV = _last_logits(model, rows_BT[:, num_seen:].to(device), num_seen, cache, soft_BT, read)
        num_seen, soft_BT, read = place, None, None
        ids_B = sample_rows(logits_BV, temperatures_B, top_p, draws(place))
        ids_B = torch.where(is_open_B, ids_B, ends[0])
        is_given_B = place < sizes_B
        if place < last:
            ids_B = torch.where(is_given_B, given_BP[:, place], ids_B)
        is_open_B &= is_given_B | ~torch.isin(ids_B, ends_E)
        rows_BT = torch.cat([rows_BT, ids_B[:, None]], dim=1)
        if not bool(is_open_B.any()):
            break
    found = [row[size:] for row, size in zip(rows_BT.tolist(), sizes_B.tolist(), strict=True)]
    sizes = [next((at + 1 for at, token in enumerate(row) if token in ends), len(row)) for row in found]
    return [row[:size] for row, size in zip(found, sizes, strict=True)]


def num_positions(spec: ModelSpec) -> int | None:
    """The maximum of tokens per row: the learned positions; None for rotary positions."""
    return getattr(spec, "max_positions", None) if getattr(spec, "positions", "") == "learned" else None


def room_behind(model: TextModel, prompt: Sequence[int], most: int) -> int:
    """The largest length in tokens of `prompt` with its continuation of at most `most` tokens.

    Raises ConfigError if the prompt is longer than the learned positions.
    """
    room = num_positions(model.spec)
    if room is None:
        return len(prompt) + most
    if len(prompt) > room:
        raise ConfigError(
            "prompt",
            f"has {len(prompt)} tokens, but the model learned {room} positions",
            f"shorten it to {room} tokens, or use a model with positions=rope",
        )
    return min(len(prompt) + most, room + 1)  # the last token predicts nothing and needs no position


def continuation(
    model: TextModel,
    prompt: list[int],
    sampling: Sampling,
    ends: Sequence[int],
    soft: list[int] | None = None,
    encoder: list[int] | None = None,
) -> Iterator[int]:
    """Token ids after `prompt` (at least one id), at most `sampling.max_tokens`, up to one of `ends` or the
    last learned position. Raises ConfigError for a longer prompt than that.

    `soft`: soft prompts at the prompt's positions, -1 = none; `encoder`: encoder input. Draws come from a
    generator seeded by `sampling.seed` alone.
    """
    longest = room_behind(model, prompt, sampling.max_tokens)
    generator = torch.Generator().manual_seed(sampling.seed)
    cache = model.new_cache(1, longest, model.dtype)
    new, num_seen = prompt, 0
    while num_seen + len(new) < longest:
        beside = (soft, encoder) if num_seen == 0 else (None, None)
        logits_V = next_logits(model, new, num_seen, cache, *beside)
        num_seen += len(new)
        token = sample(logits_V, sampling.temperature, sampling.top_p, generator)
        if token in ends:
            return
        yield token
        new = [token]


@torch.inference_mode()
def next_logits(
    model: TextModel,
    new: list[int],
    num_seen: int,
    cache: Cache,
    soft: list[int] | None = None,
    encoder: list[int] | None = None,
) -> Tensor:
    """Logits [V] after the tokens `new`, which follow `num_seen` cached tokens and are cached."""
    device = model.device
    prompts_BT = None if soft is None else torch.tensor([soft], device=device)
    read = None if encoder is None else encoder_inputs([encoder], device)
    return _last_logits(model, torch.tensor([new], device=device), num_seen, cache, prompts_BT, read)[0]


def piece_of(num_new: int, num_seen: int = 0, num_rows: int = 1) -> int:
    """The number of the `num_new` tokens after `num_seen` that one pass over `num_rows` rows reads."""
    entries = num_rows * (num_seen + num_new)
    return num_new if num_new * entries <= MASKED else min(num_new, max(FEWEST, MASKED // entries))


def encoder_inputs(rows: Sequence[Sequence[int]], device: torch.device) -> dict[str, Tensor]:
    """Encoder inputs as padded tensors of a batch."""
    longest = max(map(len, rows))
    places_BU = torch.arange(longest, device=device).expand(len(rows), -1)
    is_text_BU = places_BU < torch.tensor([[len(row)] for row in rows], device=device)
    tokens_BU = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
    found = (tokens_BU, places_BU, is_text_BU.long() - 1)
    return dict(zip(ENCODER, found, strict=True))


def _last_logits(
    model: TextModel,
    new_BT: Tensor,
    num_seen: int,
    cache: Cache,
    prompts_BT: Tensor | None = None,
    read: dict[str, Tensor] | None = None,
) -> Tensor:
    """Logits [B, V] after the last of these tokens, without padding. Many tokens are read in pieces, so that
    memory grows linearly, not quadratically.
    """
    places_T = torch.arange(num_seen, num_seen + new_BT.shape[1], device=new_BT.device)
    given = {
        "tokens_BT": new_BT,
        "positions_BT": places_T.expand(new_BT.shape),
        "documents_BT": torch.zeros_like(new_BT),
    }
    if prompts_BT is not None:
        given["prompts_BT"] = prompts_BT
    size = piece_of(new_BT.shape[1], num_seen, len(new_BT))
    for begin in range(0, new_BT.shape[1], size):
        batch = {name: tensor[:, begin : begin + size] for name, tensor in given.items()}
        batch |= read or {}
        if isinstance(model, GangModel):
            (logits_BV,) = model.logits([(batch, cache)])
        else:
            hidden_BTD = model(batch, cache=cache).hidden
            logits_BV = last_logits(hidden_BTD[:, -1], model.head_weight, model.spec.ids)
        read = None  # it is cached now
    return logits_BV


class SharedPrefix:
    """Keys and values of ids that all rows begin with, such as solved examples: read once."""

    def __init__(self, model: WholeModel, ids: Sequence[int]) -> None:
        self._model, self._num_ids = model, len(ids)
        self._dtype, device = model.dtype, model.device
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
            keys, values = (each.expand(num_rows, -1, -1, -1) for each in read.seen())
            own.extend(keys, values)
        cache.extend(self._read.documents_BS.expand(num_rows, -1), None)
        if self._read.positions_BS is not None:
            cache.seen_positions(self._read.positions_BS.expand(num_rows, -1))
        return cache
