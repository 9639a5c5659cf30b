"""Configuration of a training at several sites. Torch-free.

With `rows` all sites train one model and take outer steps between local steps (DiLoCo, 2311.08105; local SGD,
1805.09767). With `roles` the roles live at different sites: a student learns from messages of its teacher,
which have the most likely tokens with their log-probabilities.
"""

from collections.abc import Collection
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from atelier.engine.config.base import ANSWERS, Count, Json, Spec
from atelier.engine.config.section import Section
from atelier.engine.config.site_name import ANY, SiteName
from atelier.engine.config.train import Train
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.config.outer import LAYOUT, Membership, Outer

# fields that do nothing without `rows`, and without `roles`
OF_ROWS = (
    *("every", "outer", "delay", "fragments", "membership"),
    *("codec", "choose", "stall", "rounds", "feedback", "clip", "precision"),
)
OF_CODEC = ("codec", "choose", "stall", "rounds", "feedback")  # of OF_ROWS
OF_ROLES = ("top", "values", "temperature", "ahead")


class Link(Section):
    """Sites that train together. With `rows` one model: between outer steps each takes `every` steps of its
    own on its own rows of every batch. With `roles` each trains its own roles on the same batches. Without
    either: one site alone.
    """

    ABSENT: ClassVar[dict[str, Json]] = {
        "rows": {},
        "every": 50,
        "outer": {"kind": "average", "lr": 1.0, "momentum": 0.0},
        "delay": 0,
        "fragments": 1,
        "codec": {},
        "choose": [],
        "membership": {},
        "feedback": True,
        "clip": 0.0,
        "precision": {},
        "top": 32,
        "values": "8bit",
        "temperature": 1.0,
    }
    ORIGINS: ClassVar[dict[str, str]] = {"answers": "top"}
    NEEDS: ClassVar[dict[str, tuple[str, ...]]] = {"rows": OF_ROWS, "roles": OF_ROLES}

    rows: dict[SiteName, int] = Field(
        default={}, description="sequences of each step by site; together they are train.global_batch"
    )
    every: int = Field(default=50, ge=1, description="rows: steps between two outer steps (H)")
    outer: Outer = Field(default=Outer(), description="rows: the kind of outer step")
    delay: int = Field(
        default=0,
        ge=0,
        description="rows: steps that are trained while contributions cross, before their outer step",
    )
    fragments: int = Field(
        default=1,
        ge=1,
        description="rows: parts of the weights, each exchanged at its own time in `every` steps",
    )
    codec: Codec = Field(default=Codec(), description="rows: codec of contributions")
    choose: tuple[Codec, ...] = Field(
        default=(),
        description="rows: codecs, the least lossy first, in place of `codec`: each site takes, for each"
        " contribution, the first codec that crosses in time",
    )
    stall: float = Field(
        default=0.05,
        ge=0,
        description="choose: longest wait for a round's message, as a share of the round's training time",
        json_schema_extra=LAYOUT,  # the chosen codecs are in the round log
    )
    rounds: str = Field(
        default="",
        description="choose, membership: the rounds.jsonl of a finished model, to use the same codecs and"
        " sites in each round",
        json_schema_extra=LAYOUT,
    )
    membership: Membership = Field(
        default=Membership(), description="rows: whether an outer step waits for all sites"
    )
    feedback: bool = Field(
        default=True, description="rows: add the compression error to the site's next contribution"
    )
    clip: float = Field(
        default=0.0,
        ge=0,
        description="rows: L2 norm over all weights to which a contribution is scaled down; a longer one is"
        " refused; 0 = any",
    )
    precision: dict[SiteName, Literal["bf16", "fp32"]] = Field(
        default={}, description="rows: train.precision of single sites; all keep float32 weights"
    )
    roles: dict[SiteName, tuple[str, ...]] = Field(
        default={},
        description="the roles that each site trains, or has as finished models; a student's teacher may be"
        " at another site",
        json_schema_extra=LAYOUT,  # the form of a remote teacher's answers is identity: `answers`
    )
    top: Count | Literal["all"] = Field(
        default=32,
        description="roles: tokens of each answer, the most likely ones; all = the whole vocabulary",
    )
    values: Literal["8bit", "exact"] = Field(
        default="8bit",
        description="roles: log-probabilities in steps of 1/16 nat (8bit), or as computed (exact)",
    )
    temperature: float = Field(
        default=1.0,
        gt=0,
        description="roles: temperature of the answers; without top=all it must equal that of the objectives",
    )
    ahead: int = Field(
        default=8,
        ge=1,
        description="roles: steps that a teacher may be ahead of the slowest site that learns from it",
        json_schema_extra=LAYOUT,
    )
    site: str = Field(
        default="",
        description="the site of this run; a run over `sites` has the roles of all",
        json_schema_extra=LAYOUT,
    )
    mailbox: str = Field(
        default="",
        description="folder or fsspec URL of the messages, which all sites read and write, or this site's"
        " agent serves",
        json_schema_extra=LAYOUT,
    )

    @model_validator(mode="after")
    def _of_sites(self) -> "Link":
        if self.rows and self.roles:
            raise ValueError("link.rows and link.roles are not built for one training; leave one out")
        own = {name: "rows" for name in OF_ROWS} | {name: "roles" for name in OF_ROLES}
        fields = type(self).model_fields
        for name in (name for name in fields if getattr(self, name) != fields[name].default):
            other = own.get(name, "rows")
            if not (getattr(self, own[name]) if name in own else self.rows or self.roles):
                what = "the sequences of a step" if other == "rows" else "the roles"
                example = "{a:4,b:4}" if other == "rows" else "{a:[teacher],b:[student_a]}"
                raise ValueError(
                    f"link.{name} does nothing without link.{other}, {what} by site: link.{other}={example}"
                )
        if self.delay >= self.every:
            raise ValueError(
                f"link.delay={self.delay} is not below link.every={self.every}: the next contribution would"
                f" be sent first; link.delay={self.every - 1} is the most"
            )
        if self.every % self.fragments:
            raise ValueError(
                f"link.every={self.every} is not divisible by link.fragments={self.fragments};"
                f" link.every={-(-self.every // self.fragments) * self.fragments} would fit"
            )
        if not self.feedback and not self.feeds_back_if_asked:
            raise ValueError("link.feedback=false does nothing with codec.kind=none, which loses nothing")
        if self.outer.kind == "sparse" and not (
            self.feedback and all(codec.kind == "topk" for codec in self.codecs)
        ):
            raise ValueError(
                "link.outer.kind=sparse sends the largest numbers and keeps the others for later rounds; it"
                " needs codec.kind=topk (share 0.01 to 0.03) and feedback=true"
            )
        return self

    @model_validator(mode="after")
    def _of_choice(self) -> "Link":
        if self.choose and self.codec != Codec():
            raise ValueError("link.codec and link.choose both set the codec of contributions; leave one out")
        if len(self.choose) == 1 or len(set(map(repr, self.choose))) < len(self.choose):
            raise ValueError("link.choose: give two codecs or more, each once; link.codec is for one")
        if self.rounds and not self.rounds.startswith("/") and "://" not in self.rounds:
            raise ValueError(f"link.rounds={self.rounds}: give the whole path or URL of a rounds.jsonl")
        fields = type(self).model_fields
        if self.stall != fields["stall"].default and not self.choose:
            raise ValueError("link.stall does nothing without link.choose, the codecs to choose from")
        if self.rounds and not self.has_log:
            raise ValueError("link.rounds does nothing without link.choose, or link.membership.kind=elastic")
        return self

    @model_validator(mode="after")
    def _of_membership(self) -> "Link":
        if not self.is_elastic:
            return self
        given, sites = self.membership, self.sites
        for name in ("delay", "fragments"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"link.{name} is not built for an elastic membership; leave one out")
        if given.minimum > len(sites):
            raise ValueError(f"link.membership.minimum={given.minimum}, and there are {len(sites)} sites")
        if given.coordinator not in ("", ANY, *sites):
            raise ValueError(
                f"link.membership.coordinator={given.coordinator}: one of {', '.join(sites)}, or {ANY}"
            )
        return self

    @model_validator(mode="after")
    def _of_roles(self) -> "Link":
        found: dict[str, str] = {}
        if "controls" in self.roles:
            raise ValueError(
                "link.roles: controls is the training of students alone; give the site another name"
            )
        for site in sorted(self.roles):
            for role in self.roles[site]:
                if role in found:
                    raise ValueError(f"link.roles: {role} is at {found[role]} and at {site}; leave it at one")
                found[role] = site
        return self

    def at_site(self, site: str) -> "Link":
        """The same link at one of its sites."""
        return self.model_copy(update={"site": site})

    @property
    def is_on(self) -> bool:
        return bool(self.rows or self.roles)

    def identity_for(self, role: str, teacher: str, lesson: str) -> dict[str, Json] | None:
        """As in Section: a student of a remote teacher has the form of `answers`."""
        if not self.roles:
            return None
        hears = lesson == ANSWERS and self.is_apart(role, teacher)
        return {"answers": self.answers} if hears else {}

    def branch_step(self, start: int, end: int) -> int:
        return max(start, end - self.every) if self.ends_apart else end

    @property
    def site_here(self) -> str:
        return self.site if self.is_on else ""

    @property
    def for_all_sites(self) -> "Link":
        return self.at_site("") if self.roles else self

    @property
    def places(self) -> list[str]:
        return self.sites

    @property
    def places_here(self) -> list[str]:
        return [self.site] if self.roles else self.sites

    @property
    def averages(self) -> str:
        return "rows" if self.rows else ""

    def arithmetic(self, precision: str) -> str:
        return self.precision.get(self.site, precision)

    def batch_here(self, batch: int) -> int:
        return self.rows[self.site] if self.rows else batch

    @property
    def for_roles_alone(self) -> "Link | None":
        return None if self.roles else self

    def among(self, roles: Collection[str]) -> "Link":
        kept = {site: tuple(role for role in own if role in roles) for site, own in self.roles.items()}
        return self.model_copy(update={"roles": kept})

    @property
    def at_one_site(self) -> None:
        return None

    @property
    def without_codec(self) -> "Link":
        """With whole contributions; a teacher's answers keep their form."""
        fields = type(self).model_fields
        return self.model_copy(update={name: fields[name].default for name in OF_CODEC})

    def check_section(self, section: Spec) -> None:
        if not isinstance(section, Train):
            return
        rows, sites = self.rows, self.sites
        if rows and (sum(rows.values()) != section.global_batch or min(rows.values()) < 1):
            raise ValueError(
                f"link.rows={rows} are {sum(rows.values())} sequences a step, global_batch is"
                f" {section.global_batch}; give each site one or more, global_batch in all"
            )
        for site, own in self.precision.items():
            if site not in sites or own == section.precision or section.precision not in ("bf16", "fp32"):
                there = f"link.precision.{site}={own}, and train.precision={section.precision}"
                raise ValueError(f"{there}: give one of {', '.join(sites)} the other of bf16 and fp32")
        if self.site not in sites and not self.is_whole:
            raise ValueError(f"link.site={self.site or None}: this run is at one of {', '.join(sites)}")
        if not self.mailbox.startswith("/") and "://" not in self.mailbox:
            given = self.mailbox or "empty"
            raise ValueError(f"link.mailbox is {given}: give the whole path or URL of a folder for messages")
        if self.is_elastic and "://" in self.mailbox and not self.mailbox.startswith("file:"):
            raise ValueError(
                f"link.mailbox={self.mailbox} is not a folder: an elastic membership decides each round"
                " once, by exclusive create; give a folder that all sites reach, or use agents"
            )
        if section.progressive.grows:
            grown = section.progressive.steps or "0 with rampup"
            raise ValueError(
                f"progressive.steps={grown}: growth is not built for several sites; progressive.steps=0"
            )
        if section.health.rolls_back:
            which = "nan" if section.health.nan == "rollback" else "spike"
            raise ValueError(
                f"health.{which}=rollback is not built for several sites; health.{which}=skip, or stop"
            )

    @property
    def is_linked(self) -> bool:
        """Whether sites train one model."""
        return bool(self.rows)

    @property
    def interval(self) -> int:
        """Steps between two messages of a site."""
        return self.every // self.fragments

    @property
    def is_elastic(self) -> bool:
        """Whether outer steps are taken without sites that are late or silent."""
        return self.membership.kind == "elastic"

    @property
    def has_log(self) -> bool:
        """Whether there is a round log: codecs or sites of a round depend on clocks or links."""
        return bool(self.choose) or self.is_elastic

    @property
    def coordinator(self) -> str:
        """The site that decides who is in a round; `any`; '' in a strict membership."""
        return (self.membership.coordinator or self.sites[0]) if self.is_elastic else ""

    @property
    def codecs(self) -> tuple[Codec, ...]:
        """The codecs that contributions may have, the least lossy first."""
        return self.choose or (self.codec,)

    @property
    def feeds_back_if_asked(self) -> bool:
        return any(codec.is_lossy for codec in self.codecs)

    @property
    def feeds_back(self) -> bool:
        """Whether compression errors are kept, 4 bytes a weight."""
        return self.feeds_back_if_asked and self.feedback

    @property
    def ends_apart(self) -> bool:
        """Whether the last round differs from the round of a longer training there (rounds.py)."""
        return self.is_linked and (self.delay > 0 or self.fragments > 1)

    @property
    def sites(self) -> list[str]:
        """In the order in which their contributions are added."""
        return sorted(self.rows or self.roles)

    def site_of(self, role: str) -> str:
        """Where a role lives; '' where roles have no sites, or this one has none."""
        return next((site for site, roles in self.roles.items() if role in roles), "")

    @property
    def is_whole(self) -> bool:
        """Whether this run has the roles of all sites, each to be trained at its own."""
        return bool(self.roles) and not self.site

    def is_here(self, role: str) -> bool:
        """Whether this run has the role."""
        return not self.roles or self.is_whole or role in self.roles.get(self.site, ())

    def is_apart(self, role: str, teacher: str) -> bool:
        """Whether a role and its teacher live at different sites."""
        return bool(self.roles and teacher) and self.site_of(role) != self.site_of(teacher)

    @property
    def answers(self) -> dict[str, Json]:
        """The identity of the answers that a student gets from a remote teacher."""
        heat: dict[str, Json] = {} if self.temperature == 1 else {"temperature": self.temperature}
        return {"top": self.top, "values": self.values} | heat

    @property
    def first_row(self) -> int:
        """The first row of this site in a step."""
        return sum(self.rows[site] for site in self.sites[: self.sites.index(self.site)])

    def share(self, site: str, among: Collection[str] = ()) -> float:
        """A site's share of the rows of all sites, or of the sites `among`."""
        return self.rows[site] / sum(self.rows[each] for each in among or self.rows)


def link_of(section: Spec) -> Link:
    """The link of a training, or of a section like it; without one, a link that has no sites."""
    return Link.of(section) or Link()
