"""A pool: where tasks run, and the hardware facts used by plans."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from atelier.engine.config.base import Spec
from atelier.engine.config.device import ALIASES, CPU, DEVICES, Device, known
from atelier.engine.config.error import ConfigError, nearest

Fact = Annotated[float, Field(gt=0)] | Literal["auto"]
MOST_SLOTS = 1 << 16  # a plan tries every number of ranks that divides them
Share = Annotated[float, Field(gt=0, le=1)] | Literal["auto"]


FACTS = (
    "peak_tflops", "memory_gb", "matmul", "memory_gbps", "node_gbps", "network_gbps", "mtbf_hours", "stack",
    "launch_us", "latency_us", "crowded", "threaded", "disk_gbps", "host_gbps",
)  # fmt: skip
# facts that have a default for any device
LEFT = (
    "matmul", "mtbf_hours", "stack", "launch_us", "latency_us", "crowded", "threaded", "disk_gbps",
    "host_gbps",
)  # fmt: skip


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
    launcher: Literal["here", "slurm", "kubernetes"] = Field(
        default="here",
        description="what starts gangs: here = the worker, on its own machine; slurm, kubernetes = the batch"
        " system, on its nodes",
    )
    grace_s: float = Field(
        default=10.0, gt=0, description="seconds that a gang has for its checkpoint when it is asked to stop"
    )
    members: tuple[str, ...] = Field(
        default=(), description="pools whose workers are one node of a gang each; empty = one node, on `name`"
    )
    paper: bool = Field(
        default=False, description="a machine to plan for that is not here: nothing is run on it"
    )
    gpu: str = Field(
        default="cpu",
        description="device type; facts left at auto are those of engine/config/device.py",
    )
    gpus: int = Field(default=0, ge=0, description="devices in all")
    gpus_per_node: int = Field(default=0, ge=0, description="devices of one node")
    memory_gb: Fact = Field(default="auto", description="memory of one device (cpu: of the host), GB")
    peak_tflops: Fact = Field(
        default="auto", description="dense bf16 peak of one device (cpu: of one core), TFLOP/s"
    )
    half: bool | Literal["auto"] = Field(
        default="auto",
        description="whether it has 16-bit arithmetic; without, bf16 is computed in float32 (auto: a GPU has"
        " it, a CPU is checked)",
    )
    matmul: Share = Field(default="auto", description="share of the peak that large matrix products reach")
    memory_gbps: Fact = Field(
        default="auto", description="bandwidth of a device's memory (cpu: one core's share of it), GB/s"
    )
    node_gbps: Fact = Field(
        default="auto", description="bandwidth from one device to another inside a node, GB/s each way"
    )
    network_gbps: Fact = Field(
        default="auto", description="bandwidth from one node to another, of the whole node, GB/s each way"
    )
    launch_us: Fact = Field(default="auto", description="time from one kernel to the next, microseconds")
    latency_us: Fact = Field(default="auto", description="time until a collective has begun, microseconds")
    disk_gbps: Fact = Field(
        default="auto", description="what one rank reads from or writes to its scratch disk, GB/s"
    )
    host_gbps: Fact = Field(
        default="auto", description="from the host's memory to a device's, each way, GB/s (cpu: unused)"
    )
    crowded: Share = Field(
        default="auto", description="cpu: share of its speed that a core keeps while other cores compute"
    )
    threaded: Share = Field(
        default="auto", description="cpu: share of that speed left when the cores are threads of one rank"
    )
    mtbf_hours: Fact = Field(
        default="auto", description="time between failures of one device (cpu: of the host), h"
    )
    stack: Literal["auto", "atelier", "ptdp"] = Field(
        default="auto",
        description="whose software plans are made for: ours, or that of the papers whose figures plans are "
        "compared with (attention with its scores in memory)",
    )
    slots: Annotated[int, Field(ge=1, le=MOST_SLOTS)] | Literal["auto"] = Field(
        default="auto", description="ranks that may run at once; auto = cores (cpu) or gpus"
    )

    @property
    def is_served(self) -> bool:
        """True when gangs run on Prefect work pools, not in the flow's own process."""
        return bool(self.name or self.members)

    @property
    def device(self) -> Device:
        """The facts of one device: the pool's own, the rest from the makers' figures. Raises ConfigError for
        an unknown device type whose facts are not given.
        """
        given = {name: getattr(self, name) for name in FACTS if getattr(self, name) != "auto"}
        if self.gpus_per_node:
            given["per_node"] = self.gpus_per_node
        base = known(self.gpu)
        if base is not None:
            return replace(base, **given)
        missing = [name for name in FACTS if name not in given and name not in LEFT]
        if missing or not self.gpus_per_node:
            near = nearest(self.gpu.lower(), [*DEVICES, *ALIASES])
            hint = f"did you mean {near}? " if near else ""
            raise ConfigError(
                "pool.gpu",
                f"nothing is known of {self.gpu!r}",
                f"{hint}there are: {', '.join(DEVICES)}; or give pool.gpus_per_node, "
                + ", ".join(f"pool.{name}" for name in missing),
            )
        return Device(**given)

    def rank_tflops(self, threads: int) -> float:
        """Dense peak of one rank, TFLOP/s; 0 for CPUs without a measured peak."""
        if self.is_cpu:
            return 0.0 if self.peak_tflops == "auto" else self.peak_tflops * threads
        return self.device.peak_tflops

    def check_runs(self) -> None:
        """Raise ConfigError when this pool is only for planning."""
        if self.paper:
            raise ConfigError(
                "pool",
                f"{self.gpu} is a machine to plan for (paper: true): nothing can run on it",
                "`atelier plan` takes it; for devices of your own copy its file of conf/pool, with a name and"
                " without paper",
            )

    @property
    def is_cpu(self) -> bool:
        return self.gpu.lower() == CPU
