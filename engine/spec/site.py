"""A site: a place with its own storage and network, where pools have their workers."""

from pydantic import Field

from engine.spec.base import Spec


class Site(Spec):
    """conf/site: what a worker there has to know. Secrets are no part of it: they come by the environment."""

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

    def environment(self) -> dict[str, str]:
        """What a worker of this site adds to its environment."""
        found = {
            "ATELIER_ROOT": self.store,
            "ATELIER_ADDRESS": self.address,
            "GLOO_SOCKET_IFNAME": self.interface,
            "NCCL_SOCKET_IFNAME": self.interface,
        }
        return {key: value for key, value in found.items() if value}
