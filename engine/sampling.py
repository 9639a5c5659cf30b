"""Text from a model, a token after another: pick a token, keep keys and values, give out whole characters.

T tokens, D hidden, V vocab
"""

import codecs
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from engine.spec.error import ConfigError, DataError
from engine.spec.sampling import Sampling


def sample(logits_V: Tensor, temperature: float, top_p: float, generator: torch.Generator) -> int:
    """One token id of softmax(logits / temperature), cut to its nucleus: the fewest most probable tokens that
    together reach `top_p` (1904.09751). Temperature 0 takes the most probable token, of equals the lowest id,
    and draws nothing.

    Computed in float64 on the CPU from one uniform draw: the same logits and seed give the same token.
    """
    logits_V = logits_V.detach().to("cpu", torch.float64)
    if not bool(torch.isfinite(logits_V).all()):
        raise DataError("the model's logits are not finite; its weights are damaged or its training diverged")
    if temperature == 0:
        return int(logits_V.argmax())
    # the largest is taken away first: a tiny temperature would make infinity of it
    share_V = ((logits_V - logits_V.max()) / temperature).softmax(-1)
    share_V, order_V = share_V.sort(descending=True, stable=True)
    reached_V = share_V.cumsum(0)
    num_kept = min(int((reached_V < top_p).sum()) + 1, len(reached_V))
    draw = torch.rand((), dtype=torch.float64, generator=generator) * reached_V[num_kept - 1]
    place = int(torch.searchsorted(reached_V[:num_kept], draw, right=True))
    return int(order_V[min(place, num_kept - 1)])


def num_positions(spec: Any) -> int | None:
    """How many tokens a row may have: the learned positions; None for rotary ones, which have no end."""
    return spec.max_positions if getattr(spec, "positions", "") == "learned" else None


def continuation(model: Any, prompt: list[int], sampling: Sampling, end: int) -> Iterator[int]:
    """Token ids behind `prompt` (one id or more), at most `sampling.max_tokens` of them; stops before the end
    token, and where learned positions end. A prompt longer than those is a ConfigError.

    It draws from a generator of its own, seeded by `sampling.seed` alone: nothing else that runs moves it.
    """
    longest = len(prompt) + sampling.max_tokens
    room = num_positions(model.spec)
    if room is not None:
        if len(prompt) > room:
            raise ConfigError(
                "prompt",
                f"has {len(prompt)} tokens, but the model learned {room} positions",
                f"shorten it to {room} tokens, or take a model with positions=rope",
            )
        longest = min(longest, room + 1)  # nothing is predicted from the last token: it needs no position
    generator = torch.Generator().manual_seed(sampling.seed)
    cache = model.new_cache(1, longest, model.head_weight.dtype)
    new, num_seen = prompt, 0
    while num_seen + len(new) < longest:
        logits_V = next_logits(model, new, num_seen, cache)
        num_seen += len(new)
        token = sample(logits_V, sampling.temperature, sampling.top_p, generator)
        if token == end:
            return
        yield token
        new = [token]


@torch.inference_mode()
def next_logits(model: Any, new: list[int], num_seen: int, cache: Any) -> Tensor:
    """Logits [V] behind the tokens `new`; they stand behind the `num_seen` tokens of the cache, which takes
    them in."""
    device = model.head_weight.device
    tokens_BT = torch.tensor([new], device=device)
    batch = {
        "tokens_BT": tokens_BT,
        "positions_BT": torch.arange(num_seen, num_seen + len(new), device=device)[None],
        "documents_BT": torch.zeros_like(tokens_BT),
    }
    hidden_BTD = model(batch, cache=cache).hidden
    return (model.head_weight @ hidden_BTD[0, -1]).float()


def whole_characters(pieces: Iterable[bytes]) -> Iterator[str]:
    """The text of a stream of bytes, as soon as its characters are complete; what is no UTF-8 becomes U+FFFD.

    Joined, the pieces are the text of all bytes decoded at once.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in pieces:
        if text := decoder.decode(piece):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text
