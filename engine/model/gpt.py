"""The decoder of engine/spec/model/gpt.py as plain modules that know nothing of parallelism.

B rows, T tokens, S tokens seen (those in the cache included), D hidden, H query heads, K key/value heads,
E head width, V vocabulary
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.model.dropout import dropout, layer_keys
from engine.model.moe import MoE
from engine.model.output import Output, Relations
from engine.model.precision import compute_dtype
from engine.model.split import Split
from engine.spec.error import ConfigError
from engine.spec.model.gpt import GPT

Shared = tuple[Tensor | None, Tensor, Tensor | None]  # rotary angles, mask, dropout's keys
ROWS = 256  # queries a step of attention with an additive mask


@dataclass
class Seen:
    """One block's keys and values of the tokens seen, in buffers [B, K, max_len, E] of which `length` are
    filled.
    """

    keys: Tensor
    values: Tensor
    length: int = 0

    def extend(self, key_BKTE: Tensor, value_BKTE: Tensor) -> tuple[Tensor, Tensor]:
        """Put new keys and values behind the old ones; returns all of them [B, K, S, E]."""
        end = self.length + key_BKTE.shape[2]
        self.keys[:, :, self.length : end] = key_BKTE
        self.values[:, :, self.length : end] = value_BKTE
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


@dataclass
class Cache:
    """What decoding keeps of the tokens seen: each block's keys and values; document and branch, for the
    mask.
    """

    blocks: list[Seen]
    documents_BS: Tensor
    branches_BS: Tensor
    length: int = 0

    def extend(self, documents_BT: Tensor, branches_BT: Tensor | None) -> tuple[Tensor, Tensor]:
        """Note T new tokens; returns documents and branches of all S tokens seen, the new ones included."""
        end, room = self.length + documents_BT.shape[1], self.documents_BS.shape[1]
        if end > room:
            raise ConfigError(
                "cache", f"{end} tokens do not fit in {room}", "make the cache with a larger max_len"
            )
        self.documents_BS[:, self.length : end] = documents_BT
        self.branches_BS[:, self.length : end] = 0 if branches_BT is None else branches_BT
        self.length = end
        return self.documents_BS[:, :end], self.branches_BS[:, :end]


def attention_mask(
    documents_BT: Tensor,
    documents_BS: Tensor,
    branches_BS: Tensor | None = None,
    places_T: Tensor | None = None,
) -> Tensor:
    """[B, 1, T, S] bool: where T tokens may look among S: not later, same document, shared or own branch.

    `places_T` says where in the row of S the tokens are; None = they are its last. A branch of 0 is shared: a
    prompt that every option behind it sees, while the options do not see each other.
    """
    num_new, num_seen = documents_BT.shape[1], documents_BS.shape[1]
    begin = num_seen - num_new
    may = documents_BT[:, :, None] == documents_BS[:, None, :]
    if branches_BS is not None:
        may &= (branches_BS[:, None, :] == 0) | (branches_BS[:, begin:, None] == branches_BS[:, None, :])
    if places_T is None:
        places_T = torch.arange(begin, num_seen, device=documents_BS.device)
    not_later = places_T[:, None] >= torch.arange(num_seen, device=documents_BS.device)
    return (may & not_later)[:, None]


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as numbers to add to the scores: 0 where one may look, else -inf."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))


def attend(query_BHTE: Tensor, key_BKSE: Tensor, value_BKSE: Tensor, mask_B1TS: Tensor) -> Tensor:
    """Attention [B, H, T, E] of the last T of S tokens.

    A bool mask goes to torch's kernels. An additive one means plain products, ROWS queries at a time without
    the keys that are later than all of them: twice as fast as torch's kernel for bf16 on a CPU.
    """
    groups = query_BHTE.shape[1] // key_BKSE.shape[1]
    if mask_B1TS.dtype == torch.bool:
        return F.scaled_dot_product_attention(
            query_BHTE, key_BKSE, value_BKSE, attn_mask=mask_B1TS, enable_gqa=groups > 1
        )
    if groups > 1:
        key_BKSE, value_BKSE = key_BKSE.repeat_interleave(groups, 1), value_BKSE.repeat_interleave(groups, 1)
    num_new, num_seen = mask_B1TS.shape[2:]
    query_BHTE = query_BHTE * query_BHTE.shape[-1] ** -0.5
    mixed = []
    for begin in range(0, num_new, ROWS):
        end = min(begin + ROWS, num_new)
        seen = num_seen - num_new + end
        scores = query_BHTE[:, :, begin:end] @ key_BKSE[:, :, :seen].transpose(2, 3)
        weights = (scores + mask_B1TS[:, :, begin:end, :seen]).softmax(-1)
        mixed.append(weights @ value_BKSE[:, :, :seen])
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=2)


def rope_angles(positions_BT: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> Tensor:
    """cos and sin [2, B, T, 1, E/2] of RoPE (2104.09864).

    Computed from the positions each time: a meta build would leave a buffer empty.
    """
    steps = torch.arange(0, head_dim, 2, dtype=dtype, device=positions_BT.device)
    angles = positions_BT.to(dtype)[:, :, None, None] * (1.0 / theta ** (steps / head_dim))
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x_BTHE: Tensor, rope_2BT1E: Tensor) -> Tensor:
    """Rotate the pairs (i, i + E/2) in the precision of the angles; the result has the type of x."""
    cos, sin = rope_2BT1E
    left, right = x_BTHE.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1).to(x_BTHE.dtype)


def make_norm(spec: GPT) -> nn.Module:
    if spec.norm == "rms":
        return nn.RMSNorm(spec.hidden, eps=spec.norm_eps)
    return nn.LayerNorm(spec.hidden, eps=spec.norm_eps)


class Attend(nn.Module):
    """`attend` as a module of its own, so that it can be wrapped from outside."""

    def forward(self, query_BHTE: Tensor, key_BKSE: Tensor, value_BKSE: Tensor, mask: Tensor) -> Tensor:
        return attend(query_BHTE, key_BKSE, value_BKSE, mask)


class Attention(nn.Module):
    """Grouped-query attention (2305.13245) with RoPE where the spec asks for it."""

    def __init__(self, spec: GPT) -> None:
        super().__init__()
        self.head_dim = spec.head_dim
        self.query = nn.Linear(spec.hidden, spec.num_heads * spec.head_dim, bias=False)
        self.key = nn.Linear(spec.hidden, spec.kv_heads * spec.head_dim, bias=False)
        self.value = nn.Linear(spec.hidden, spec.kv_heads * spec.head_dim, bias=False)
        self.out = nn.Linear(spec.num_heads * spec.head_dim, spec.hidden, bias=False)
        self.attend = Attend()

    def forward(
        self, x_BTD: Tensor, rope: Tensor | None, mask: Tensor, seen: Seen | None
    ) -> tuple[Tensor, Relations]:
        heads = (*x_BTD.shape[:2], -1, self.head_dim)
        query, key, value = (
            self.query(x_BTD).view(heads),
            self.key(x_BTD).view(heads),
            self.value(x_BTD).view(heads),
        )
        if rope is not None:
            query, key = rotate(query, rope), rotate(key, rope)
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        relations = Relations(query, key)
        if seen is not None:
            key, value = seen.extend(key, value)
        return self.out(self.attend(query, key, value, mask).transpose(1, 2).flatten(2)), relations


class SwiGLU(nn.Module):
    """down(silu(gate x) * up x) (2002.05202)."""

    def __init__(self, spec: GPT) -> None:
        super().__init__()
        self.gate = nn.Linear(spec.hidden, spec.inner, bias=False)
        self.up = nn.Linear(spec.hidden, spec.inner, bias=False)
        self.down = nn.Linear(spec.inner, spec.hidden, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))


class GELU(nn.Module):
    """down(gelu(up x))."""

    def __init__(self, spec: GPT) -> None:
        super().__init__()
        self.up = nn.Linear(spec.hidden, spec.inner, bias=False)
        self.down = nn.Linear(spec.inner, spec.hidden, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x_BTD), approximate="tanh"))


def make_mlp(spec: GPT) -> nn.Module:
    if spec.num_experts:
        return MoE(spec.num_experts, spec.experts_per_token, spec.hidden, spec.inner)
    return SwiGLU(spec) if spec.mlp == "swiglu" else GELU(spec)


class Block(nn.Module):
    """x + attention(norm x), then that + mlp(norm of that). Can be compiled and sharded alone: tensors in,
    tensors out. What it attended by goes out detached, unless `is_taught`: then an objective's gradient comes
    in there.
    """

    def __init__(self, spec: GPT) -> None:
        super().__init__()
        self.dropout = spec.dropout
        self.is_taught = False
        self.norm1 = make_norm(spec)
        self.attention = Attention(spec)
        self.norm2 = make_norm(spec)
        self.mlp = make_mlp(spec)

    def forward(
        self,
        x_BTD: Tensor,
        rope: Tensor | None,
        mask: Tensor,
        noise_BT: Tensor | None = None,
        seen: Seen | None = None,
    ) -> tuple[Tensor, Relations]:
        mixed_BTD, relations = self.attention(self.norm1(x_BTD), rope, mask, seen)
        x_BTD = x_BTD + self._drop(mixed_BTD, noise_BT, 0)
        x_BTD = x_BTD + self._drop(self.mlp(self.norm2(x_BTD)), noise_BT, 1)
        return x_BTD, relations if self.is_taught else relations.detached()

    def _drop(self, x_BTD: Tensor, noise_BT: Tensor | None, branch: int) -> Tensor:
        if not self.dropout or not self.training or noise_BT is None:
            return x_BTD
        return dropout(x_BTD, self.dropout, noise_BT, branch)


class Decoder(nn.Module):
    """Embedding, blocks, final norm. The head is not applied: `head_weight` [V, D] is for the objectives."""

    def __init__(self, spec: GPT) -> None:
        super().__init__()
        self.spec = spec
        self.embed = nn.Embedding(spec.tokens, spec.hidden)
        if spec.positions == "learned":
            self.positions = nn.Embedding(spec.max_positions, spec.hidden)
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.num_layers))
        self.norm = make_norm(spec)
        self.auxiliary: nn.Module | None = None  # while a student learns by it: engine.model.auxiliary
        if not spec.tied:
            self.head = nn.Linear(spec.hidden, spec.tokens, bias=False)

    @property
    def head_weight(self) -> Tensor:
        return self.embed.weight if self.spec.tied else self.head.weight

    def initial(self, name: str) -> tuple[str, float]:
        """How the weight `name` begins: ("normal", std), ("ones", 0) or ("zeros", 0).

        What is added to the residual stream begins 1/sqrt(2 L) smaller, as in GPT-2.
        """
        owner, leaf = name.rsplit(".", 1)
        if owner.rsplit(".", 1)[-1].startswith("norm"):
            return ("ones" if leaf == "weight" else "zeros"), 0.0
        is_residual = owner.endswith(("attention.out", "mlp.down")) or name.endswith("experts.down")
        return "normal", self.spec.init_std * ((2 * self.spec.num_layers) ** -0.5 if is_residual else 1.0)

    def new_cache(self, batch_size: int, max_len: int, dtype: torch.dtype) -> Cache:
        """Room for `max_len` tokens in each of `batch_size` rows, with keys and values of `dtype`."""
        device = self.embed.weight.device
        shape = (batch_size, self.spec.kv_heads, max_len, self.spec.head_dim)
        kind = {"dtype": dtype, "device": device}
        return Cache(
            blocks=[Seen(torch.zeros(shape, **kind), torch.zeros(shape, **kind)) for _ in self.blocks],
            documents_BS=torch.full((batch_size, max_len), -1, device=device),
            branches_BS=torch.zeros((batch_size, max_len), dtype=torch.long, device=device),
        )

    def forward(self, batch: dict[str, Tensor], cache: Cache | None = None) -> Output:
        """Hidden states of the batch's tokens; with a cache they stand behind the tokens that it holds."""
        shared = self.shared(batch, cache)
        x_BTD, relations = self.through(self.enter(batch), shared, cache)
        return self.leave(x_BTD, shared, relations)

    def enter(self, batch: dict[str, Tensor]) -> Tensor:
        """What the first block gets [B, T, D]."""
        x_BTD = self.embed(batch["tokens_BT"])
        if self.spec.positions == "learned":
            x_BTD = x_BTD + self.positions(batch["positions_BT"])
        return x_BTD

    def shared(self, batch: dict[str, Tensor], cache: Cache | None = None) -> Shared:
        """What every block gets besides: rotary angles, mask, dropout's keys. No weight is needed for it.

        The batch may be a part of its rows: then `documents_BS` has the documents of whole rows, `places_T`
        the tokens' places in them.
        """
        documents_BT, branches_BS = batch["documents_BT"], batch.get("branches_BT")
        documents_BS = batch.get("documents_BS", documents_BT)
        if cache is not None:
            documents_BS, branches_BS = cache.extend(documents_BT, branches_BS)
        mask = attention_mask(documents_BT, documents_BS, branches_BS, batch.get("places_T"))
        weight = next(self.parameters())
        if mask.device.type == "cpu" and compute_dtype(weight) == torch.bfloat16:
            mask = additive(mask, torch.bfloat16)
        rope = None
        if self.spec.positions == "rope":
            exact = torch.float64 if weight.dtype == torch.float64 else torch.float32
            rope = rope_angles(batch["positions_BT"], self.spec.head_dim, self.spec.rope_theta, exact)
        elif "branches_BT" not in batch:  # options behind one prompt share positions: the row may be longer
            self._check_length(documents_BS.shape[1])
        return rope, mask, batch.get("noise_BT")

    def through(
        self, x_BTD: Tensor, shared: Shared, cache: Cache | None = None
    ) -> tuple[Tensor, Relations | None]:
        """The blocks that are here, in order; and what the last of them attended by."""
        rope, mask, noise_BT = shared
        relations = None
        for name, block in self.blocks.named_children():
            keys = None if noise_BT is None else layer_keys(noise_BT, int(name))
            seen = None if cache is None else cache.blocks[int(name)]
            x_BTD, relations = block(x_BTD, rope, mask, keys, seen)
        return x_BTD, relations

    def leave(self, x_BTD: Tensor, shared: Shared, relations: Relations | None = None) -> Output:
        """What the last block's result becomes."""
        if self.auxiliary is not None and self.training:
            relations = self.auxiliary(x_BTD, shared[0])
        return Output(hidden=self.norm(x_BTD), relations=relations, mask=shared[1])

    def parts(self) -> dict[str, list[str]]:
        """The children that entering and leaving need."""
        positions = ["positions"] if self.spec.positions == "learned" else []
        return {"enter": ["embed", *positions], "leave": ["norm", "embed" if self.spec.tied else "head"]}

    def splits(self) -> dict[str, Split]:
        """How each module's weights can be split by the tensor axis; paths with a * stand for all blocks."""
        found: dict[str, Split] = {"embed": "vocabulary", "norm": "tokens"}
        found |= {f"blocks.*.{name}": "tokens" for name in ("norm1", "norm2")}
        found |= {f"blocks.*.attention.{name}": "out" for name in ("query", "key", "value")}
        found |= {"blocks.*.attention": "inside", "blocks.*.attention.out": "in"}
        found["blocks.*.mlp"] = "mixture" if self.spec.num_experts else "inside"
        if not self.spec.num_experts:
            found |= {f"blocks.*.mlp.{name}": "out" for name in ("gate", "up")}
            found["blocks.*.mlp.down"] = "in"
        if self.spec.positions == "learned":
            found["positions"] = "whole"
        if not self.spec.tied:
            found["head"] = "vocabulary"
        return found

    def _check_length(self, num_tokens: int) -> None:
        most = self.spec.max_positions
        if num_tokens > most:
            way_out = f"max_positions={num_tokens} or positions=rope has room"
            raise ConfigError(
                "model.max_positions", f"{num_tokens} tokens a row, but {most} positions", way_out
            )


def build(spec: GPT) -> Decoder:
    """The network on the default device; `engine.model.load.initialise` sets its weights."""
    return Decoder(spec)
