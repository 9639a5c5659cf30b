"""Which sites a run has, and what runs at which of them. Torch-free."""

from typing import Annotated

from pydantic import Field, model_validator

from atelier.engine.config.base import Given, Spec
from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.site_name import SiteName


class Sites(Spec):
    """The sites of one run; no names: all of it runs here. A list stands for its names: sites=[a,b]."""

    names: tuple[SiteName, ...] = Field(
        default=(), description="this site and others: trainings run at all of them, and what they need"
    )
    at: dict[str, SiteName] = Field(
        default={}, description="tasks that run at one of the sites alone, by name: {train: b}"
    )
    parallel: dict[SiteName, Parallel] = Field(
        default={}, description="layout at another site; where there is none it is chosen there"
    )
    mbps: dict[SiteName, Annotated[float, Field(gt=0)]] = Field(
        default={},
        description="what the link to another site carries, Mbit/s each way, for plans; not given: what this"
        " site's agent has measured of its last transfer",
    )
    loopback: bool = Field(
        default=False,
        description="all of them on this machine, in the store's folder sites/, for the time of the run: to"
        " try it",
    )

    @model_validator(mode="before")
    @classmethod
    def _names_alone(cls, value: Given) -> Given:
        return {"names": value} if isinstance(value, list | tuple) else value

    @model_validator(mode="after")
    def _fits(self) -> "Sites":
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"of {self.listed} each has a name of its own")
        if len(self.names) == 1:
            raise ValueError(f"{self.listed}: a run at one site needs no sites")
        asked = {f"sites.at.{task}": site for task, site in self.at.items()}
        asked |= {f"sites.{key}": site for key in ("parallel", "mbps") for site in getattr(self, key)}
        for place, site in asked.items():
            if site not in self.names:
                known = f"they are {self.listed}" if self.names else "sites=[a,b] names them"
                raise ConfigError(place, f"{site} is none of the sites", known)
        return self

    @property
    def listed(self) -> str:
        """The names as they are given."""
        return f"[{','.join(self.names)}]"
