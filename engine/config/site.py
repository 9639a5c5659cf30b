"""A site: a location with its own storage and network, where pools have workers."""

import re

from pydantic import Field, field_validator

from atelier.engine.config.base import Spec

TUNED = (
    "NCCL_", "TORCH_NCCL_", "UCX_", "FI_", "GLOO_", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "TORCHINDUCTOR_", "TRITON_", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_CACHE_PATH", "CUBLAS_WORKSPACE_CONFIG",
    "OMP_PROC_BIND", "OMP_PLACES", "MALLOC_ARENA_MAX", "MALLOC_CONF",
)  # fmt: skip
CACHES = ("CUDA_CACHE_PATH", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
LOADING = ("_PLUGIN", "_PATH", "_DIR", "_FILE", "_LIB", "_TRACE")  # ends of names of code and files to load


def tunes(name: str) -> bool:
    """Whether a variable tunes a rank's fabric, collectives, memory or compile caches, and loads no code."""
    family = any(name == each or (each.endswith("_") and name.startswith(each)) for each in TUNED)
    return family and (name in CACHES or not name.endswith(LOADING))


WORD = r"^[A-Za-z0-9_.,:=&|*/@%+\[\]()-]*$"  # characters allowed in options of a batch system


class Slurm(Spec):
    """Options of sbatch for a site's gangs."""

    partition: str = Field(default="", pattern=WORD, description="partition of jobs; empty = the default")
    account: str = Field(
        default="", pattern=WORD, description="account to charge; empty = the user's default"
    )
    qos: str = Field(default="", pattern=WORD, description="quality of service; empty = the default")
    constraint: str = Field(default="", pattern=WORD, description="required features of nodes")
    reservation: str = Field(default="", pattern=WORD, description="reservation for jobs")
    time: str = Field(
        default="",
        pattern=r"^[0-9:-]*$",
        description="time limit per job, days-hours:minutes; empty = the partition's",
    )
    python: str = Field(default="", description="interpreter on the nodes; empty = the worker's, shared")
    container: str = Field(default="", description="Apptainer image for the interpreter; empty = none")
    output: str = Field(
        default="", description="folder for output of jobs outside gangs; empty = ~/.cache/atelier/slurm"
    )


NAME = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$|^$"  # name of a Kubernetes object


class Kubernetes(Spec):
    """Fields of a Job and its pods for a site's gangs."""

    namespace: str = Field(default="atelier", pattern=NAME, description="namespace of Jobs")
    image: str = Field(default="atelier/worker:0.1.0", description="image with Atelier and torch in it")
    pull_secret: str = Field(
        default="", pattern=NAME, description="Secret for pulling the image; empty = none"
    )
    store_secret: str = Field(
        default="",
        pattern=NAME,
        description="Secret whose keys become the pods' environment: AWS_..., ATELIER_LEASES; empty = none",
    )
    claim: str = Field(
        default="",
        pattern=NAME,
        description="PersistentVolumeClaim with the store; empty = it is not a folder",
    )
    mount: str = Field(default="/store", description="mount path of the claim")
    gpu: str = Field(default="nvidia.com/gpu", description="resource name for requesting GPUs")
    cpu: str = Field(default="1", description="cores per thread of a rank, a quantity")
    memory: str = Field(default="8Gi", description="memory per rank, a quantity")
    shared_memory: str = Field(default="1Gi", description="/dev/shm of a pod, a quantity; part of its memory")
    nodes: dict[str, str] = Field(default_factory=dict, description="required labels of nodes")
    tolerate: tuple[str, ...] = Field(default=(), description="keys of tolerated taints")
    priority: str = Field(default="", pattern=NAME, description="PriorityClass; empty = the default")
    user: int = Field(default=10001, ge=1, description="user and group id of processes; not root")


class Site(Spec):
    """conf/site: the settings of a site's workers, without secrets: those come from the environment."""

    store: str = Field(default="", description="root of the store on this site; empty = $ATELIER_ROOT")
    address: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_.:-]*$",
        description="address of this host for other nodes of a gang; empty = its name",
    )
    interface: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_.,:=^-]*$",
        description="network interface between nodes; empty = torch's choice",
    )

    env: dict[str, str] = Field(
        default={},
        description="variables of every rank, for fabric, collectives, allocators and compile caches, such as"
        " {NCCL_IB_HCA: mlx5}",
    )
    tasks: tuple[str, ...] = Field(default=(), description="tasks that run on this site; empty = every task")
    slurm: Slurm = Field(default=Slurm(), description="job options, for pools with launcher: slurm")
    kubernetes: Kubernetes = Field(
        default=Kubernetes(), description="Job settings, for pools with launcher: kubernetes"
    )

    @field_validator("env")
    @classmethod
    def _tunes(cls, env: dict[str, str]) -> dict[str, str]:
        """Results, storage and credentials have settings of their own; code is not loaded by name."""
        for name, value in env.items():
            if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name) or not tunes(name):
                known = ", ".join(f"{each}..." if each.endswith("_") else each for each in TUNED)
                raise ValueError(f"{name!r} does not tune a rank's fabric or memory; there are: {known}")
            if name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
                raise ValueError(f"{name!r} is given by `interface`")
            if not value or not value.isprintable():
                raise ValueError(f"{name!r} is {value!r}; give a value in one line, or leave it out")
        return env

    def environment(self) -> dict[str, str]:
        """Environment variables for a worker of this site, and for processes of orders there."""
        found = {
            "ATELIER_ROOT": self.store,
            "ATELIER_ADDRESS": self.address,
            "GLOO_SOCKET_IFNAME": self.interface,
            "NCCL_SOCKET_IFNAME": self.interface,
        }
        return {key: value for key, value in found.items() if value} | self.env
