"""A site: a place with its own storage and network, where pools have their workers."""

from pydantic import Field

from atelier.engine.config.base import Spec

WORD = r"^[A-Za-z0-9_.,:=&|*/@%+\[\]()-]*$"  # characters of a batch system's options


class Slurm(Spec):
    """Options of sbatch for a site's gangs."""

    partition: str = Field(default="", pattern=WORD, description="where jobs run; empty = Slurm's default")
    account: str = Field(
        default="", pattern=WORD, description="account that is charged; empty = the user's default"
    )
    qos: str = Field(default="", pattern=WORD, description="quality of service; empty = the default")
    constraint: str = Field(default="", pattern=WORD, description="features that nodes must have")
    reservation: str = Field(default="", pattern=WORD, description="a reservation to run in")
    time: str = Field(
        default="",
        pattern=r"^[0-9:-]*$",
        description="limit of a job, days-hours:minutes; empty = the partition's",
    )
    python: str = Field(default="", description="interpreter on the nodes; empty = the worker's own, shared")
    container: str = Field(default="", description="Apptainer image in which it runs; empty = none")
    output: str = Field(
        default="", description="folder for what jobs write outside of gangs; empty = ~/.cache/atelier/slurm"
    )


NAME = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$|^$"  # name of an object in Kubernetes


class Kubernetes(Spec):
    """Fields of a Job and its pods for a site's gangs."""

    namespace: str = Field(default="atelier", pattern=NAME, description="where Jobs are made")
    image: str = Field(default="atelier/worker:0.1.0", description="image with Atelier and torch in it")
    pull_secret: str = Field(
        default="", pattern=NAME, description="Secret to pull the image with; empty = none"
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
    mount: str = Field(default="/store", description="where the claim is mounted")
    gpu: str = Field(default="nvidia.com/gpu", description="name of the resource by which GPUs are requested")
    cpu: str = Field(default="1", description="cores of each thread of a rank, a quantity")
    memory: str = Field(default="8Gi", description="memory of each rank, a quantity")
    shared_memory: str = Field(default="1Gi", description="/dev/shm of a pod, a quantity; part of its memory")
    nodes: dict[str, str] = Field(default_factory=dict, description="labels that nodes must have")
    tolerate: tuple[str, ...] = Field(default=(), description="keys of the taints that are tolerated")
    priority: str = Field(default="", pattern=NAME, description="PriorityClass; empty = the default")
    user: int = Field(default=10001, ge=1, description="user and group that processes run as; not root")


class Site(Spec):
    """conf/site: the settings of a site's workers. It holds no secrets: those come from the environment."""

    store: str = Field(default="", description="root of the store as the site sees it; empty = $ATELIER_ROOT")
    address: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_.:-]*$",
        description="this host as other nodes of a gang reach it; empty = its name",
    )
    interface: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_.,:=^-]*$",
        description="network interface that gangs use between nodes; empty = torch's choice",
    )

    slurm: Slurm = Field(default=Slurm(), description="of its jobs, for pools with launcher: slurm")
    kubernetes: Kubernetes = Field(
        default=Kubernetes(), description="of its Jobs, for pools with launcher: kubernetes"
    )

    def environment(self) -> dict[str, str]:
        """Environment variables that a worker of this site adds, and a process of an order there."""
        found = {
            "ATELIER_ROOT": self.store,
            "ATELIER_ADDRESS": self.address,
            "GLOO_SOCKET_IFNAME": self.interface,
            "NCCL_SOCKET_IFNAME": self.interface,
        }
        return {key: value for key, value in found.items() if value}
