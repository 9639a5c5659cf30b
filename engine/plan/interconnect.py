"""Time of collectives on the links of a cluster. Torch-free.

Ring algorithms (Patarasuk and Yuan, 2009): an all-reduce of n bytes over g ranks sends 2 (g - 1) / g n from
each, a gather or a scatter half of it. Ranks are placed on nodes in mesh order: tensor innermost, then
context, expert, shard, replicate, pipeline.
"""

from dataclasses import dataclass
from typing import TypedDict

from atelier.engine.config.parallel import Parallel

REACHED = 0.78  # share of a link's bandwidth that NCCL's ring reaches on large messages


@dataclass(frozen=True, kw_only=True)
class Interconnect:
    """Links of a cluster, bytes/s each way: `node` for one device inside a node, `network` for a whole node;
    `latency`: seconds to start a collective.
    """

    node: float
    network: float
    per_node: int
    latency: float = 0.0

    def bandwidth(self, size: int, stride: int) -> float:
        """Bytes/s of a ring over `size` ranks that are `stride` apart. Across nodes, parallel rings of one
        node share its network.
        """
        if size * stride <= self.per_node:
            return self.node * REACHED
        members = max(1, self.per_node // stride)
        return min(self.node, self.network * members / self.per_node) * REACHED

    def gather_s(self, num_bytes: float, size: int, stride: int, pieces: float = 1) -> float:
        """Seconds of an all-gather or reduce-scatter of `num_bytes` over `size` ranks, in `pieces`
        collectives.
        """
        if size == 1:
            return 0.0
        return pieces * self.latency + (size - 1) / size * num_bytes / self.bandwidth(size, stride)

    def reduce_s(self, num_bytes: float, size: int, stride: int, pieces: float = 1) -> float:
        """Seconds of an all-reduce of `num_bytes` over `size` ranks."""
        return 2 * self.gather_s(num_bytes, size, stride, pieces)

    def exchange_s(self, num_bytes: float, size: int, stride: int) -> float:
        """Seconds of an all-to-all in which each of `size` ranks sends `num_bytes` in total; across nodes in
        two stages, first inside the node.
        """
        inside = self.per_node // stride
        first = self.gather_s(num_bytes, inside, stride) if 1 < inside < size else 0.0
        return first + self.gather_s(num_bytes, size, stride)

    def send_s(self, num_bytes: float, stride: int) -> float:
        """Seconds to send `num_bytes` to the rank `stride` further on."""
        inside = stride < self.per_node
        return self.latency + num_bytes / ((self.node if inside else self.network / self.per_node) * REACHED)


def strides(parallel: Parallel) -> dict[str, int]:
    """Distance in ranks between neighbours on each axis."""
    axes, found, stride = parallel.axes, {}, 1
    for name in ("tensor", "context", "expert", "shard", "replicate"):
        found[name] = stride
        stride *= getattr(axes, name)
    return found | {"pipeline": stride}


class LinkCost(TypedDict):
    """Cost of one codec: bytes per message, per fragment if there are several, and sent to one other site
    over the whole training. Mbit/s needed to each other site at once, each way; seconds of the largest
    message but the last; share of the training's time spent waiting. None = unknown, because the link's rate
    or the steps' time is; for `needs_mbps` also if no rate is enough.
    """

    codec: str
    bytes: int
    fragments: list[int]
    sent: int
    needs_mbps: float | None
    seconds: float | None
    stall: float | None
