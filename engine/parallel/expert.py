"""Expert parallelism: experts are split over the expert axis; an all-to-all sends each token to the ranks of
its experts, another sends the results back (GShard, 2006.16668). Across nodes each has two stages: first
within the node, to the rank with the receiver's index, then from node to node (SE-MoE, 2205.10034, section
3.3): one message per node instead of one per rank.

A token is sent to a rank once, with the weights of all its experts there; their results come back as one sum.
With tensor > 1 every expert's inner width is split too, as in any MLP.

R ranks of the axis, E experts of each, N tokens here, U sent from here (a token once for each of its ranks),
Q received; L ranks of a node
"""

import functools
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import Placement, Shard, distribute_tensor

from atelier.engine.model.dispatch import Dispatch, collect, dispatched
from atelier.engine.model.expert_mlp import mlp
from atelier.engine.model.moe import ExpertWeights, SharedExperts
from atelier.engine.model.placement import local
from atelier.engine.parallel.collective import Exchange, Traffic, all_parts, enter_split, leave_split
from atelier.engine.parallel.grid import Grid

INNER_DIM = {"gate": -2, "up": -2, "down": -1}  # in [X, F, D] and [X, D, F], [F, D] and [D, F]


def split_experts(model: nn.Module, grid: Grid) -> "Route | None":
    """Split the experts of every mixture of the plain model in place. Returns the route of tokens to their
    ranks if the expert axis has several.
    """
    if grid.axes.expert * grid.axes.tensor == 1:
        return None
    route = Route(grid) if grid.axes.expert > 1 else None
    for experts in mixtures(model):
        _place(experts, grid, [Shard(0)])
        experts.start = functools.partial(_start, experts, grid.group("tensor"), route)
    for shared in model.modules():
        if isinstance(shared, SharedExperts) and grid.axes.tensor > 1:
            _place(shared, grid, [])
            shared.forward = functools.partial(_split, shared, grid)
    return route


def _place(module: nn.Module, grid: Grid, outer: list[Placement]) -> None:
    """Split the inner width over the tensor axis, and experts by the `outer` placement."""
    mesh = grid.mesh_of("expert", "tensor") if outer else grid.mesh_of("tensor")
    for name, weight in list(module.named_parameters(recurse=False)):
        places = [*outer, Shard(weight.dim() + INNER_DIM[name])]
        placed = distribute_tensor(weight.detach(), mesh, places, src_data_rank=None)
        setattr(module, name, nn.Parameter(placed, requires_grad=weight.requires_grad))


def mixtures(model: nn.Module) -> list[ExpertWeights]:
    """The experts of every mixture in the model, in module order."""
    return [module for module in model.modules() if isinstance(module, ExpertWeights)]


def _split(shared: SharedExperts, grid: Grid, x_ND: Tensor) -> Tensor:
    """`SharedExperts.forward` with the inner width split over the tensor axis."""
    columns = grid.group("tensor")
    assert columns is not None  # split only if there are several ranks
    weights = tuple(local(weight) for weight in shared.parameters(recurse=False))
    return leave_split(mlp(enter_split(x_ND, columns), weights, shared.activation), columns)


def _start(
    experts: ExpertWeights,
    columns: dist.ProcessGroup | None,
    route: "Route | None",
    x_ND: Tensor,
    chosen_NK: Tensor,
    share_NK: Tensor,
    load_X: Tensor,
) -> Callable[[], Tensor]:
    """`ExpertWeights.start` over the ranks of both axes."""
    if columns is not None:
        x_ND, share_NK = enter_split(x_ND, columns), enter_split(share_NK, columns)
    if route is None:
        finish = ExpertWeights.start(experts, x_ND, chosen_NK, share_NK, load_X)
    else:
        finish = _travel(experts, route, x_ND, chosen_NK, share_NK)
    return finish if columns is None else lambda: leave_split(finish(), columns)


def _travel(
    experts: ExpertWeights, route: "Route", x_ND: Tensor, chosen_NK: Tensor, share_NK: Tensor
) -> Callable[[], Tensor]:
    """Send tokens to their experts' ranks, which compute them sorted by expert, then by source."""
    (number, width), total = x_ND.shape, experts.num_experts
    # weight per expert, -inf for experts that a token does not use; the last column is for none
    share_NX = x_ND.new_full((number, total + 1), -torch.inf)
    share_NX = share_NX.scatter(1, chosen_NK % (total + 1), share_NK.to(x_ND.dtype))[:, :total]
    share_NRE = share_NX.unflatten(1, (route.size, -1))
    goes_RN = (share_NRE.detach() != -torch.inf).any(-1).T
    rank_U, token_U = goes_RN.nonzero().unbind(1)
    counts_RR = all_parts(goes_RN.sum(1), route.group).tolist()
    back = Dispatch(token_U, [], *_by_token(goes_RN.T))
    message_UM = torch.cat([dispatched(x_ND, back), share_NRE[token_U, rank_U]], 1)
    arrive = route.send(message_UM, counts_RR)

    def finish() -> Tensor:
        x_QD, share_QE = arrive().split([width, total // route.size], 1)
        is_its_QE = share_QE.detach() != -torch.inf
        token_P = is_its_QE.T.nonzero()[:, 1]
        pairs = Dispatch(token_P, is_its_QE.sum(0).tolist(), *_by_token(is_its_QE))
        y_QD = experts.here(x_QD, pairs, share_QE[is_its_QE])
        y_UD = route.send(y_QD, [list(counts) for counts in zip(*counts_RR, strict=True)])()
        return collect(y_UD, None, back)

    return finish


def _by_token(is_its: Tensor) -> tuple[Tensor, Tensor]:
    """`first_N` and `pair_C` for pairs ordered by column of a token table."""
    count_N = is_its.sum(1)
    place = is_its.T.flatten().cumsum(0).view(is_its.T.shape).T - 1
    return count_N.cumsum(0) - count_N, place[is_its]


class Route:
    """Sends rows between the ranks of a grid's expert axis; `traffic` counts rows sent to other nodes."""

    def __init__(self, grid: Grid) -> None:
        group = grid.group("expert")
        assert group is not None  # used only with several ranks
        self.group, self.size, self.place = group, grid.axes.expert, grid.places["expert"]
        self.stages = grid.expert_stages
        self.local = grid.local_experts  # L
        self.traffic = Traffic()

    def send(self, rows: Tensor, counts_RR: list[list[int]]) -> Callable[[], Tensor]:
        """Start sending rows ordered by receiver; the returned function gives received rows, ordered by
        sender. `counts_RR`: rows from each rank to each.
        """
        me, local, ranks = self.place, self.local, range(self.size)
        node, place = divmod(me, local)
        sent, received = counts_RR[me], [counts[me] for counts in counts_RR]
        if self.stages is None:
            is_far = [rank // local != node for rank in ranks]
            return Exchange(sent, received, self.group, is_far=is_far, traffic=self.traffic).start(rows)
        within, between = self.stages
        nodes, near = range(self.size // local), range(node * local, (node + 1) * local)
        same = [range(each, self.size, local) for each in range(local)]  # ranks of equal index, by node
        first = Exchange(
            [sum(sent[rank] for rank in same[each]) for each in range(local)],
            [sum(counts_RR[source][rank] for rank in same[place]) for source in near],
            within,
        )
        rows = first.start(_turned(rows, [sent[each * local : (each + 1) * local] for each in nodes]))()
        rows = _turned(rows, [[counts_RR[source][rank] for rank in same[place]] for source in near])
        second = Exchange(
            [sum(counts_RR[source][rank] for source in near) for rank in same[place]],
            [sum(received[each * local : (each + 1) * local]) for each in nodes],
            between,
            is_far=[each != node for each in nodes],
            traffic=self.traffic,
        )
        return second.start(rows)


def _turned(rows: Tensor, counts_AB: list[list[int]]) -> Tensor:
    """Rows in blocks by (a, b), reordered by (b, a)."""
    size_AB = torch.tensor(counts_AB)
    first_AB = size_AB.flatten().cumsum(0).view_as(size_AB) - size_AB
    size_C, first_C = size_AB.T.flatten(), first_AB.T.flatten()
    order = (first_C - size_C.cumsum(0) + size_C).repeat_interleave(size_C) + torch.arange(int(size_C.sum()))
    return rows.index_select(0, order.to(rows.device))
