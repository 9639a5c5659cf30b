"""How long collectives take on the links of a cluster. Torch-free.

Ring algorithms (Patarasuk and Yuan, 2009): an all-reduce of n bytes over g ranks sends 2 (g - 1) / g n from
each, a gather or a scatter half of it. Ranks lie on nodes in the order of the mesh: tensor inmost, then
context, expert, shard, replicate, pipeline.
"""

from dataclasses import dataclass

from atelier.engine.config.parallel import Parallel

REACHED = 0.78  # of a link's bandwidth; what NCCL's ring reaches on large messages


@dataclass(frozen=True, kw_only=True)
class Interconnect:
    """Links of a cluster, bytes/s each way: `node` of one device inside a node, `network` of a whole node;
    `latency`, seconds until a collective has begun.
    """

    node: float
    network: float
    per_node: int
    latency: float = 0.0

    def bandwidth(self, size: int, stride: int) -> float:
        """Bytes/s of a ring over `size` ranks that are `stride` apart. A ring that leaves its node shares the
        node's network with the rings beside it.
        """
        if size * stride <= self.per_node:
            return self.node * REACHED
        members = max(1, self.per_node // stride)
        return min(self.node, self.network * members / self.per_node) * REACHED

    def gather_s(self, num_bytes: float, size: int, stride: int, pieces: float = 1) -> float:
        """Seconds until each of `size` ranks has all of `num_bytes`, or its share of their sum, in so many
        collectives.
        """
        if size == 1:
            return 0.0
        return pieces * self.latency + (size - 1) / size * num_bytes / self.bandwidth(size, stride)

    def reduce_s(self, num_bytes: float, size: int, stride: int, pieces: float = 1) -> float:
        """Seconds until each of `size` ranks has the sum of all `num_bytes`."""
        return 2 * self.gather_s(num_bytes, size, stride, pieces)

    def exchange_s(self, num_bytes: float, size: int, stride: int) -> float:
        """Seconds of an all-to-all in which each of `size` ranks sends `num_bytes` in all."""
        return self.gather_s(num_bytes, size, stride)

    def send_s(self, num_bytes: float, stride: int) -> float:
        """Seconds until the rank `stride` further has `num_bytes`."""
        inside = stride < self.per_node
        return self.latency + num_bytes / ((self.node if inside else self.network / self.per_node) * REACHED)


def strides(parallel: Parallel) -> dict[str, int]:
    """How many ranks lie between neighbours of each axis."""
    axes, found, stride = parallel.axes, {}, 1
    for name in ("tensor", "context", "expert", "shard", "replicate"):
        found[name] = stride
        stride *= getattr(axes, name)
    return found | {"pipeline": stride}
