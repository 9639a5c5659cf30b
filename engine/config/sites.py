"""Which sites take part in a run, and which tasks run where. Torch-free."""

from typing import Annotated

from pydantic import Field, model_validator

from atelier.engine.config.base import Given, JsonObject, Spec
from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.site_name import SiteName

Rate = Annotated[float, Field(gt=0)]


class Sites(Spec):
    """The sites of one run; no names = this site alone. sites=[a,b] is short for the names."""

    names: tuple[SiteName, ...] = Field(
        default=(), description="this site and others; all run the trainings and the tasks that these need"
    )
    at: dict[str, SiteName] = Field(
        default={}, description="tasks that run at only one of the sites, by task: {train: b}"
    )
    parallel: dict[SiteName, Parallel] = Field(
        default={}, description="layout at another site; missing = chosen there"
    )
    mbps: dict[SiteName, Rate] = Field(
        default={},
        description="rate of the link to another site, Mbit/s each way, for plans; missing = this site's"
        " agent's last measurement",
    )
    trial_mbps: float = Field(
        default=0,
        ge=0,
        allow_inf_nan=False,
        description="loopback: most Mbit/s that an agent of the trial sends; 0 = no limit",
    )
    link: JsonObject = Field(
        default={}, description="what train.link has unless given, if all sites train one model"
    )
    loopback: bool = Field(
        default=False,
        description="run all sites on this machine for a trial, in the store's folder sites/",
    )

    @model_validator(mode="before")
    @classmethod
    def _names_alone(cls, value: Given) -> Given:
        return {"names": value} if isinstance(value, list | tuple) else value

    @model_validator(mode="after")
    def _fits(self) -> "Sites":
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"{self.listed} has a name twice")
        if len(self.names) == 1:
            raise ValueError(f"{self.listed}: a run at one site needs no sites")
        named = [(f"sites.at.{task}", site) for task, site in self.at.items()]
        named += [("sites.parallel", site) for site in self.parallel]
        named += [("sites.mbps", site) for site in self.mbps]
        if self.trial_mbps and not self.loopback:
            raise ConfigError(
                "sites.trial_mbps", "limits a trial on loopback", "sites.loopback=true, or trial_mbps=0"
            )
        for place, site in named:
            if site not in self.names:
                known = f"sites: {self.listed}" if self.names else "name them with sites=[a,b]"
                raise ConfigError(place, f"{site} is not one of the sites", known)
        return self

    @property
    def needs_names(self) -> bool:
        """Whether something is given that means nothing without sites; defaults of links may stand."""
        return bool(self.at or self.parallel or self.loopback or self.mbps)

    @property
    def rates(self) -> dict[SiteName, float]:
        """The known rates of links, Mbit/s, by the other site."""
        return self.mbps or (dict.fromkeys(self.names, self.trial_mbps) if self.trial_mbps else {})

    @property
    def listed(self) -> str:
        """The names as given."""
        return f"[{','.join(self.names)}]"
