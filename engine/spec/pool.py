"""A pool: where tasks run, and the hardware facts that plans are made from."""

from typing import Literal

from pydantic import Field

from engine.spec.base import Count, Spec


class Pool(Spec):
    name: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_.-]*$",
        description="Prefect work pool where gangs run; empty = the flow's own process",
    )
    queue: Literal["urgent", "default", "idle"] = Field(
        default="default", description="which of the pool's queues: urgent runs go first, idle ones last"
    )
    site: str = Field(
        default="here", pattern=r"^[A-Za-z0-9_]+$", description="where its workers are: a file of conf/site"
    )
    grace_s: float = Field(
        default=10.0, gt=0, description="seconds that a gang has for its checkpoint when it is asked to stop"
    )
    members: tuple[str, ...] = Field(
        default=(), description="pools whose workers are one node of a gang each; empty = one node, on `name`"
    )
    gpu: str = Field(default="cpu", description="device type")
    gpus: int = Field(default=0, ge=0, description="devices in all")
    gpus_per_node: int = Field(default=0, ge=0, description="devices of one node")
    memory_gb: float | Literal["auto"] = Field(
        default="auto", description="memory of one device (cpu: of the host), GB"
    )
    peak_tflops: float = Field(
        default=0.2, gt=0, description="dense bf16 peak of one device (cpu: of one core), TFLOP/s"
    )
    node_gbps: float = Field(default=10.0, gt=0, description="bandwidth inside a node, GB/s each way")
    network_gbps: float = Field(default=1.0, gt=0, description="bandwidth between nodes, GB/s each way")
    slots: Count | Literal["auto"] = Field(
        default="auto", description="ranks that may run at once; auto = cores (cpu) or gpus"
    )

    @property
    def is_served(self) -> bool:
        """True when gangs run on Prefect work pools, not in the flow's own process."""
        return bool(self.name or self.members)
