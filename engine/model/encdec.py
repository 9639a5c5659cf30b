"""The encoder-decoder of engine/config/model/encdec.py as plain modules, independent of parallelism.

B rows, T tokens of the decoder, U of the encoder, S tokens seen, D hidden, H heads, E head width, R buckets
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from atelier.engine.config.model.encdec import SIDES, EncDec
from atelier.engine.model.attention import Attend, Cache, Seen, attention_mask
from atelier.engine.model.contract import Carried, Output, Relations, Split, rounded
from atelier.engine.model.mixtures import MixtureModel
from atelier.engine.model.soft_prompt import SOFT, SoftTable, embedded, hidden_from_each_other
from atelier.engine.model.transformer import dropout, layer_keys, make_mlp, make_norm, through_mlp

NO_ENCODER = 1  # padding tokens for the encoder in a batch without encoder tokens


@dataclass
class EncoderCache(Cache):
    """The decoding cache of rows whose encoder input was read: the encoder's states, and each decoding
    block's keys and values of them.
    """

    encoder_documents_BU: Tensor | None = None
    memory_BUD: Tensor | None = None
    crossed: list["Crossed"] = field(default_factory=list)


@dataclass
class Crossed:
    """One block's keys and values of the encoder's states, once computed."""

    kept: tuple[Tensor, Tensor] | None = None


class EncDecShared(NamedTuple):
    """Inputs of every block. `is_read`: nothing is left for the encoder to read. `reads_BT11`: 1 if a
    token's document has an encoder input.
    """

    batch: dict[str, Tensor]
    encoder_mask: Tensor
    mask: Tensor
    cross_mask: Tensor
    reads_BT11: Tensor
    buckets: tuple[Tensor, Tensor]  # of the encoder's and of the decoder's distances
    is_read: bool


def buckets_of(new: Tensor, seen: Tensor, spec: EncDec, *, is_causal: bool) -> Tensor:
    """[T, S] the bucket of each distance from places [T] to places [S] (T5, 1910.10683, section 2.1): half of
    the buckets hold one distance each, the rest grow logarithmically up to `max_distance`.
    """
    away = seen[None, :] - new[:, None]
    number, first = spec.buckets, 0
    if is_causal:
        away = (-away).clamp(min=0)
    else:
        number //= 2
        first, away = (away > 0).long() * number, away.abs()
    exact = number // 2
    far = (away.clamp(min=1).float() / exact).log() / math.log(spec.max_distance / exact) * (number - exact)
    return first + torch.where(away < exact, away, (exact + far.long()).clamp(max=number - 1))


def scores_of(bias_RH: Tensor, buckets_TS: Tensor, mask_B1TS: Tensor) -> Tensor:
    """[B, H, T, S] additions to scores: the bucket's bias; the lowest number if a token is not visible."""
    bias_1HTS = rounded(bias_RH)[buckets_TS].movedim(-1, 0)[None]
    return torch.where(mask_B1TS, bias_1HTS, torch.finfo(bias_1HTS.dtype).min)


class BiasedAttention(nn.Module):
    """Attention over `memory`, or over its own input without one; scores are not scaled."""

    def __init__(self, spec: EncDec, *, is_causal: bool) -> None:
        super().__init__()
        self.head_width, wide = spec.head_width, spec.num_heads * spec.head_width
        self.query = nn.Linear(spec.hidden, wide, bias=False)
        self.key = nn.Linear(spec.hidden, wide, bias=False)
        self.value = nn.Linear(spec.hidden, wide, bias=False)
        self.out = nn.Linear(wide, spec.hidden, bias=False)
        self.attend = Attend(is_causal=is_causal, scale=1.0)

    def forward(
        self,
        x_BTD: Tensor,
        memory_BSD: Tensor | None,
        mask: Tensor,
        seen: Seen | None = None,
        crossed: Crossed | None = None,
        reads_BT11: Tensor | None = None,
    ) -> Tensor:
        query = self._heads(self.query(x_BTD))
        if crossed is not None and crossed.kept is not None:
            key, value = crossed.kept
        else:
            read = x_BTD if memory_BSD is None else memory_BSD
            key, value = self._heads(self.key(read)), self._heads(self.value(read))
            if crossed is not None:
                crossed.kept = key, value
        if seen is not None:
            key, value = seen.extend(key, value)
        mixed_BTHE = self.attend(query, key, value, mask).transpose(1, 2)
        if reads_BT11 is not None:
            mixed_BTHE = mixed_BTHE * reads_BT11.to(mixed_BTHE.dtype)
        return self.out(mixed_BTHE.flatten(2))

    def _heads(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.unflatten(-1, (-1, self.head_width)).transpose(1, 2)


class EncDecBlock(nn.Module):
    """Pre-norm block: self-attention, in the decoder attention over the encoder's states, then the MLP, each
    added to the residual. The encoder's last block ends with a norm. Also returns its sums.
    """

    def __init__(self, spec: EncDec, number: int) -> None:
        super().__init__()
        self.dropout = self.most_dropout = spec.dropout
        self.num_blocks = spec.num_blocks  # of the model: offset of dropout keys
        self.decodes, self.ends = number >= spec.num_encoding, number == spec.num_encoding - 1
        self.norm1, self.norm2 = make_norm(spec), make_norm(spec)
        self.attention = BiasedAttention(spec, is_causal=self.decodes)
        if self.decodes:
            self.norm3 = make_norm(spec)
            self.cross = BiasedAttention(spec, is_causal=False)
        self.mlp = make_mlp(spec, number)
        if self.ends:
            self.norm = make_norm(spec)
        self.place = spec.mixtures.index(number) if spec.has_experts(number) else None
        self.num_mixtures = len(spec.mixtures)

    def forward(
        self,
        x_BTD: Tensor,
        mask: Tensor,
        noise_BT: Tensor | None = None,
        tokens_BT: Tensor | None = None,
        memory_BUD: Tensor | None = None,
        cross_mask: Tensor | None = None,
        reads_BT11: Tensor | None = None,
        seen: Seen | None = None,
        crossed: Crossed | None = None,
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        mixed_BTD = self.attention(rounded(self.norm1(x_BTD)), None, mask, seen)
        x_BTD = x_BTD + self._drop(mixed_BTD, noise_BT, 0)
        if self.decodes:
            assert memory_BUD is not None  # the encoder's blocks come first
            read_BTD = rounded(self.norm3(x_BTD))
            mixed_BTD = self.cross(read_BTD, rounded(memory_BUD), cross_mask, None, crossed, reads_BT11)
            keys = None if noise_BT is None else layer_keys(noise_BT, self.num_blocks)
            x_BTD = x_BTD + self._drop(mixed_BTD, keys, 0)
        read_BTD = rounded(self.norm2(x_BTD))
        added_BTD, sums = through_mlp(self.mlp, read_BTD, tokens_BT, self.place, self.num_mixtures)
        x_BTD = x_BTD + self._drop(added_BTD, noise_BT, 1)
        return (self.norm(x_BTD) if self.ends else x_BTD), sums

    def _drop(self, x_BTD: Tensor, noise_BT: Tensor | None, branch: int) -> Tensor:
        if not self.dropout or not self.training or noise_BT is None:
            return x_BTD
        return dropout(x_BTD, self.dropout, noise_BT, branch)


class EncoderDecoder(MixtureModel[EncDecShared]):
    """Embedding, encoder blocks, decoder blocks, final norm. Objectives apply the head `head_weight` [V, D].
    Decoder tokens see the encoder tokens of their document; without any, nothing is added.
    """

    spec: EncDec

    def __init__(self, spec: EncDec) -> None:
        super().__init__()
        self.spec = spec
        self.embed = nn.Embedding(spec.tokens, spec.hidden)
        if spec.soft_prompt.length:
            self.soft = SoftTable(spec.soft_prompt.length, spec.hidden)
        # for a bucket's one-hot vector: the biases of all heads
        self.bias = nn.ModuleDict(
            {side: nn.Linear(spec.buckets, spec.num_heads, bias=False) for side in SIDES}
        )
        self.blocks = nn.ModuleList(EncDecBlock(spec, number) for number in range(spec.num_blocks))
        self.norm = make_norm(spec)
        if not spec.tied:
            self.head = nn.Linear(spec.hidden, spec.tokens, bias=False)

    @property
    def head_weight(self) -> Tensor:
        return self.embed.weight if self.spec.tied else self.head.weight

    def initial(self, name: str) -> tuple[str, float]:
        """As in T5 (mesh-tensorflow): by the number of inputs."""
        spec, (owner, leaf) = self.spec, name.rsplit(".", 1)
        last = owner.rsplit(".", 1)[-1]
        if last.startswith("norm"):
            return ("ones" if leaf == "weight" else "zeros"), 0.0
        if leaf == "bias" or (owner.endswith("router") and leaf != "weight"):
            return "zeros", 0.0
        wide = spec.num_heads * spec.head_width
        known = {"embed": 1, SOFT: 1, "query": spec.hidden * spec.head_width, "out": wide}
        inputs = known.get(last, spec.hidden)
        if last == "down" or leaf == "down":
            inputs = spec.expert_inner if leaf == "down" else spec.inner
        return "normal", spec.init_std * inputs**-0.5

    def new_cache(self, batch_size: int, max_len: int, dtype: torch.dtype) -> EncoderCache:
        """An empty cache for `max_len` decoder tokens in each of `batch_size` rows."""
        spec = self.spec
        blocks = [(spec.num_heads, spec.head_width)] * spec.num_layers
        device = next(self.parameters()).device  # a pipeline stage may have no embedding
        found = EncoderCache.empty(blocks, batch_size, max_len, dtype=dtype, device=device)
        found.crossed = [Crossed() for _ in blocks]
        return found

    def shared(self, batch: dict[str, Tensor], cache: Cache | None = None) -> EncDecShared:
        documents_BT, branches_BS = batch["documents_BT"], batch.get("branches_BT")
        documents_BS, device = documents_BT, documents_BT.device
        encoder_BU = batch.get("encoder_documents_BU")
        if isinstance(cache, EncoderCache):
            documents_BS, branches_BS = cache.extend(documents_BT, branches_BS)
            encoder_BU = cache.encoder_documents_BU if encoder_BU is None else encoder_BU
            cache.encoder_documents_BU = encoder_BU
        if encoder_BU is None:
            encoder_BU = documents_BT.new_full((len(documents_BT), NO_ENCODER), -1)
        everywhere_B = torch.ones(len(encoder_BU), device=device)
        encoder_mask = attention_mask(encoder_BU, encoder_BU, bidirectional_B=everywhere_B)
        if (hides := self.spec.soft_prompt.mask) != "none" and "encoder_tokens_BU" in batch:
            is_soft_BU = batch["encoder_tokens_BU"] >= self.spec.tokens
            encoder_mask = encoder_mask & ~hidden_from_each_other(is_soft_BU, hides)
        cross_BTU = (documents_BT[:, :, None] == encoder_BU[:, None, :]) & (encoder_BU[:, None, :] >= 0)
        num_new, num_seen = documents_BT.shape[1], documents_BS.shape[1]
        at_U = torch.arange(encoder_BU.shape[1], device=device)
        at_S = torch.arange(num_seen, device=device)
        buckets = (
            buckets_of(at_U, at_U, self.spec, is_causal=False),
            buckets_of(at_S[num_seen - num_new :], at_S, self.spec, is_causal=True),
        )
        return EncDecShared(
            batch=batch,
            encoder_mask=encoder_mask,
            mask=attention_mask(documents_BT, documents_BS, branches_BS),
            cross_mask=cross_BTU[:, None],
            reads_BT11=cross_BTU.any(-1)[:, :, None, None],
            buckets=buckets,
            is_read=isinstance(cache, EncoderCache) and "encoder_tokens_BU" not in batch,
        )

    def enter(self, batch: dict[str, Tensor]) -> Carried:
        tokens_BT = batch["tokens_BT"]
        encoder_BU = batch.get("encoder_tokens_BU")
        if encoder_BU is None:
            encoder_BU = tokens_BT.new_zeros(len(tokens_BT), NO_ENCODER)
        hidden_BTD = self._embedded(tokens_BT)
        units_RR = torch.eye(self.spec.buckets, dtype=hidden_BTD.dtype, device=hidden_BTD.device)
        bias_2RH = torch.stack([self.bias[side](units_RR) for side in SIDES]).to(hidden_BTD.dtype)
        return {"hidden_BTD": hidden_BTD, "memory_BUD": self._embedded(encoder_BU), "bias_2RH": bias_2RH}

    def _embedded(self, tokens_BT: Tensor) -> Tensor:
        if self.spec.soft_prompt.length:
            return embedded(tokens_BT, self.embed, self.soft, self.spec.tokens)
        return self.embed(tokens_BT)

    def through(
        self, carried: Carried, shared: EncDecShared, cache: Cache | None = None
    ) -> tuple[Carried, Relations | None]:
        carried, blocks = dict(carried), list(self.blocks.named_children())
        encoding = [(int(name), block) for name, block in blocks if int(name) < self.spec.num_encoding]
        decoding = [(int(name), block) for name, block in blocks if int(name) >= self.spec.num_encoding]
        if encoding and not shared.is_read:
            self._encode(encoding, carried, shared)
        if decoding:
            self._decode(decoding, carried, shared, cache if isinstance(cache, EncoderCache) else None)
        return carried, None

    def _encode(self, blocks: list[tuple[int, nn.Module]], carried: Carried, shared: EncDecShared) -> None:
        mask = scores_of(carried["bias_2RH"][0], shared.buckets[0], shared.encoder_mask)
        noise_BU, tokens_BU = shared.batch.get("encoder_noise_BU"), None
        if self.spec.num_experts and "encoder_tokens_BU" in shared.batch:
            is_text_BU = shared.batch["encoder_documents_BU"] >= 0
            tokens_BU = shared.batch["encoder_tokens_BU"].masked_fill(~is_text_BU, -1)
        elif self.spec.num_experts:  # only padding
            tokens_BU = shared.encoder_mask.new_full((len(mask), NO_ENCODER), -1, dtype=torch.long)
        for number, block in blocks:
            keys = None if noise_BU is None else layer_keys(noise_BU, number)
            carried["memory_BUD"], sums = block(carried["memory_BUD"], mask, keys, tokens_BU)
            _add(carried, sums)

    def _decode(
        self,
        blocks: list[tuple[int, nn.Module]],
        carried: Carried,
        shared: EncDecShared,
        cache: EncoderCache | None,
    ) -> None:
        mask = scores_of(carried["bias_2RH"][1], shared.buckets[1], shared.mask)
        nothing_11 = carried["bias_2RH"].new_zeros(1, 1)
        cross_mask = scores_of(
            nothing_11, torch.zeros_like(shared.cross_mask[0, 0], dtype=torch.long), shared.cross_mask
        )
        noise_BT, tokens_BT, memory_BUD = shared.batch.get("noise_BT"), None, carried["memory_BUD"]
        if cache is not None:
            memory_BUD = cache.memory_BUD = memory_BUD if cache.memory_BUD is None else cache.memory_BUD
        if self.spec.num_experts:
            tokens_BT = shared.batch["tokens_BT"].masked_fill(shared.batch["documents_BT"] < 0, -1)
        for number, block in blocks:
            keys = None if noise_BT is None else layer_keys(noise_BT, number)
            own = number - self.spec.num_encoding
            kept = () if cache is None else (cache.blocks[own], cache.crossed[own])
            carried["hidden_BTD"], sums = block(
                carried["hidden_BTD"], mask, keys, tokens_BT, memory_BUD, cross_mask, shared.reads_BT11, *kept
            )
            _add(carried, sums)

    def leave(
        self,
        carried: Carried,
        shared: EncDecShared,
        relations: Relations | None = None,
        cache: Cache | None = None,
    ) -> Output:
        hidden_BTD = self.norm(carried["hidden_BTD"])
        hidden_BTD = hidden_BTD * self.spec.hidden**-0.5 if self.spec.tied else hidden_BTD
        return Output(hidden=hidden_BTD, aux={name: carried[name] for name in self.sums()})

    def carries(self) -> dict[str, tuple[str | int, ...]]:
        D = self.spec.hidden
        return {
            "hidden_BTD": ("B", "T", D),
            "memory_BUD": ("B", "U", D),
            "bias_2RH": (len(SIDES), self.spec.buckets, "H"),
        }

    def set_dropout(self, share: float) -> None:
        for block in self.blocks:
            if isinstance(block, EncDecBlock):
                block.dropout = block.most_dropout * share

    def parts(self) -> dict[str, list[str]]:
        soft = [SOFT] if self.spec.soft_prompt.length else []
        return {"enter": ["embed", *soft, "bias"], "leave": ["norm", "embed" if self.spec.tied else "head"]}

    def splits(self) -> dict[str, Split]:
        found: dict[str, Split] = {"embed": "vocabulary", "norm": "tokens", "bias.*": "out"}
        found |= {f"blocks.*.{norm}": "tokens" for norm in ("norm", "norm1", "norm2", "norm3")}
        found |= {"blocks.*.attention": "inside", "blocks.*.cross": "across"}
        for name in ("attention", "cross"):
            found |= {f"blocks.*.{name}.{part}": "out" for part in ("query", "key", "value")}
            found[f"blocks.*.{name}.out"] = "in"
        for number in range(self.spec.num_blocks):
            mlp = f"blocks.{number}.mlp"
            if self.spec.has_experts(number):
                found[mlp] = "mixture"
            else:
                found |= {mlp: "inside", f"{mlp}.down": "in", f"{mlp}.gate": "out", f"{mlp}.up": "out"}
        if self.spec.soft_prompt.length:
            found[SOFT] = "whole"
        if not self.spec.tied:
            found["head"] = "vocabulary"
        return found


def _add(carried: Carried, sums: dict[str, Tensor] | None) -> None:
    for name, value in (sums or {}).items():
        if name in carried:  # otherwise the model does not need it
            carried[name] = carried[name] + value


def build(spec: EncDec) -> EncoderDecoder:
    """The network on the default device; `atelier.engine.model.load.initialise` sets its weights."""
    return EncoderDecoder(spec)
