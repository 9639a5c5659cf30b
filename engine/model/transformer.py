"""Layers of transformer decoders as plain modules, independent of parallelism: norms, attention, MLPs,
blocks; and dropout whose mask is a pure function of (seed, sample, position, layer, feature).

B rows, T tokens, D hidden
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from atelier.engine.config.blocks import MLPS, Blocks
from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.model.gpt import GPT
from atelier.engine.model.activation import ACTIVATIONS
from atelier.engine.model.attention import Attend, Cache, Seen, rotate
from atelier.engine.model.contract import Carried, Relations, rounded
from atelier.engine.model.hashing import A, C, mixed
from atelier.engine.model.mixtures import at_place, mixture_sums
from atelier.engine.model.moe import Mixed, MoE
from atelier.engine.model.product_keys import ProductKeys

_LAYER = 0x2545F4914F6CDD1D
_BITS = 31


def noise_keys(seed: int, samples_B: Tensor, places_T: Tensor) -> Tensor:
    """[B, T] int64: a dropout key for every token of these samples."""
    return mixed(mixed(samples_B + seed)[:, None] + places_T * A)


def layer_keys(noise_BT: Tensor, layer: int) -> Tensor:
    """The dropout keys of one layer."""
    return noise_BT + _wrapped(layer * _LAYER)


def _wrapped(number: int) -> int:
    """The number wrapped to 64 bits: products for higher layers or branches are too large."""
    return (number + 2**63) % 2**64 - 2**63


def dropout(x_BTD: Tensor, probability: float, noise_BT: Tensor, branch: int) -> Tensor:
    """x with each number zeroed with `probability`, the rest scaled up; `branch`: number in the layer."""
    features_D = torch.arange(x_BTD.shape[-1], device=x_BTD.device)
    bits_BTD = mixed(noise_BT[..., None] + _wrapped(branch * C) + features_D * A) & (2**_BITS - 1)
    keep_BTD = bits_BTD >= int(probability * 2**_BITS)
    return x_BTD * keep_BTD.to(x_BTD.dtype) * (1.0 / (1.0 - probability))


class Shared(NamedTuple):
    """Inputs of every block besides the residual stream: from the batch, dropout keys and the memory mask."""

    rope: Tensor | None  # rotary angles
    mask: Tensor  # or the ends of documents (engine/model/packed.py)
    batch: dict[str, Tensor]
    near: Tensor | None = None  # mask of attention with a window


def make_norm(spec: Blocks) -> nn.Module:
    """RMSNorm (1910.07467) or LayerNorm over the hidden width, as the spec says."""
    if spec.norm == "rms":
        return nn.RMSNorm(spec.hidden, eps=spec.norm_eps)
    return nn.LayerNorm(spec.hidden, eps=spec.norm_eps)


class SelfAttention(nn.Module):
    """Grouped-query attention (2305.13245), with RoPE if the spec has it."""

    def __init__(self, spec: GPT, *, is_causal: bool = True, window: int = 0) -> None:
        super().__init__()
        self.head_width = spec.head_width
        wide, narrow = spec.num_heads * spec.head_width, spec.kv_heads * spec.head_width
        self.query = nn.Linear(spec.hidden, wide, bias="qkv" in spec.bias)
        self.key = nn.Linear(spec.hidden, narrow, bias="qkv" in spec.bias)
        self.value = nn.Linear(spec.hidden, narrow, bias="qkv" in spec.bias)
        self.out = nn.Linear(wide, spec.hidden, bias="out" in spec.bias)
        self.has_norms = spec.qk_norm
        if spec.qk_norm:
            self.query_norm = nn.RMSNorm(spec.head_width, eps=spec.norm_eps)
            self.key_norm = nn.RMSNorm(spec.head_width, eps=spec.norm_eps)
        scale = None if spec.multipliers.scores == "auto" else spec.score_scale
        self.attend = Attend(is_causal=is_causal, scale=scale, window=window)

    def forward(
        self, x_BTD: Tensor, rope: Tensor | None, mask: Tensor, seen: Seen | None
    ) -> tuple[Tensor, Relations]:
        heads = (-1, self.head_width)
        query = self.query(x_BTD).unflatten(-1, heads)
        key, value = self.key(x_BTD).unflatten(-1, heads), self.value(x_BTD).unflatten(-1, heads)
        if self.has_norms:
            query, key = _normed(self.query_norm, query), _normed(self.key_norm, key)
        if rope is not None:
            query, key = rotate(query, rope), rotate(key, rope)
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        relations = Relations(query, key)
        if seen is not None:
            key, value = seen.extend(key, value)
        return self.out(self.attend(query, key, value, mask).transpose(1, 2).flatten(2)), relations


def _normed(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    """Normed in the type of the norm's weight: torch does the same for 16-bit `x`, with a warning."""
    return rounded(norm(x.to(norm.weight.dtype)))


class MLP(nn.Module):
    """down(f(up x)), or gated down(f(gate x) * up x) (2002.05202)."""

    def __init__(self, spec: Blocks) -> None:
        super().__init__()
        name, self.has_gate = MLPS[spec.mlp]
        self.activation, bias = ACTIVATIONS[name], "mlp" in spec.biased
        if self.has_gate:
            self.gate = nn.Linear(spec.hidden, spec.inner, bias=bias)
        self.up = nn.Linear(spec.hidden, spec.inner, bias=bias)
        self.down = nn.Linear(spec.inner, spec.hidden, bias=bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        if self.has_gate:
            return self.down(self.activation(self.gate(x_BTD)) * self.up(x_BTD))
        return self.down(self.activation(self.up(x_BTD)))


def make_mlp(spec: MixedBlocks, number: int) -> nn.Module:
    """The MLP of block `number`, [B, T, D] -> [B, T, D], or its mixture of experts."""
    return MoE(spec, number) if spec.has_experts(number) else MLP(spec)


def through_mlp(
    mlp: nn.Module, read_BTD: Tensor, tokens_BT: Tensor | None, place: int | None, num_mixtures: int
) -> tuple[Tensor, dict[str, Tensor] | None]:
    """The output of a block's MLP; for a mixture, at `place` among the model's, also its sums."""
    if place is None:
        return mlp(read_BTD), None
    found = Mixed(*mlp(read_BTD, tokens_BT))
    return found.y_BTD, mixture_sums(found, place, num_mixtures)


class BlockOutput(NamedTuple):
    """A block's outputs: the residual stream, its attention's queries and keys, its sums over tokens."""

    hidden_BTD: Tensor
    relations: Relations
    sums: dict[str, Tensor] | None = None  # additions to the model's sums


class Block(nn.Module):
    """Pre-norm block: x + attention(norm x), then that + mlp(norm of that), plus memory(the same norm) if
    there is one. Can be compiled and sharded alone: tensors in, tensors out. The attention's relations are
    detached unless `is_taught`, when an objective's gradient flows into them.
    """

    def __init__(self, spec: GPT, number: int = 0, *, is_causal: bool = True) -> None:
        super().__init__()
        self.dropout = self.most_dropout = spec.dropout
        self.is_taught = False
        self.norm1 = make_norm(spec)
        self.has_window = spec.has_window(number)
        window = spec.window if self.has_window else 0
        self.attention = SelfAttention(spec, is_causal=is_causal, window=window)
        self.norm2 = make_norm(spec)
        self.mlp = make_mlp(spec, number)
        self.place = spec.mixtures.index(number) if spec.has_experts(number) else None
        self.num_mixtures = len(spec.mixtures)
        self.share = spec.multipliers.residual
        self.has_memory = spec.has_memory(number)
        if self.has_memory:
            self.memory = ProductKeys(spec.memory, spec.hidden, spec.norm_eps)
            self.memories = (spec.memory.blocks.index(number), len(spec.memory.blocks))

    def forward(
        self,
        x_BTD: Tensor,
        rope: Tensor | None,
        mask: Tensor,
        noise_BT: Tensor | None = None,
        seen: Seen | None = None,
        tokens_BT: Tensor | None = None,
    ) -> BlockOutput:
        mixed_BTD, relations = self.attention(rounded(self.norm1(x_BTD)), rope, mask, seen)
        x_BTD = x_BTD + self._drop(mixed_BTD, noise_BT, 0)
        read_BTD = rounded(self.norm2(x_BTD))
        added_BTD, sums = through_mlp(self.mlp, read_BTD, tokens_BT, self.place, self.num_mixtures)
        x_BTD = x_BTD + self._drop(added_BTD, noise_BT, 1)
        if self.has_memory:
            found_BTD, reads_M = self.memory(read_BTD, tokens_BT)
            x_BTD = x_BTD + self._drop(found_BTD, noise_BT, 2)
            if reads_M is not None:
                sums = (sums or {}) | {"reads_LM": at_place(reads_M, *self.memories)}
        return BlockOutput(x_BTD, relations if self.is_taught else relations.detached(), sums)

    def _drop(self, x_BTD: Tensor, noise_BT: Tensor | None, branch: int) -> Tensor:
        x_BTD = x_BTD if self.share == 1.0 else x_BTD * self.share
        if not self.dropout or not self.training or noise_BT is None:
            return x_BTD
        return dropout(x_BTD, self.dropout, noise_BT, branch)


def make_blocks(spec: GPT, *, is_causal: bool = True) -> nn.ModuleList:
    """`num_layers` equal blocks with weights not yet set."""
    return nn.ModuleList(Block(spec, number, is_causal=is_causal) for number in range(spec.num_layers))


def run_blocks(
    blocks: nn.ModuleList, carried: Carried, shared: Shared, cache: Cache | None = None, *, first: int = 0
) -> tuple[Carried, Relations | None]:
    """Run these blocks in order on `hidden_BTD`; returns their outputs, with their sums added, and the last
    relations. `first`: number of the model's first block in dropout and cache.

    Memory tokens are visible but get no gradient: the recurrence of Transformer-XL (1901.02860, section 3.2)
    inside a row.
    """
    noise_BT, memory_BT = shared.batch.get("noise_BT"), shared.batch.get("memory_BT")
    relations, x_BTD, sums = None, carried["hidden_BTD"], dict(carried)
    tokens_BT = None
    if any(block.place is not None or block.has_memory for block in blocks):
        tokens_BT = shared.batch["tokens_BT"].masked_fill(shared.batch["documents_BT"] < 0, -1)
    for name, block in blocks.named_children():
        number = first + int(name)
        if memory_BT is not None:
            x_BTD = torch.where(memory_BT[..., None] > 0, x_BTD.detach(), x_BTD)
        keys = None if noise_BT is None else layer_keys(noise_BT, number)
        seen = None if cache is None else cache.blocks[number]
        more = () if block.place is None and not block.has_memory else (tokens_BT,)
        mask = shared.mask if shared.near is None or not block.has_window else shared.near
        x_BTD, relations, added = block(x_BTD, shared.rope, mask, keys, seen, *more)
        for key, value in (added or {}).items():
            if key in sums:  # otherwise the model does not need it
                sums[key] = sums[key] + value
    return sums | {"hidden_BTD": x_BTD}, relations


def set_dropout(model: nn.Module, share: float) -> None:
    """Multiply the dropout of all blocks of a model or stage by `share` from now on."""
    for block in model.modules():
        if isinstance(block, Block):
            block.dropout = block.most_dropout * share
