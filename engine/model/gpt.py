"""The decoder of engine/config/model/gpt.py as plain modules, independent of parallelism.

B rows, T tokens, D hidden, E head width, V vocabulary
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from atelier.engine.config.error import ConfigError
from atelier.engine.config.model.gpt import GPT
from atelier.engine.model.attention import Cache, additive, attention_mask, rope_angles, within
from atelier.engine.model.contract import Carried, Output, Relations, Split, Sum, compute_dtype
from atelier.engine.model.mixtures import MixtureModel
from atelier.engine.model.packed import ENDS, has_kernel
from atelier.engine.model.product_keys import read_metrics
from atelier.engine.model.soft_prompt import SOFT, SoftTable, embedded
from atelier.engine.model.transformer import Shared, make_blocks, make_norm, run_blocks, set_dropout

RESIDUAL = ("experts.down", "shared.down", "memory.values")


class Decoder(MixtureModel[Shared]):
    """Embedding, blocks, final norm. The head `head_weight` [V, D] is applied by the objectives."""

    spec: GPT

    def __init__(self, spec: GPT, *, is_causal: bool = True) -> None:
        super().__init__()
        self.spec, self.is_causal = spec, is_causal
        self.embed = nn.Embedding(spec.tokens, spec.hidden)
        if spec.soft_prompt.length:
            self.soft = SoftTable(spec.soft_prompt.length, spec.hidden)
        if spec.positions == "learned":
            self.positions = nn.Embedding(spec.max_positions, spec.hidden)
        self.blocks = make_blocks(spec, is_causal=is_causal)
        self.norm = make_norm(spec)
        self.auxiliary: nn.Module | None = None  # for attention distillation (engine/model/auxiliary.py)
        if not spec.tied:
            self.head = nn.Linear(spec.hidden, spec.tokens, bias=False)

    @property
    def head_weight(self) -> Tensor:
        return self.embed.weight if self.spec.tied else self.head.weight

    def initial(self, name: str) -> tuple[str, float]:
        """Outputs to the residual stream start 1/sqrt(2 L) smaller, as in GPT-2; with base_width, matrices in
        blocks start 1/sqrt(m) smaller (muP).
        """
        owner, leaf = name.rsplit(".", 1)
        if owner.rsplit(".", 1)[-1].startswith("norm") or owner.endswith(("query_norm", "key_norm")):
            return ("ones" if leaf == "weight" else "zeros"), 0.0
        if leaf == "bias" or (owner.endswith("router") and leaf != "weight"):
            return "zeros", 0.0
        if name.endswith("memory.keys"):  # equal spread of scores for any width
            return "normal", (self.spec.memory.width / 2) ** -0.5
        is_residual = owner.endswith(("attention.out", "mlp.down")) or name.endswith(RESIDUAL)
        std = self.spec.init_std * ((2 * self._depth(name)) ** -0.5 if is_residual else 1.0)
        return "normal", std * (self.spec.width_ratio**-0.5 if name.startswith("blocks.") else 1.0)

    def _depth(self, name: str) -> int:
        """The number of blocks that add to the residual stream of a weight."""
        return self.spec.num_layers

    def new_cache(self, batch_size: int, max_len: int, dtype: torch.dtype) -> Cache:
        """An empty cache for `max_len` tokens in each of `batch_size` rows, of type `dtype`."""
        blocks = [(spec.kv_heads, spec.head_width) for spec in self._cached()]
        device = next(self.parameters()).device  # a pipeline stage may have no embedding
        return Cache.empty(blocks, batch_size, max_len, dtype=dtype, device=device)

    def _cached(self) -> list[GPT]:
        """The spec of each block that uses the cache, in order."""
        return [self.spec] * self.spec.num_layers

    def sums(self) -> dict[str, Sum]:
        """Those of mixtures, and how often the keys of each memory are read."""
        memory, found = self.spec.memory, super().sums()
        keys = 2 * memory.heads * memory.keys
        return found | ({"reads_LM": Sum((len(memory.blocks), keys))} if memory.blocks else {})

    def measured(self, sums: Mapping[str, Tensor], tokens: int) -> dict[str, float]:
        found, memory = super().measured(sums, tokens), self.spec.memory
        for place, number in enumerate(memory.blocks):
            metrics = read_metrics(sums["reads_LM"][place], memory.heads)
            found |= {f"memory/{name}/{number}": value for name, value in metrics.items()}
        return found

    def enter(self, batch: dict[str, Tensor]) -> Carried:
        return {"hidden_BTD": self.embedded(batch)}

    def embedded(self, batch: dict[str, Tensor]) -> Tensor:
        """The input of the first block [B, T, D]."""
        tokens_BT, scale = batch["tokens_BT"], self.spec.multipliers.embedding
        if self.spec.soft_prompt.length:
            x_BTD = embedded(tokens_BT, self.embed, self.soft, self.spec.tokens)
        else:
            x_BTD = self.embed(tokens_BT)
        x_BTD = x_BTD if scale == 1.0 else x_BTD * scale
        if self.spec.positions == "learned":
            x_BTD = x_BTD + self.positions(batch["positions_BT"])
        return x_BTD

    def shared(self, batch: dict[str, Tensor], cache: Cache | None = None) -> Shared:
        """The inputs that all blocks share; uses no weights.

        If the batch has only some tokens of its rows, `documents_BS` has the documents of whole rows and
        `places_T` the tokens' positions. Raises ConfigError for bidirectional rows in a causal pass, and for
        rows longer than the learned positions.
        """
        bidirectional_B = batch.get("bidirectional_B")
        if bidirectional_B is not None and (self.is_causal or cache is not None):
            what = "is causal" if self.is_causal else "decodes causally"
            raise ConfigError("model", f"gets bidirectional rows, but {what}", "kind=ernie reads such rows")
        documents_BT, branches_BS = batch["documents_BT"], batch.get("branches_BT")
        documents_BS, positions_BS = batch.get("documents_BS", documents_BT), batch["positions_BT"]
        if cache is not None:
            documents_BS, branches_BS = cache.extend(documents_BT, branches_BS)
            positions_BS = cache.seen_positions(positions_BS) if self.spec.window else positions_BS
        kind = compute_dtype(next(self.parameters()))
        is_plain = self.is_causal and cache is None and branches_BS is None
        if is_plain and ENDS in batch and has_kernel(documents_BT.device, kind, self.spec.head_width):
            mask, near = batch[ENDS], None
        else:
            mask, near = self._masks(batch, documents_BS, branches_BS, positions_BS)
            if kind == torch.bfloat16:
                mask = additive(mask, torch.bfloat16)
                near = None if near is None else additive(near, torch.bfloat16)
        rope = None
        if self.spec.positions == "rope":
            rope = self._rope(batch["positions_BT"], self.spec)
        elif "branches_BT" not in batch:  # options after one prompt share positions, so the row may be longer
            self._check_length(documents_BS.shape[1])
        return Shared(rope, mask, batch, near)

    def _masks(
        self,
        batch: dict[str, Tensor],
        documents_BS: Tensor,
        branches_BS: Tensor | None,
        positions_BS: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        """The masks [B, 1, T, S] bool of attention, and of that with a window if the spec has one."""
        places_T = batch.get("places_T")
        mask = attention_mask(
            batch["documents_BT"], documents_BS, branches_BS, places_T, batch.get("bidirectional_B")
        )
        if not self.spec.window:
            return mask, None
        at = batch["positions_BT"], positions_BS
        if places_T is not None:  # of whole rows only places are known: equal distances in each document
            at = places_T[None], torch.arange(documents_BS.shape[1], device=places_T.device)[None]
        return mask, within(mask, self.spec.window, *at)

    def _rope(self, positions_BT: Tensor, spec: GPT) -> Tensor:
        exact = torch.float64 if next(self.parameters()).dtype == torch.float64 else torch.float32
        return rope_angles(positions_BT, spec.head_width, spec.rope_theta, exact, spec.rope)

    def through(
        self, carried: Carried, shared: Shared, cache: Cache | None = None
    ) -> tuple[Carried, Relations | None]:
        return run_blocks(self.blocks, carried, shared, cache)

    def leave(
        self, carried: Carried, shared: Shared, relations: Relations | None = None, cache: Cache | None = None
    ) -> Output:
        x_BTD = carried["hidden_BTD"]
        relations = self._compared(x_BTD, shared, relations)
        hidden_BTD, scale = self.norm(x_BTD), self.spec.logit_scale
        hidden_BTD = hidden_BTD if scale == 1.0 else hidden_BTD * scale
        return Output(
            hidden=hidden_BTD, relations=relations, mask=self._last_mask(shared), aux=self._summed(carried)
        )

    def _last_mask(self, shared: Shared) -> Tensor | None:
        """The mask of the last block's attention; if the attention has none, only made to compare with a
        teacher's.
        """
        mask, near, batch = shared.mask, shared.near, shared.batch
        if mask.dtype == torch.int32:
            if self.auxiliary is None and not any(block.is_taught for block in self.blocks.children()):
                return None
            documents_BS = batch.get("documents_BS", batch["documents_BT"])
            mask, near = self._masks(batch, documents_BS, None, batch["positions_BT"])
        is_near = near is not None and self.spec.has_window(self.spec.num_layers - 1)
        return near if is_near else mask

    def _summed(self, carried: Carried) -> dict[str, Tensor]:
        return {name: carried[name] for name in self.sums()}

    def set_dropout(self, share: float) -> None:
        set_dropout(self, share)

    def _compared(self, x_BTD: Tensor, shared: Shared, last: Relations | None) -> Relations | None:
        """The relations to compare in attention distillation: the auxiliary layer's if there is one."""
        if self.auxiliary is None or not self.training:
            return last
        return self.auxiliary(x_BTD, shared.rope)

    def parts(self) -> dict[str, list[str]]:
        positions = ["positions"] if self.spec.positions == "learned" else []
        soft = [SOFT] if self.spec.soft_prompt.length else []
        return {
            "enter": ["embed", *soft, *positions],
            "leave": ["norm", "embed" if self.spec.tied else "head"],
        }

    def splits(self) -> dict[str, Split]:
        found = block_splits(self.spec)
        found["embed"], found["norm"] = "vocabulary", "tokens"
        if self.spec.soft_prompt.length:
            found[SOFT] = "whole"
        if self.spec.positions == "learned":
            found["positions"] = "whole"
        if not self.spec.tied:
            found["head"] = "vocabulary"
        return found

    def _check_length(self, num_tokens: int) -> None:
        most = self.spec.max_positions
        if num_tokens > most:
            way_out = f"max_positions={num_tokens} or positions=rope"
            raise ConfigError(
                "model.max_positions", f"{num_tokens} tokens per row, but {most} positions", way_out
            )


def block_splits(spec: GPT) -> dict[str, Split]:
    """How the blocks' matrices can be split."""
    found: dict[str, Split] = {f"blocks.*.{name}": "tokens" for name in ("norm1", "norm2")}
    found |= {f"blocks.*.attention.{name}": "out" for name in ("query", "key", "value")}
    found |= {f"blocks.*.attention.{name}": "heads" for name in ("query_norm", "key_norm")}
    found["blocks.*.attention"], found["blocks.*.attention.out"] = "inside", "in"
    for number in range(spec.num_layers):
        mlp = f"blocks.{number}.mlp"
        if spec.has_experts(number):
            found[mlp] = "mixture"
        else:
            found[mlp], found[f"{mlp}.down"] = "inside", "in"
            found[f"{mlp}.gate"] = found[f"{mlp}.up"] = "out"
        if spec.has_memory(number):
            found[f"blocks.{number}.memory"] = "memory"
    return found


def build(spec: GPT) -> Decoder:
    """The network on the default device; `atelier.engine.model.load.initialise` sets its weights."""
    return Decoder(spec)
