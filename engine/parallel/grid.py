"""A role's device mesh in the gang: pipeline x replicate x shard x expert x context x tensor, ranks in
row-major order.

A student of a pipelined teacher uses the ranks of the last stage, in its own mesh.
"""

from functools import cached_property
from typing import cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from atelier.engine.config.parallel import Axes
from atelier.engine.parallel.gang import PATIENCE, Gang

INNER = ("replicate", "shard", "expert", "context", "tensor")
# the axes over which dense weights and experts are sharded; the axes within a stage
FLAT = {"dense": ("shard", "expert", "context"), "sparse": ("shard", "context"), "stage": INNER}


class Grid:
    """A role's axes over the ranks of a gang, and this rank's index on each. `last_only`: only ranks of the
    last pipeline stage take part, as for students.
    """

    def __init__(self, gang: Gang, axes: Axes, *, pipeline: int = 1, last_only: bool = False) -> None:
        self.gang, self.axes, self.pipeline, self.last_only = gang, axes, pipeline, last_only
        self.sizes = {"pipeline": pipeline} | {axis: getattr(axes, axis) for axis in INNER}
        self.places: dict[str, int] = {}
        rest = gang.rank
        for axis in reversed(self.sizes):
            rest, self.places[axis] = divmod(rest, self.sizes[axis])
        self.mesh: DeviceMesh | None = None
        self._flat: dict[str, DeviceMesh] = {}
        self.expert_stages: tuple[dist.ProcessGroup, dist.ProcessGroup] | None = None
        if gang.world > 1:
            shape = tuple(self.sizes.values())
            if shape not in gang.meshes:
                gang.meshes[shape] = self._new_mesh()
            self.mesh = gang.meshes[shape]
            self.expert_stages = self._new_expert_stages()
            self._flat = {name: self.mesh[axes]._flatten(name) for name, axes in FLAT.items()}

    def _new_mesh(self) -> DeviceMesh:
        """Create a mesh: a collective of the whole gang, since every rank creates every group. Roles of one
        shape share it, because every gloo group has threads that wake a hundred times a second, and every
        NCCL communicator its own memory.
        """
        names = tuple(self.sizes)
        return init_device_mesh(self.gang.device.type, tuple(self.sizes.values()), mesh_dim_names=names)

    @property
    def local_experts(self) -> int:
        """Ranks of the expert axis per node; all if nodes hold unequal runs of them."""
        per_node, stride = self.gang.per_node, self.axes.context * self.axes.tensor
        inside = per_node // stride
        is_even = per_node % stride == 0 and inside and self.axes.expert % inside == 0
        return inside if is_even else self.axes.expert

    def _new_expert_stages(self) -> tuple[dist.ProcessGroup, dist.ProcessGroup] | None:
        """The expert-axis ranks on this node, and those of the same index on every node; None with one node
        or one rank per node. A collective of the whole gang.
        """
        inside = self.local_experts
        if not 1 < inside < self.axes.expert:
            return None
        assert self.mesh is not None  # called only in a gang
        ranks = self.mesh.mesh.movedim(3, -1).reshape(-1, self.axes.expert // inside, inside)
        found = []
        for groups in (ranks.flatten(0, 1), ranks.transpose(1, 2).flatten(0, 1)):
            group, _ = dist.new_subgroups_by_enumeration(groups.tolist(), timeout=PATIENCE)
            found.append(cast(dist.ProcessGroup, group))
        return found[0], found[1]

    @property
    def is_here(self) -> bool:
        """Whether this rank holds a part of the role."""
        return not self.last_only or self.is_last

    @property
    def is_first(self) -> bool:
        return self.last_only or self.places["pipeline"] == 0

    @property
    def is_last(self) -> bool:
        return self.places["pipeline"] == self.pipeline - 1

    @property
    def data_index(self) -> int:
        """The index of this rank's samples among the `axes.data` equal runs of them."""
        axes, places = self.axes, self.places
        return (places["replicate"] * axes.shard + places["shard"]) * axes.expert + places["expert"]

    @property
    def is_counted(self) -> bool:
        """Whether this rank's token sums count in the gang's sum: those of one tensor rank on the last stage
        do.
        """
        return self.is_last and self.places["tensor"] == 0

    @property
    def counts_samples(self) -> bool:
        """Whether this rank counts its samples: one of the ranks that read the same ones does."""
        return not (self.places["pipeline"] or self.places["context"] or self.places["tensor"])

    def group(self, axis: str) -> dist.ProcessGroup | None:
        """The ranks along one axis; None if this rank is alone."""
        if self.mesh is None or self.sizes[axis] == 1:
            return None
        return self.mesh[axis].get_group()

    @cached_property
    def stage_group(self) -> dist.ProcessGroup | None:
        """The ranks of this rank's stage."""
        return self._flat["stage"].get_group() if self._flat else None

    @cached_property
    def pipeline_group(self) -> dist.ProcessGroup | None:
        """The ranks at this rank's place in every stage; None without pipeline."""
        return self.group("pipeline")

    def sum(self, tensor: Tensor) -> Tensor:
        """All-reduce in place: over each stage's ranks, then over stages. A single stage's contribution has
        the same bits whichever stage it is.
        """
        self.gang.heartbeat.at("collective")
        for group in (self.stage_group, self.pipeline_group):
            if group is not None:
                dist.all_reduce(tensor, group=group)
        return tensor

    def mesh_of(self, *axes: str) -> DeviceMesh:
        """This rank's part of the mesh along these axes; for gangs of at least two ranks."""
        assert self.mesh is not None  # called only in a gang
        return self.mesh[axes]

    def flat_mesh(self, name: str) -> DeviceMesh | None:
        """The ranks along several axes as one dimension; None if this rank is alone."""
        return self._flat.get(name)

    def sharding(self, name: str) -> DeviceMesh | None:
        """The mesh over which dense weights ("dense") or an expert's ("sparse") are sharded, with replicas if
        any; None if this rank is alone.
        """
        if self.mesh is None or self.axes.replicate * self._flat[name].size() == 1:
            return None
        return self.mesh["replicate", name] if self.axes.replicate > 1 else self._flat[name]

    def copies(self, weight: Tensor) -> int:
        """The number of ranks of the stage that hold the same shard of a weight."""
        placements = weight.placements if isinstance(weight, DTensor) else ()
        parts = 1
        for dim, placement in enumerate(placements):
            if not placement.is_replicate():
                parts *= cast(DTensor, weight).device_mesh.size(dim)
        return self.axes.ranks // parts
