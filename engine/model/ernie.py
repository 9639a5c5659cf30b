"""The model of engine/config/model/ernie.py as plain modules, independent of parallelism: a universal
decoder, then a task net for bidirectional rows and one for causal rows.

A batch may have `bidirectional_B` (1 = the row's tokens see their whole document), `memory_BT` (1 = visible,
but without gradient) and `prompts_BT` (row of the soft-prompt table that replaces the token; -1 = none).

B rows, T tokens, D hidden, N width of a task net, C classes
"""

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from atelier.engine.config.error import ConfigError
from atelier.engine.config.model.ernie import NETS, SIDES
from atelier.engine.config.model.ernie import Ernie as Spec
from atelier.engine.config.model.gpt import GPT
from atelier.engine.model.attention import Cache
from atelier.engine.model.contract import Carried, Output, Relations, Split
from atelier.engine.model.gpt import Decoder, block_splits
from atelier.engine.model.placement import local
from atelier.engine.model.transformer import Shared, make_blocks, make_norm, run_blocks

HEADS = ("classes", "pairs")  # parts whose weights row objectives read


class TaskNet(nn.Module):
    """x + leave(blocks(enter x)), then a norm: blocks of their own width between two projections; `inner`
    None: only the norm.
    """

    def __init__(self, outer: GPT, inner: GPT | None, *, is_causal: bool) -> None:
        super().__init__()
        if inner is not None:
            self.enter = nn.Linear(outer.hidden, inner.hidden, bias=False)
            self.blocks = make_blocks(inner, is_causal=is_causal)
            self.norm_inside = make_norm(inner)
            self.leave = nn.Linear(inner.hidden, outer.hidden, bias=False)
        self.norm = make_norm(outer)

    def forward(self, x_BTD: Tensor, shared: Shared, cache: Cache | None, first: int) -> Tensor:
        """[B, T, D] from the universal states; `first`: number of the first block, as in `run_blocks`."""
        if not hasattr(self, "blocks"):
            return self.norm(x_BTD)
        x_BTN = self.enter(x_BTD).to(x_BTD.dtype)  # keep the universal residual stream's precision
        carried, _ = run_blocks(self.blocks, {"hidden_BTD": x_BTN}, shared, cache, first=first)
        return self.norm(x_BTD + self.leave(self.norm_inside(carried["hidden_BTD"])))


class ErnieDecoder(Decoder):
    """Universal blocks, then each row's task net. A net without rows computes one row of the other net and
    drops the result: its gradients are 0, and ranks that share weights take the same steps. (Without any row
    a split matrix hangs: torch 2.13 loops in DTensor's view_groups.)
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec.universal, is_causal=False)
        del self.norm  # each net has its own norm
        self.inner = {name: spec.net(name) for name in NETS}
        self.nlu = TaskNet(self.spec, self.inner["nlu"], is_causal=False)
        self.nlg = TaskNet(self.spec, self.inner["nlg"], is_causal=True)
        self.num_prompts, self.genres = spec.prompts, spec.genres
        self.classes = nn.ModuleDict()
        for name, number in spec.classes.items():
            _add(self.classes, "classes", name, nn.Linear(spec.hidden, number, bias=False))
        self.pairs = nn.ModuleDict()
        for name, width in spec.pairs.items():
            sides = {side: nn.Linear(spec.hidden, width, bias=False) for side in SIDES}
            _add(self.pairs, "pairs", name, nn.ModuleDict(sides))
        if spec.prompts:
            self.prompts = nn.Embedding(spec.prompts, spec.hidden)

    def class_logits(self, hidden_BD: Tensor, name: str) -> Tensor:
        """[B, C] logits of the class head `name` from the hidden states of the rows' first tokens."""
        return self.classes[name](hidden_BD)

    def initial(self, name: str) -> tuple[str, float]:
        if name.split(".")[0] in HEADS:  # for any head
            return "normal", self.spec.init_std
        if name in [f"{net}.leave.weight" for net in NETS]:  # adds to the universal blocks' residual stream
            return "normal", self.spec.init_std * (2 * self.spec.num_layers) ** -0.5
        return super().initial(name)

    def _depth(self, name: str) -> int:
        inner = self.inner.get(name.split(".")[0])
        return inner.num_layers if inner else self.spec.num_layers

    def _cached(self) -> list[GPT]:
        inner = self.inner["nlg"]
        return super()._cached() + ([inner] * inner.num_layers if inner else [])

    def embedded(self, batch: dict[str, Tensor]) -> Tensor:
        """As the decoder's, with soft prompts. Raises ConfigError if the model has none for the batch."""
        x_BTD = super().embedded(batch)
        rows_BT = batch.get("prompts_BT")
        if not self.num_prompts:
            if rows_BT is not None:
                raise ConfigError(
                    "model.prompts", "is 0, but rows have soft prompts", "give a number above 0"
                )
            return x_BTD
        if rows_BT is None:
            rows_BT = torch.full(x_BTD.shape[:2], -1, device=x_BTD.device)
        return torch.where(rows_BT[..., None] >= 0, self.prompts(rows_BT.clamp(min=0)), x_BTD)

    def leave(
        self, carried: Carried, shared: Shared, relations: Relations | None = None, cache: Cache | None = None
    ) -> Output:
        """Each row's task net on the output of the last universal block; with a cache all rows are causal."""
        first, x_BTD = self.spec.num_layers, carried["hidden_BTD"]
        if cache is not None:
            return Output(hidden=self.nlg(x_BTD, self._of_net("nlg", shared, slice(None)), cache, first))
        is_nlu_B = shared.batch.get("bidirectional_B", x_BTD.new_zeros(len(x_BTD))) > 0
        found = []
        for name, is_its_B in (("nlu", is_nlu_B), ("nlg", ~is_nlu_B)):
            rows = is_its_B.nonzero().flatten()
            taken = rows if len(rows) else rows.new_zeros(1)
            given = self._of_net(name, shared, taken)
            found.append((rows, getattr(self, name)(x_BTD[taken], given, None, first)[: len(rows)]))
        order, parts = zip(*found, strict=True)
        hidden_BTD = torch.cat(parts)[torch.cat(order).argsort()]
        named = {
            f"{part}.{name}": local(weight)
            for part in HEADS
            for name, weight in getattr(self, part).named_parameters()
        }
        hidden_BTD, *heads = _Reached.apply(hidden_BTD, *named.values())
        relations = self._compared(x_BTD, shared, relations)
        weights = dict(zip(named, heads, strict=True))
        aux = self._summed(carried)
        return Output(hidden=hidden_BTD, relations=relations, mask=shared.mask, aux=aux, weights=weights)

    def _of_net(self, name: str, shared: Shared, rows: Tensor | slice) -> Shared:
        """Inputs of a task net's blocks for these rows: angles for its head width; memory only for NLG."""
        inner = self.inner[name]
        kept = ("noise_BT", "memory_BT") if name == "nlg" else ("noise_BT",)
        batch = {key: shared.batch[key][rows] for key in kept if key in shared.batch}
        rope = self._rope(shared.batch["positions_BT"][rows], inner) if inner else None
        return Shared(rope, shared.mask[rows], batch)

    def parts(self) -> dict[str, list[str]]:
        prompts = ["prompts"] if self.num_prompts else []
        return {"enter": ["embed", *prompts], "leave": [*NETS, "classes", "pairs", "embed"]}

    def splits(self) -> dict[str, Split]:
        """As the decoder's, also for task nets; heads of rows are not split."""
        found = super().splits()
        for name in NETS:
            found[f"{name}.norm"] = found["norm"]
            found[f"{name}.enter"] = found[f"{name}.norm_inside"] = found[f"{name}.leave"] = "tokens"
            inner = self.inner[name]
            found |= {f"{name}.{path}": kind for path, kind in block_splits(inner).items()} if inner else {}
        found["prompts"] = "tokens"
        return found


def _add(heads: nn.ModuleDict, field: str, name: str, head: nn.Module) -> None:
    if hasattr(heads, name):
        raise ConfigError(f"model.{field}", f"{name} cannot be the name of a head", "rename it")
    heads[name] = head


class _Reached(torch.autograd.Function):
    """Passes hidden states and row heads on unchanged. In the backward pass every head gets a gradient, 0 if
    no objective reads it, and all come from one node, as a two-part backward pass requires (torch 2.13 runs
    twice through heads that meet the states in separate nodes).
    """

    @staticmethod
    def forward(ctx: FunctionCtx, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients


def build(spec: Spec) -> ErnieDecoder:
    """The network on the default device; `atelier.engine.model.load.initialise` sets its weights."""
    return ErnieDecoder(spec)
