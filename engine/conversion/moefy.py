"""Split neurons of dense MLPs into experts (engine/config/conversion/moefy.py). down(f(up x)), gated or not,
is a sum over neurons, so all experts of a block together compute its MLP.

N tokens, D hidden, F neurons of an MLP, X experts, E = F / X neurons per expert
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from atelier.engine.config.base import Json
from atelier.engine.config.conversion.moefy import Moefy
from atelier.engine.config.error import ConfigError
from atelier.engine.config.model.encdec import EncDec
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.seed import seed_of
from atelier.engine.conversion.contract import Converted, Parent, WeightPiece, new
from atelier.engine.model.contract import Model
from atelier.engine.model.router.base import assigned
from atelier.engine.model.transformer import MLP

ROUNDS, LEAST = 20, 1e-3  # of k-means: maximum of rounds; relative gain below which it ends
RIDGE = 1e-3  # of the mean square of a hidden state's numbers
MEASURED = 8  # parts of the text; the last one is only for measuring the record's shares
ROUTER = ".router.weight"

Batch = Mapping[str, Tensor]
See = Callable[[str, Tensor, Tensor], None]  # path of an MLP, its inputs [N, D], its activations [N, F]


def convert(rule: Moefy, parent: Parent, made: ModelSpec) -> Converted:
    """The model with experts. The record has, per block, the share of activations held by the router's choice
    and by the best choice.
    """
    paths = [name.removesuffix(ROUTER) for name in made.shapes() if name.endswith(ROUTER)]
    batches = list(parent.text)
    if not batches:
        raise ConfigError("convert.tokens", "needs training text", "use a model whose training text is here")
    model = parent.model()
    told = max(1, len(batches) // MEASURED)
    text = ReadMLPs(model, batches[:-told] or batches, paths)
    order_XE = {path: order for path, order in zip(paths, _divided(rule, parent, paths, text), strict=True)}
    routers = {path: Regression(model, path, order) for path, order in order_XE.items()}
    text.read(lambda path, x_ND, h_NF: routers[path].see(x_ND, h_NF))
    rows_XD = {path: router.solved() for path, router in routers.items()}
    shares = {path: HeldShares(routers[path], rows_XD[path], rule.experts_per_token) for path in paths}
    ReadMLPs(model, batches[-told:], paths).read(lambda path, x_ND, h_NF: shares[path].see(x_ND, h_NF))
    found, dtype = Converted(), next(iter(parent.weights.values())).dtype
    for name, shape in made.shapes().items():
        if name in parent.weights:
            found.keep(name, parent)
        elif name.endswith(ROUTER):
            found.add(
                name, shape, dtype, partial(rows_XD[name.removesuffix(ROUTER)].to, dtype), new("router")
            )
        else:
            path, leaf = name.split(".experts.")
            dense = f"{path}.{leaf}.weight"
            make = partial(_experts, parent, dense, order_XE[path], is_down=leaf == "down")
            found.add(name, shape, dtype, make, WeightPiece(dense, 1.0, "neurons by expert"))
    found.about = {
        "is_exact": rule.experts_per_token == rule.num_experts,
        "exact_with": f"experts_per_token={rule.num_experts}",
        "held": {path: each.told() for path, each in shares.items()},
    }
    return found


def _experts(parent: Parent, source: str, order_XE: Tensor, *, is_down: bool) -> Tensor:
    """[X, E, D], or of `down` [X, D, E]."""
    weight = parent.weights[source]
    return weight[:, order_XE].transpose(0, 1) if is_down else weight[order_XE]


class ReadMLPs:
    """Batches of text for a model, and the inputs and activations of some of its MLPs."""

    def __init__(self, model: Model, batches: Sequence[Batch], paths: Sequence[str]) -> None:
        self.model, self.batches, self.paths = model, batches, paths

    @torch.no_grad()
    def read(self, see: See) -> None:
        """Call `see` with each MLP's inputs and activations before `down`, without padding."""
        is_text: dict[str, Tensor] = {}
        handles = []
        for path in self.paths:
            mlp = cast(MLP, self.model.get_submodule(path))
            read: list[Tensor] = []

            def enter(_module: object, given: tuple[Tensor], read: list[Tensor] = read) -> None:
                read[:] = given

            def leave(
                _module: object, given: tuple[Tensor], path: str = path, read: list[Tensor] = read
            ) -> None:
                text = is_text[self._side(path)]
                see(path, read[0][text].float(), given[0][text].float())

            handles += [mlp.register_forward_pre_hook(enter), mlp.down.register_forward_pre_hook(leave)]
        try:
            for batch in self.batches:
                given = self._given(batch)
                is_text = {
                    name: given[name] >= 0
                    for name in ("documents_BT", "encoder_documents_BU")
                    if name in given
                }
                self.model(given)
        finally:
            for handle in handles:
                handle.remove()

    def _side(self, path: str) -> str:
        """The name of the tensor that marks padding for an MLP's tokens."""
        spec = self.model.spec
        is_encoder = isinstance(spec, EncDec) and int(path.split(".")[1]) < spec.num_encoding
        return "encoder_documents_BU" if is_encoder else "documents_BT"

    def _given(self, batch: Batch) -> dict[str, Tensor]:
        """A batch for the model; an encoder gets the first half of each row, its decoder the second."""
        if not isinstance(self.model.spec, EncDec):
            return dict(batch)
        half = batch["tokens_BT"].shape[1] // 2
        names = ("tokens", "positions", "documents")
        found = {f"{name}_BT": batch[f"{name}_BT"][:, half:] for name in names}
        return found | {f"encoder_{name}_BU": batch[f"{name}_BT"][:, :half] for name in names}


def _divided(rule: Moefy, parent: Parent, paths: Sequence[str], text: ReadMLPs) -> list[Tensor]:
    """[X, E] the neurons of each expert, for each MLP."""
    together: dict[str, Tensor] = {}
    if rule.by == "coactivation":

        def see(path: str, _x_ND: Tensor, h_NF: Tensor) -> None:
            product_FF = h_NF.abs().T @ h_NF.abs()
            together[path] = together[path].add_(product_FF) if path in together else product_FF

        text.read(see)
    found = []
    for path in paths:
        generator = torch.Generator().manual_seed(seed_of(rule.seed, rule.kind, path))
        number = parent.weights[f"{path}.up.weight"].shape[0]
        if rule.by == "random":
            order_F = torch.randperm(number, generator=generator)
        else:
            like_FF = _alike(parent, path) if rule.by == "weights" else together.pop(path)
            size_F = like_FF.diagonal().clamp(min=torch.finfo(torch.float32).tiny).rsqrt()
            like_FF = (like_FF * size_F * size_F[:, None]).cpu()
            order_F = clusters(like_FF, rule.num_experts, generator).argsort(stable=True)
        found.append(order_F.view(rule.num_experts, -1))
    return found


def _alike(parent: Parent, path: str) -> Tensor:
    """[F, F] products of the neurons' input weights, with gate and up scaled to equal size."""
    names = [f"{path}.{leaf}.weight" for leaf in ("gate", "up") if f"{path}.{leaf}.weight" in parent.weights]
    rows = [normalize(parent.weights[name].float(), dim=1) for name in names]
    return cast(Tensor, sum(each @ each.T for each in rows))


def clusters(like_FF: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """[F] clusters of equal size with a large sum of `like_FF` inside: k-means by inner products, each step
    the best assignment of equal sizes (2110.01786, section 3.2).
    """
    first_X = torch.randperm(len(like_FF), generator=generator)[:number]
    score_FX, best, found_F = like_FF[:, first_X], -math.inf, torch.empty(0)
    for _ in range(ROUNDS):
        cluster_F = assigned(score_FX)
        score_FX = like_FF @ one_hot(cluster_F, number).to(like_FF.dtype)
        held = float(score_FX.double().gather(1, cluster_F[:, None]).sum())
        if held > best:
            found_F = cluster_F
        if held <= best * (1 + LEAST):
            break
        best = held
    return found_F


class Regression:
    """A router's rows by least squares: the sum of each expert's activations from the MLP's inputs. With a
    gate, activations count by the norm of their weights in `down`; without one that made worse choices.
    """

    def __init__(self, model: Model, path: str, order_XE: Tensor) -> None:
        mlp = cast(MLP, model.get_submodule(path))
        down_DF = mlp.down.weight.detach()
        self.order_XE = order_XE.to(down_DF.device)
        self.size_F = down_DF.float().norm(dim=0) if mlp.has_gate else torch.ones_like(down_DF[0]).float()
        kind = {"dtype": torch.float64, "device": down_DF.device}
        self.product_DD = torch.zeros(len(down_DF), len(down_DF), **kind)
        self.sum_DX = torch.zeros(len(down_DF), len(order_XE), **kind)

    def mass(self, h_NF: Tensor) -> Tensor:
        """[N, X]"""
        return (h_NF.abs() * self.size_F)[:, self.order_XE].sum(-1)

    def see(self, x_ND: Tensor, h_NF: Tensor) -> None:
        self.product_DD += (x_ND.T @ x_ND).double()
        self.sum_DX += (x_ND.T @ self.mass(h_NF)).double()

    def solved(self) -> Tensor:
        """[X, D], on the CPU, with logits of about 1."""
        ridge = RIDGE * self.product_DD.diagonal().mean()
        eye_DD = torch.eye(len(self.product_DD), dtype=torch.float64, device=ridge.device)
        rows_XD = torch.linalg.solve(self.product_DD + ridge * eye_DD, self.sum_DX).T
        return rows_XD.float().cpu()


class HeldShares:
    """The share of an MLP's activations, weighted as in the router's regression, that each token's K experts
    hold: the router's choice, and the best.
    """

    def __init__(self, router: Regression, rows_XD: Tensor, per_token: int) -> None:
        self._router, self._rows_XD, self._per_token = router, rows_XD, per_token
        self._sums_3 = torch.zeros(3, dtype=torch.float64)
        self._active, self._number = 0, 0

    def see(self, x_ND: Tensor, h_NF: Tensor) -> None:
        mass_NX = self._router.mass(h_NF)
        chosen_NK = (x_ND @ self._rows_XD.to(x_ND.device).T).topk(self._per_token).indices
        best_NK = mass_NX.topk(self._per_token).values
        sums = [mass_NX.gather(1, chosen_NK).sum(), best_NK.sum(), mass_NX.sum()]
        self._sums_3 += torch.stack(sums).double().cpu()
        self._active, self._number = self._active + int((h_NF != 0).sum()), self._number + h_NF.numel()

    def told(self) -> dict[str, Json]:
        chosen, best, whole = self._sums_3.tolist()
        whole, number = max(whole, 1e-30), max(self._number, 1)
        return {"chosen": chosen / whole, "best": best / whole, "active": self._active / number}
