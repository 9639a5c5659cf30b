"""A pool: the place where tasks run, and its hardware figures for plans."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from atelier.engine.config.base import Spec
from atelier.engine.config.device import ALIASES, CPU, DEVICES, Device, known
from atelier.engine.config.error import ConfigError, nearest

Fact = Annotated[float, Field(gt=0)] | Literal["auto"]
EXACT = ("fp32", "fp64")  # precisions of every device
MOST_SLOTS = 1 << 16  # plans try every divisor as number of ranks
Share = Annotated[float, Field(gt=0, le=1)] | Literal["auto"]


FACTS = (
    "peak_tflops", "memory_gb", "matmul", "memory_gbps", "node_gbps", "network_gbps", "mtbf_hours", "stack",
    "launch_us", "latency_us", "crowded", "threaded", "disk_gbps", "host_gbps",
)  # fmt: skip
# facts with a default for any device
LEFT = (
    "matmul", "mtbf_hours", "stack", "launch_us", "latency_us", "crowded", "threaded", "disk_gbps",
    "host_gbps",
)  # fmt: skip


class Pool(Spec):
    name: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_.-]*$",
        description="Prefect work pool for gangs; empty = the flow's own process",
    )
    queue: Literal["urgent", "default", "idle"] = Field(
        default="default", description="queue of the pool: urgent runs go first, idle ones last"
    )
    site: str = Field(
        default="here", pattern=r"^[A-Za-z0-9_]+$", description="location of its workers, a file of conf/site"
    )
    launcher: Literal["here", "slurm", "kubernetes"] = Field(
        default="here",
        description="program that starts gangs: here = the worker on its machine; slurm, kubernetes = the"
        " batch system on its nodes",
    )
    grace_s: float = Field(
        default=10.0, gt=0, description="seconds for a gang's checkpoint after a request to stop"
    )
    members: tuple[str, ...] = Field(
        default=(), description="pools whose workers each run one node of a gang; empty = one node, on `name`"
    )
    tasks: dict[str, str] = Field(
        default={},
        description="tasks that other pools of conf/pool run, such as {train: gpu, score: local};"
        " in a form one line each, such as train=gpu",
    )
    paper: bool = Field(default=False, description="for plans only: nothing runs on it")
    gpu: str = Field(
        default="cpu",
        description="device type; engine/config/device.py gives the values that are auto; auto = the GPUs of"
        " the machine, else its CPUs",
    )
    found: str = Field(default="", description="filled in for gpu=auto: the driver's words for its GPUs")
    gpus: int = Field(
        default=0, ge=0, description="total number of devices; 0 with gpu=auto: those that are free"
    )
    gpus_per_node: int = Field(default=0, ge=0, description="devices per node")
    memory_gb: Fact = Field(default="auto", description="memory of one device (cpu: of the host), GB")
    peak_tflops: Fact = Field(
        default="auto", description="dense bf16 peak of one device (cpu: of one core), TFLOP/s"
    )
    half: bool | Literal["auto"] = Field(
        default="auto",
        description="whether it has 16-bit arithmetic; without, bf16 is computed in float32 (auto: GPUs"
        " have it, CPUs are checked)",
    )
    matmul: Share = Field(default="auto", description="share of the peak that large matrix products reach")
    memory_gbps: Fact = Field(
        default="auto", description="memory bandwidth of a device (cpu: one core's share), GB/s"
    )
    node_gbps: Fact = Field(
        default="auto", description="bandwidth between two devices of a node, GB/s each way"
    )
    network_gbps: Fact = Field(
        default="auto", description="bandwidth of a whole node to other nodes, GB/s each way"
    )
    launch_us: Fact = Field(default="auto", description="time from one kernel to the next, microseconds")
    latency_us: Fact = Field(default="auto", description="start time of a collective, microseconds")
    disk_gbps: Fact = Field(default="auto", description="rate of one rank to or from its scratch disk, GB/s")
    host_gbps: Fact = Field(
        default="auto", description="rate between host and device memory, GB/s each way (cpu: unused)"
    )
    crowded: Share = Field(
        default="auto", description="cpu: share of a core's speed left while other cores compute"
    )
    threaded: Share = Field(
        default="auto", description="cpu: share of that speed left if the cores are threads of one rank"
    )
    mtbf_hours: Fact = Field(
        default="auto", description="time between failures of one device (cpu: of the host), h"
    )
    stack: Literal["auto", "atelier", "ptdp"] = Field(
        default="auto",
        description="software to plan for: atelier, or ptdp = that of papers compared with plans"
        " (attention scores kept in memory)",
    )
    beside: bool = Field(
        default=False, description="slots of its own, for work that must not make trainings wait"
    )
    slots: Annotated[int, Field(ge=1, le=MOST_SLOTS)] | Literal["auto"] = Field(
        default="auto", description="ranks that run at once; auto = cores (cpu) or gpus"
    )

    @property
    def is_served(self) -> bool:
        """Whether gangs run on Prefect work pools instead of the flow's own process."""
        return bool(self.name or self.members)

    @property
    def device(self) -> Device:
        """The figures of one device: the pool's own, the rest from engine/config/device.py. Raises
        ConfigError for an unknown device type without figures.
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
                f"unknown device type {self.gpu!r}",
                f"{hint}there are: {', '.join(DEVICES)}; or give "
                + ", ".join(f"pool.{name}" for name in ("gpus_per_node", *missing)),
            )
        return Device(**given)

    def rank_tflops(self, threads: int) -> float:
        """Dense peak of one rank, TFLOP/s; 0 for CPUs without a measured peak."""
        if self.is_cpu:
            return 0.0 if self.peak_tflops == "auto" else self.peak_tflops * threads
        return self.device.peak_tflops

    def check_runs(self, place: str = "pool") -> None:
        """Raise ConfigError if this pool is only for plans."""
        if self.paper:
            raise ConfigError(
                place,
                f"{self.gpu} is only for plans (paper: true): nothing can run on it",
                "use `atelier plan`; for your own devices copy its file in conf/pool, with a name and"
                " without paper",
            )

    def check_precision(self, precision: str) -> None:
        """Raise ConfigError for a precision of 16 bits or less that these GPUs do not have; CPUs compute bf16
        in fp32 if need be. A pool for plans may count fp16 as bf16.
        """
        if precision == "fp8" and self.is_cpu:
            raise ConfigError(
                "train.precision",
                "fp8, but the pool's devices are CPUs",
                "train.precision=bf16 runs everywhere",
            )
        device, is_counted = known(self.gpu), self.paper and precision == "bf16"
        if self.is_cpu or device is None or is_counted or precision in (*EXACT, *device.precisions):
            return
        way_out = [*device.precisions, *EXACT][0]
        raise ConfigError(
            "train.precision",
            f"{precision}, but {self.gpu} has no such products",
            f"train.precision={way_out}, or other GPUs",
        )

    @property
    def is_cpu(self) -> bool:
        return self.gpu.lower() == CPU
