"""One training at several sites. Either all train the same model: who takes part, how many local steps there
are between two outer steps, and what an outer step does (DiLoCo, 2311.08105; local SGD, 1805.09767). Or its
roles live at different sites: a student learns from a teacher whose answers come as messages, the most likely
tokens with their log-probabilities. Torch-free.
"""

from collections.abc import Collection
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic.config import JsonDict

from atelier.engine.config.base import ANSWERS, Count, Json, Section, Spec
from atelier.engine.config.codec import Codec

LAYOUT: JsonDict = {"layout": True}
SITE = r"^[a-z0-9][a-z0-9-]{0,62}$"  # a site's name
ANY, NOBODY = "any", "bucket"  # every site as coordinator; in audit logs, who nobody knows


def _is_no_word(name: str) -> str:
    if name in (ANY, NOBODY):
        raise ValueError(f"no site may be called {name}, which means something else")
    return name


SiteName = Annotated[str, Field(pattern=SITE), AfterValidator(_is_no_word)]
# fields that do nothing without `rows`, and without `roles`
OF_ROWS = (
    *("every", "outer", "delay", "fragments", "membership"),
    *("codec", "choose", "stall", "rounds", "feedback", "clip"),
)
OF_ROLES = ("top", "values", "temperature", "ahead")


class Outer(Spec):
    kind: Literal["average", "nesterov", "sparse"] = Field(
        default="average",
        description=(
            "average of the sites' weights; Nesterov's momentum over what they moved by (DiLoCo); sparse: the"
            " largest of what each site has gathered over the rounds, which fades (SparseLoCo, 2508.15706)"
        ),
    )
    lr: float = Field(default=1.0, gt=0, description="nesterov, sparse: of the outer step; DiLoCo's is 0.7")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="nesterov: DiLoCo's is 0.9")
    decay: float = Field(
        default=0.95,
        gt=0,
        le=1,
        description="sparse: what is left after a round of what was not sent; in place of a momentum",
    )

    @model_validator(mode="after")
    def _fits(self) -> "Outer":
        acts = {"lr": ("nesterov", "sparse"), "momentum": ("nesterov",), "decay": ("sparse",)}
        fields = type(self).model_fields
        for name, kinds in acts.items():
            if self.kind not in kinds and getattr(self, name) != fields[name].default:
                raise ValueError(
                    f"outer.{name} does nothing with kind={self.kind}; it is for {', '.join(kinds)}"
                )
        return self


class Membership(Spec):
    """Who takes part in an outer step. Which sites did is in the round log (engine/link/round_log.py)."""

    kind: Literal["strict", "elastic"] = Field(
        default="strict",
        description="an outer step waits for all sites, or is taken without those that are late or silent:"
        " what they were to learn is assigned again",
    )
    minimum: int = Field(default=1, ge=1, description="elastic: sites that an outer step needs")
    deadline: float = Field(
        default=120.0,
        gt=0,
        description="elastic: seconds that the other sites are waited for when `minimum` have contributed",
        json_schema_extra=LAYOUT,  # who was in is in the round log
    )
    grace: float = Field(
        default=60.0,
        gt=0,
        description="elastic: seconds of silence after which a site is not waited for; above its longest"
        " step",
        json_schema_extra=LAYOUT,
    )
    coordinator: str = Field(
        default="",
        description="elastic: the site that decides who is in, the first by name; any = whichever comes"
        " first, where all sites reach one mailbox without agents",
        json_schema_extra=LAYOUT,
    )

    @model_validator(mode="after")
    def _fits(self) -> "Membership":
        fields = type(self).model_fields
        for name in fields if self.kind == "strict" else ():
            if getattr(self, name) != fields[name].default:
                raise ValueError(f"{name} does nothing in a strict membership; kind=elastic has it")
        return self


class Link(Section):
    """Sites that train together. With `rows` one model: between outer steps each takes `every` steps of its
    own on its own rows of every batch. With `roles` each trains its own roles on the same batches. Without
    either: one site alone.
    """

    EXTENSION: ClassVar[str] = "sites"

    rows: dict[SiteName, int] = Field(
        default={}, description="sequences of each step by site; together they are train.global_batch"
    )
    every: int = Field(default=50, ge=1, description="rows: steps between two outer steps (H)")
    outer: Outer = Field(default=Outer(), description="rows: what an outer step does")
    delay: int = Field(
        default=0,
        ge=0,
        description="rows: steps that are trained while contributions cross, until their outer step is taken",
    )
    fragments: int = Field(
        default=1,
        ge=1,
        description="rows: parts of the weights, each exchanged at its own time in `every` steps",
    )
    codec: Codec = Field(default=Codec(), description="rows: in what form contributions cross between sites")
    choose: tuple[Codec, ...] = Field(
        default=(),
        description="rows: codecs, the least lossy first, in place of `codec`: each site takes for each"
        " contribution the first that its link carries in time",
    )
    stall: float = Field(
        default=0.05,
        ge=0,
        description="choose: the share of a round's training time that its message may hold it up",
        json_schema_extra=LAYOUT,  # what a wire decided is in the round log
    )
    rounds: str = Field(
        default="",
        description="choose, membership: the rounds.jsonl of a finished model, whose codecs and sites are"
        " taken again",
        json_schema_extra=LAYOUT,
    )
    membership: Membership = Field(
        default=Membership(), description="rows: whether an outer step waits for all sites"
    )
    feedback: bool = Field(
        default=True, description="rows: what the codec lost is added to the site's next contribution"
    )
    clip: float = Field(
        default=0.0,
        ge=0,
        description="rows: L2 norm, over all its weights, to which a contribution is shortened; one that is"
        " longer is refused; 0 = any",
    )
    roles: dict[SiteName, tuple[str, ...]] = Field(
        default={},
        description="the roles that each site trains, or has as finished models; a student's teacher may be"
        " elsewhere",
        json_schema_extra=LAYOUT,  # what a student hears of a teacher elsewhere is identity: `answers`
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
        description="roles: at which answers are taken; with fewer tokens than all, that of the students'"
        " objectives",
    )
    ahead: int = Field(
        default=8,
        ge=1,
        description="roles: steps that a teacher may be before the slowest site that learns from it",
        json_schema_extra=LAYOUT,
    )
    site: str = Field(
        default="",
        description="which of the sites this run is; a run over `sites` has the roles of all",
        json_schema_extra=LAYOUT,
    )
    mailbox: str = Field(
        default="",
        description="a folder, or fsspec URL, that all sites read and write, or one that this site's agent"
        " carries: their messages lie there",
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
                "link.outer.kind=sparse is of the largest numbers, with the others kept for later rounds:"
                " codec.kind=topk (share 0.01 to 0.03) and feedback=true"
            )
        return self

    @model_validator(mode="after")
    def _of_choice(self) -> "Link":
        if self.choose and self.codec != Codec():
            raise ValueError(
                "link.codec and link.choose both say in what form contributions cross; leave one out"
            )
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
            raise ValueError("link.roles: no site may be called controls, as the training of students alone")
        for site in sorted(self.roles):
            for role in self.roles[site]:
                if role in found:
                    raise ValueError(f"link.roles: {role} is at {found[role]} and at {site}; leave it at one")
                found[role] = site
        return self

    def at_site(self, site: str) -> "Link":
        """The same link as it is at one of its sites."""
        return self.model_copy(update={"site": site})

    @property
    def is_on(self) -> bool:
        return bool(self.rows or self.roles)

    def acts_on(self, role: str, teacher: str, lesson: str) -> bool:
        """As the base's: a teacher is the same whoever learns from it, a student is not."""
        return self.is_linked or (lesson == ANSWERS and self.is_apart(role, teacher))

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
        """Whether outer steps go on without sites that are late or silent."""
        return self.membership.kind == "elastic"

    @property
    def has_log(self) -> bool:
        """Whether a clock or a wire decides something, which the round log has."""
        return bool(self.choose) or self.is_elastic

    @property
    def coordinator(self) -> str:
        """The site that decides who is in an elastic round; `any`; '' where all are."""
        return (self.membership.coordinator or self.sites[0]) if self.is_elastic else ""

    @property
    def codecs(self) -> tuple[Codec, ...]:
        """In which contributions may come, the least lossy first."""
        return self.choose or (self.codec,)

    @property
    def feeds_back_if_asked(self) -> bool:
        return any(codec.is_lossy for codec in self.codecs)

    @property
    def feeds_back(self) -> bool:
        """Whether what codecs lost is kept, 4 bytes a weight."""
        return self.feeds_back_if_asked and self.feedback

    @property
    def ends_apart(self) -> bool:
        """Whether the last round is another than a longer training has there (engine/link/rounds.py)."""
        return self.is_linked and (self.delay > 0 or self.fragments > 1)

    @property
    def sites(self) -> list[str]:
        """In the order in which what they contribute is added."""
        return sorted(self.rows or self.roles)

    def site_of(self, role: str) -> str:
        """Where a role lives; '' where roles have no sites, or this one has none."""
        return next((site for site, roles in self.roles.items() if role in roles), "")

    @property
    def has_all_roles(self) -> bool:
        """Whether this run has the roles of all sites, each to be trained at its own."""
        return bool(self.roles) and not self.site

    def is_here(self, role: str) -> bool:
        """Whether this run has the role."""
        return not self.roles or self.has_all_roles or role in self.roles.get(self.site, ())

    def is_apart(self, role: str, teacher: str) -> bool:
        """Whether a role and its teacher live at different sites."""
        return bool(self.roles and teacher) and self.site_of(role) != self.site_of(teacher)

    @property
    def answers(self) -> dict[str, Json]:
        """The identity of the answers that a student gets from a teacher elsewhere."""
        heat: dict[str, Json] = {} if self.temperature == 1 else {"temperature": self.temperature}
        return {"top": self.top, "values": self.values} | heat

    @property
    def first_row(self) -> int:
        """Of this site, among the rows of a step."""
        return sum(self.rows[site] for site in self.sites[: self.sites.index(self.site)])

    def share(self, site: str, among: Collection[str] = ()) -> float:
        """Of a site's rows in those of all, or of the sites `among` which it is."""
        return self.rows[site] / sum(self.rows[each] for each in among or self.rows)
