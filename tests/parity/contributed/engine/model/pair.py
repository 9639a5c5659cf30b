"""The model of engine/config/model/pair.py as plain modules, independent of parallelism.

B rows, T tokens, U tokens of the encoder, D hidden, X experts, L blocks
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atelier.engine.config.model.pair import Pair
from atelier.engine.model.attention import Attend, Cache, Seen, attention_mask
from atelier.engine.model.contract import Carried, Model, Output, Split, Sum
from atelier.engine.model.moe import ExpertWeights
from atelier.engine.model.transformer import dropout, layer_keys

NO_ENCODER = 1  # tokens that the encoder reads where there is nothing to read, as in generation


class GELU(nn.Module):
    """down(gelu(up x))."""

    def __init__(self, spec: Pair) -> None:
        super().__init__()
        self.up = nn.Linear(spec.hidden, spec.inner, bias=False)
        self.down = nn.Linear(spec.inner, spec.hidden, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x_BTD), approximate="tanh"))


class Shared(NamedTuple):
    encoder_mask: Tensor
    mask: Tensor
    cross_mask: Tensor
    noise_BT: Tensor | None
    encoder_noise_BU: Tensor | None


class Attention(nn.Module):
    """Attention over `memory` tokens: those of the other input, or its own."""

    def __init__(self, spec: Pair, *, is_causal: bool) -> None:
        super().__init__()
        self.head_dim = spec.head_width
        for name in ("query", "key", "value", "out"):
            setattr(self, name, nn.Linear(spec.hidden, spec.hidden, bias=False))
        self.attend = Attend(is_causal=is_causal)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor, seen: Seen | None = None) -> Tensor:
        heads = (-1, self.head_dim)
        query, key, value = (
            project(given).unflatten(-1, heads).transpose(1, 2)
            for project, given in ((self.query, x), (self.key, memory), (self.value, memory))
        )
        if seen is not None:
            key, value = seen.extend(key, value)
        return self.out(self.attend(query, key, value, mask).transpose(1, 2).flatten(2))


class Balanced(nn.Module):
    """One expert a token, chosen by biased logits and weighted by the unbiased ones' sigmoid. Also returns
    the sum of the router's z-loss and how many tokens each expert got.
    """

    def __init__(self, spec: Pair) -> None:
        super().__init__()
        self.register_buffer("bias", torch.zeros(spec.num_experts))
        self.router = nn.Linear(spec.hidden, spec.num_experts, bias=False)
        self.experts = ExpertWeights(spec.num_experts, spec.hidden, spec.inner)

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x_ND = x_BTD.flatten(0, -2)
        logits_NX = self.router(x_ND)
        chosen_N1 = (logits_NX + self.bias.to(logits_NX.dtype)).argmax(-1, keepdim=True)
        y_ND, load_X = self.experts(x_ND, chosen_N1, logits_NX.gather(1, chosen_N1).sigmoid())
        return y_ND.view_as(x_BTD), logits_NX.logsumexp(-1).square().sum(), load_X


class Encoding(nn.Module):
    def __init__(self, spec: Pair) -> None:
        super().__init__()
        self.share, self.dropout = 1.0, spec.dropout
        self.norm1, self.norm2 = nn.RMSNorm(spec.hidden), nn.RMSNorm(spec.hidden)
        self.attention = Attention(spec, is_causal=False)
        self.mlp = GELU(spec)

    def forward(self, x_BUD: Tensor, mask: Tensor, noise_BU: Tensor | None) -> Tensor:
        read_BUD = self.norm1(x_BUD)
        x_BUD = x_BUD + self.attention(read_BUD, read_BUD, mask)
        added_BUD = self.mlp(self.norm2(x_BUD))
        if noise_BU is not None and self.training and self.dropout * self.share:
            added_BUD = dropout(added_BUD, self.dropout * self.share, noise_BU, 0)
        return x_BUD + added_BUD


class Decoding(nn.Module):
    def __init__(self, spec: Pair) -> None:
        super().__init__()
        self.share, self.dropout = 1.0, spec.dropout
        self.norm1, self.norm2, self.norm3 = (nn.RMSNorm(spec.hidden) for _ in range(3))
        self.attention = Attention(spec, is_causal=True)
        self.cross = Attention(spec, is_causal=False)
        self.mlp = Balanced(spec)

    def forward(
        self, x_BTD: Tensor, memory_BUD: Tensor, shared: Shared, noise_BT: Tensor | None, seen: Seen | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        read_BTD = self.norm1(x_BTD)
        x_BTD = x_BTD + self.attention(read_BTD, read_BTD, shared.mask, seen)
        x_BTD = x_BTD + self.cross(self.norm3(x_BTD), memory_BUD, shared.cross_mask)
        added_BTD, z, counts_X = self.mlp(self.norm2(x_BTD))
        if noise_BT is not None and self.training and self.dropout * self.share:
            added_BTD = dropout(added_BTD, self.dropout * self.share, noise_BT, 0)
        return x_BTD + added_BTD, z, counts_X


class PairModel(Model):
    def __init__(self, spec: Pair) -> None:
        super().__init__()
        self.spec = spec
        self.embed = nn.Embedding(spec.tokens, spec.hidden)
        kinds = [Encoding] * spec.encoder_layers + [Decoding] * (spec.num_layers - spec.encoder_layers)
        self.blocks = nn.ModuleList(kind(spec) for kind in kinds)
        self.norm = nn.RMSNorm(spec.hidden)

    @property
    def head_weight(self) -> Tensor:
        return self.embed.weight

    def initial(self, name: str) -> tuple[str, float]:
        owner, leaf = name.rsplit(".", 1)
        if leaf == "bias":
            return "zeros", 0.0
        return ("ones", 0.0) if owner.rsplit(".", 1)[-1].startswith("norm") else ("normal", 0.05)

    def shared(self, batch: dict[str, Tensor], cache: Any = None) -> Shared:
        documents_BT = batch["documents_BT"]
        documents_BS = batch.get("documents_BS", documents_BT)
        if cache is not None:
            documents_BS, _ = cache.extend(documents_BT, None)
        mask = attention_mask(documents_BT, documents_BS, None, batch.get("places_T"))
        none = documents_BT.new_zeros(len(documents_BT), NO_ENCODER)
        encoder_BU = batch.get("encoder_documents_BU", none)
        encoder_BW = batch.get("encoder_documents_BW", encoder_BU)
        everywhere = torch.ones(len(encoder_BU), device=encoder_BU.device)
        encoder_mask = attention_mask(encoder_BU, encoder_BW, None, batch.get("places_U"), everywhere)
        is_read_BW = encoder_BW >= 0
        is_read_BW[:, 0] = True  # a row without an encoder's input sees one padding token
        cross_mask = is_read_BW[:, None, None, :].expand(-1, 1, documents_BT.shape[1], -1)
        return Shared(encoder_mask, mask, cross_mask, batch.get("noise_BT"), batch.get("encoder_noise_BU"))

    def enter(self, batch: dict[str, Tensor]) -> Carried:
        tokens_BT = batch["tokens_BT"]
        encoder_BU = batch.get("encoder_tokens_BU", tokens_BT.new_zeros(len(tokens_BT), NO_ENCODER))
        return {"hidden_BTD": self.embed(tokens_BT), "memory_BUD": self.embed(encoder_BU)}

    def through(self, carried: Carried, shared: Shared, cache: Any = None) -> tuple[Carried, None]:
        carried, first = dict(carried), self.spec.encoder_layers
        for name, block in self.blocks.named_children():
            number = int(name)
            if number < first:
                noise_BU = shared.encoder_noise_BU
                keys = None if noise_BU is None else layer_keys(noise_BU, number)
                carried["memory_BUD"] = block(carried["memory_BUD"], shared.encoder_mask, keys)
                continue
            keys = None if shared.noise_BT is None else layer_keys(shared.noise_BT, number)
            seen = None if cache is None else cache.blocks[number - first]
            x_BTD, z, counts_X = block(carried["hidden_BTD"], carried["memory_BUD"], shared, keys, seen)
            row_LX = torch.zeros_like(carried["load_LX"])
            row_LX[number] = counts_X
            carried |= {"hidden_BTD": x_BTD, "z": carried["z"] + z, "load_LX": carried["load_LX"] + row_LX}
        return carried, None

    def leave(self, carried: Carried, shared: Shared, relations: Any = None, cache: Any = None) -> Output:
        aux = {name: carried[name] for name in self.sums()}
        return Output(hidden=self.norm(carried["hidden_BTD"]), aux=aux)

    def carries(self) -> dict[str, tuple[str | int, ...]]:
        return {"hidden_BTD": ("B", "T", self.spec.hidden), "memory_BUD": ("B", "U", self.spec.hidden)}

    def sums(self) -> dict[str, Sum]:
        return {
            "z": Sum(weight=self.spec.z_weight),
            "load_LX": Sum((self.spec.num_layers, self.spec.num_experts)),
        }

    def after_step(self, sums: Mapping[str, Tensor]) -> None:
        for name, block in self.blocks.named_children():
            if isinstance(block, Decoding):
                load_X, bias_X = sums["load_LX"][int(name)], block.mlp.bias
                bias_X += self.spec.bias_rate * (load_X.mean() - load_X).sign().to(bias_X.dtype)

    def set_dropout(self, share: float) -> None:
        for block in self.blocks:
            if isinstance(block, Encoding | Decoding):
                block.share = share

    def parts(self) -> dict[str, list[str]]:
        return {"enter": ["embed"], "leave": ["norm", "embed"]}

    def splits(self) -> dict[str, Split]:
        found: dict[str, Split] = {"embed": "vocabulary", "norm": "tokens", "blocks.*.mlp.up": "out"}
        found |= {f"blocks.*.norm{number}": "tokens" for number in (1, 2, 3)}
        for name in ("attention", "cross"):
            found |= {f"blocks.*.{name}": "across", f"blocks.*.{name}.out": "in"}
            found |= {f"blocks.*.{name}.{part}": "out" for part in ("query", "key", "value")}
        found["blocks.*.mlp.down"] = "in"
        for number in range(self.spec.num_layers):
            found[f"blocks.{number}.mlp"] = "inside" if number < self.spec.encoder_layers else "mixture"
        return found

    def new_cache(self, batch_size: int, max_len: int, dtype: torch.dtype) -> Cache:
        count = self.spec.num_layers - self.spec.encoder_layers
        blocks = [(self.spec.num_heads, self.spec.head_width)] * count
        return Cache.empty(blocks, batch_size, max_len, dtype=dtype, device=self.embed.weight.device)


def build(spec: Pair) -> PairModel:
    return PairModel(spec)
