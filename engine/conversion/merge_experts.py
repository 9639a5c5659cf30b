"""Merge the experts of every mixture (engine/config/conversion/merge_experts.py): aligned and weighted by
load as in MC-SMoE (2310.01334, section 3), in clusters of average linkage as in HC-SMoE (2410.08589).

N tokens, X experts, K experts per token, F inner width, D hidden
"""

from collections.abc import Mapping
from typing import cast

import torch
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import squareform
from torch import Tensor

from atelier.engine.config.base import Json
from atelier.engine.config.conversion.merge_experts import MergeExperts
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.seed import seed_of
from atelier.engine.conversion.contract import Converted, Parent, WeightPiece, copied
from atelier.engine.model.moe import MoE
from atelier.engine.model.routing import Routed, Routing, TokenRows
from atelier.engine.model.weights import in_memory

Members = list[tuple[int, ...]]  # the experts merged into each new one, most used first


class RouterRecord:
    """Records a mixture's routing: tokens of each expert, and sums for the correlations of its logits."""

    def __init__(self, mixture: MoE) -> None:
        number = mixture.num_experts
        self.load_X = torch.zeros(number, dtype=torch.float64)
        self.sum_X = torch.zeros(number, dtype=torch.float64)
        self.product_XX = torch.zeros(number, number, dtype=torch.float64)
        self.count, self.share = 0, 0.0
        self.tokens = 0
        self._router = cast(Routing, mixture.router)
        self._route = self._router.route
        self._router.route = self.route

    def route(self, x_ND: Tensor, rows: TokenRows) -> Routed:
        routed = self._route(x_ND, rows)
        chosen_P = routed.chosen_NK[rows.is_text_N].flatten().cpu()
        self.share += float((routed.share_NK * (routed.chosen_NK >= 0))[rows.is_text_N].sum())
        self.tokens += int(rows.is_text_N.sum())
        self.load_X += chosen_P[chosen_P >= 0].bincount(minlength=len(self.load_X))
        if routed.logits_NX is not None:
            logits_NX = routed.logits_NX[rows.is_text_N].double().cpu()
            logits_NX = logits_NX - logits_NX.mean(1, keepdim=True)  # softmax ignores a common offset
            self.sum_X += logits_NX.sum(0)
            self.product_XX += logits_NX.T @ logits_NX
            self.count += len(logits_NX)
        return routed

    def correlation_XX(self) -> Tensor:
        """Correlations of the experts' logits over tokens."""
        mean_X = self.sum_X / max(1, self.count)
        covariance_XX = self.product_XX / max(1, self.count) - mean_X[:, None] * mean_X
        spread_X = covariance_XX.diagonal().clamp(min=1e-12).sqrt()
        return covariance_XX / (spread_X[:, None] * spread_X)


@torch.no_grad()
def convert(rule: MergeExperts, parent: Parent, made: ModelSpec) -> Converted:
    """The model with fewer experts, or none; the record lists the members of each mixture's experts."""
    model, text = parent.model(), parent.text
    mixtures = {path: module for path, module in model.named_modules() if isinstance(module, MoE)}
    asked = {path: RouterRecord(mixture) for path, mixture in mixtures.items()}
    for batch in text:
        model(dict(batch))
    found = {name: weight.detach() for name, weight in model.state_dict().items()}
    merged: dict[str, Json] = {}
    pieces = {name: (copied(name),) for name in found}
    for number, (path, mixture) in enumerate(mixtures.items()):
        members = _members(rule, asked[path], number)
        weights = {name: weight.detach() for name, weight in mixture.experts.named_parameters()}
        load_X = asked[path].load_X + 1  # unused experts count a little
        new = _merged(weights, members, load_X)
        if rule.num_experts == 0 and asked[path].tokens:  # a token's total weight of experts
            new["down"] = new["down"] * (asked[path].share / asked[path].tokens)
        for name in [name for name in found if name.startswith((f"{path}.experts.", f"{path}.router."))]:
            old = found.pop(name)
            leaf, piece = name.rsplit(".", 1)[1], (WeightPiece(name, 1.0, "merged"),)
            pieces.pop(name)
            if rule.num_experts == 0:
                if ".experts." in name:
                    found[f"{path}.{leaf}.weight"] = new[leaf][0]
                    pieces[f"{path}.{leaf}.weight"] = piece
                continue
            pieces[name] = piece
            if ".experts." in name:
                found[name] = new[leaf]
                continue
            how = _sum if leaf == "load" else _mean
            found[name] = torch.stack([how(old, each, load_X) for each in members])
        merged[path] = [list(each) for each in members]
    return Converted(in_memory(found), pieces, {"members": merged, "is_exact": False})


def _members(rule: MergeExperts, asked: RouterRecord, number: int) -> Members:
    """The groups of experts to merge in mixture `number`."""
    total, size = len(asked.load_X), max(1, rule.num_experts)
    if rule.by == "random":
        generator = torch.Generator().manual_seed(seed_of(rule.seed, "merge_experts", number))
        return [(each,) for each in sorted(torch.randperm(total, generator=generator)[:size].tolist())]
    busy = asked.load_X.argsort(descending=True, stable=True).tolist()
    if rule.by == "load":
        return [(each,) for each in sorted(busy[:size])]
    apart_XX = (1 - asked.correlation_XX()).fill_diagonal_(0).clamp(min=0)
    joined = linkage(squareform(apart_XX.numpy(), checks=False), "average")
    cluster_X = cut_tree(joined, n_clusters=size)[:, 0]
    found = [tuple(each for each in busy if cluster_X[each] == cluster) for cluster in range(size)]
    return sorted(found)


def _merged(weights: Mapping[str, Tensor], members: Members, load_X: Tensor) -> dict[str, Tensor]:
    """The new experts' weights [X', ...]: the mean by load of each cluster, with every member's inner units
    in the order most similar to the first member's.
    """
    order = {each: _aligned(weights, group[0], each) for group in members for each in group[1:]}

    def put(weight: Tensor, name: str, each: int) -> Tensor:
        if each not in order:
            return weight[each]
        return weight[each][:, order[each]] if name == "down" else weight[each][order[each]]

    found = {}
    for name, weight in weights.items():
        whole = []
        for group in members:
            share = load_X[list(group)] / load_X[list(group)].sum()
            parts = [
                put(weight, name, each).double() * each_share
                for each, each_share in zip(group, share, strict=True)
            ]
            whole.append(torch.stack(parts).sum(0).to(weight.dtype))
        found[name] = torch.stack(whole)
    return found


def _aligned(weights: Mapping[str, Tensor], first: int, other: int) -> Tensor:
    """The order [F] of `other`'s inner units with the largest sum of products with those of `first`."""
    like_FF = torch.zeros(())
    for name, weight in weights.items():
        one, two = weight[first].float(), weight[other].float()
        like_FF = like_FF + (one.T @ two if name == "down" else one @ two.T)
    _, order = linear_sum_assignment(like_FF.cpu().numpy(), maximize=True)
    return torch.from_numpy(order)


def _sum(numbers_X: Tensor, group: tuple[int, ...], _load_X: Tensor) -> Tensor:
    return numbers_X[list(group)].sum(0)


def _mean(rows_X: Tensor, group: tuple[int, ...], load_X: Tensor) -> Tensor:
    """The mean by load of these experts' rows, [D] or one number each."""
    share = (load_X[list(group)] / load_X[list(group)].sum()).to(rows_X.device)
    share = share.view(-1, *[1] * (rows_X.dim() - 1))
    return (rows_X[list(group)].double() * share).sum(0).to(rows_X.dtype)
