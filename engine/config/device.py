"""Published figures of devices: compute, memory and links. Plans start from them. Torch-free.

Sources: the makers' data sheets; bandwidths are each way. Values in conf/pool override these.
"""

import re
from dataclasses import dataclass

CPU = "cpu"
AUTO = "auto"  # the GPUs that a machine has


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator, or one core of a host's CPUs.

    `matmul`: share of the peak that large matrix products reach. `stack`: cost table of the measured software
    (engine/plan/cost_table.py). `network_gbps`: rate of a whole node to other nodes. `mtbf_hours`: time
    between failures of one device, here Llama 3's (2407.21783, table 5: 466 interruptions of 16,384 GPUs in
    54 days). `launch_us`: time from one kernel to the next. `latency_us`: start of a collective. `disk_gbps`:
    rate of one rank to or from a disk. `host_gbps`: host memory to accelerator. `crowded`: share of its speed
    that a core keeps when other cores compute. `threaded`: share of that speed left when these cores are
    threads of one rank, which wait for each other. `reads_ends`: has attention without masks of documents
    (engine/model/packed.py).
    """

    peak_tflops: float
    memory_gb: float
    memory_gbps: float
    node_gbps: float
    network_gbps: float
    per_node: int
    mtbf_hours: float = 45_600
    matmul: float = 0.66
    precisions: tuple[str, ...] = ("bf16",)  # of 16 bits or less, besides fp32 and fp64
    launch_us: float = 4
    latency_us: float = 10
    disk_gbps: float = 1
    host_gbps: float = 16
    crowded: float = 1
    threaded: float = 1
    stack: str = "atelier"
    reads_ends: bool = True


DEVICES = {
    # 8 GPUs behind NVSwitch and 8 x 200 Gbit/s per node; `matmul` is fitted to the two pipeline rows of table
    # 2 of PTD-P (2104.04473), measured on such machines
    "a100-80g": Device(
        peak_tflops=312, memory_gb=80, memory_gbps=2039, node_gbps=300, network_gbps=200, per_node=8,
        host_gbps=32, stack="ptdp",
    ),
    "a100-40g": Device(
        peak_tflops=312, memory_gb=40, memory_gbps=1555, node_gbps=300, network_gbps=200, per_node=8,
        host_gbps=32
    ),
    "h100": Device(
        peak_tflops=989, memory_gb=80, memory_gbps=3350, node_gbps=450, network_gbps=400, per_node=8,
        host_gbps=64, precisions=("bf16", "fp8"),
    ),
    "h200": Device(
        peak_tflops=989, memory_gb=141, memory_gbps=4800, node_gbps=450, network_gbps=400, per_node=8,
        host_gbps=64, precisions=("bf16", "fp8"),
    ),
    # one of a module's two dies, as Frontier counts
    "mi250x": Device(
        peak_tflops=191.5, memory_gb=64, memory_gbps=1638, node_gbps=50, network_gbps=100, per_node=8,
        host_gbps=36, reads_ends=False,
    ),
    "v100": Device(
        peak_tflops=125, memory_gb=32, memory_gbps=900, node_gbps=150, network_gbps=50, per_node=8,
        host_gbps=16, precisions=(), reads_ends=False,
    ),
    # one core with its share of the memory bandwidth; memory and bandwidth between processes are of the host
    CPU: Device(
        peak_tflops=0.2, memory_gb=16, memory_gbps=25, node_gbps=5, network_gbps=1, per_node=1 << 20,
        mtbf_hours=24,  # a laptop is closed or restarted
        matmul=0.45, launch_us=20, latency_us=200, stack="cpu",
    ),
}  # fmt: skip
# of a GPU without figures here: a guess for plans, until steps are measured
UNKNOWN = Device(
    peak_tflops=100, memory_gb=16, memory_gbps=800, node_gbps=25, network_gbps=25, per_node=8
)  # fmt: skip
ALIASES = {"a100": "a100-80g", "a100-80gb": "a100-80g", "a100-40gb": "a100-40g", "selene": "a100-80g"}


def known(name: str) -> Device | None:
    """The figures of a device by its common name; None if unknown."""
    return DEVICES.get(plain_name(name))


def plain_name(name: str) -> str:
    """A device type as DEVICES calls it, if it is there."""
    plain = name.lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-").removeprefix("amd-")
    return ALIASES.get(plain, plain)


def is_device(wanted: str, found: str) -> bool:
    """Whether a driver's device name (NVIDIA H100 80GB HBM3) matches the type `wanted` (h100): it contains
    every word of it. A type that is not in DEVICES matches any GPU.
    """
    if CPU in (wanted.lower(), found.lower()):
        return wanted.lower() == found.lower()
    return known(wanted) is None or all(_has(found, word) for word in plain_name(wanted).split("-"))


def _has(name: str, word: str) -> bool:
    """True for h200 in "NVIDIA H200 NVL" and 80g in "80GB"; false for h200 in "GH200"."""
    return re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![0-9])", name.lower()) is not None
