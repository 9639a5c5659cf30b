"""One training at several sites: who takes part, how many local steps there are between two outer steps, and
what an outer step does (DiLoCo, 2311.08105; local SGD, 1805.09767). Torch-free.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from atelier.engine.config.base import Spec

LAYOUT: JsonDict = {"layout": True}
SITE = r"^[a-z0-9][a-z0-9-]{0,62}$"  # a site's name


class Outer(Spec):
    kind: Literal["average", "nesterov"] = Field(
        default="average",
        description="average of the sites' weights, or Nesterov's momentum over what they moved by (DiLoCo)",
    )
    lr: float = Field(default=1.0, gt=0, description="of the outer step; DiLoCo's is 0.7")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="nesterov: DiLoCo's is 0.9")

    @model_validator(mode="after")
    def _fits(self) -> "Outer":
        if self.kind == "average" and (self.momentum or self.lr != 1.0):
            raise ValueError("an average has no lr and no momentum; kind=nesterov has")
        return self


class Link(Spec):
    """Sites that train one model together: between outer steps each takes `every` steps of its own on its own
    rows of every batch. Empty `rows`: one site alone.
    """

    rows: dict[Annotated[str, Field(pattern=SITE)], int] = Field(
        default={}, description="sequences of each step by site; together they are train.global_batch"
    )
    every: int = Field(default=50, ge=1, description="steps between two outer steps (H)")
    outer: Outer = Field(default=Outer(), description="what an outer step does")
    site: str = Field(default="", description="which of the sites this run is", json_schema_extra=LAYOUT)
    mailbox: str = Field(
        default="",
        description="a folder, or fsspec URL, that all sites read and write: their messages lie there",
        json_schema_extra=LAYOUT,
    )

    @model_validator(mode="after")
    def _of_sites(self) -> "Link":
        idle = [
            name
            for name in type(self).model_fields
            if getattr(self, name) != type(self).model_fields[name].default
        ]
        if idle and not self.rows:
            raise ValueError(
                f"link.{idle[0]} does nothing without link.rows, the sequences of a step by site:"
                " link.rows={a:4,b:4}"
            )
        return self

    @property
    def is_linked(self) -> bool:
        return bool(self.rows)

    @property
    def sites(self) -> list[str]:
        """In the order in which what they contribute is added."""
        return sorted(self.rows)

    @property
    def first_row(self) -> int:
        """Of this site, among the rows of a step."""
        return sum(self.rows[site] for site in self.sites[: self.sites.index(self.site)])

    def share(self, site: str) -> float:
        """Of a site's rows in those of all."""
        return self.rows[site] / sum(self.rows.values())
