"""A run over several sites: fill in the configuration from `sites`, and assign tasks to sites."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from atelier.engine.config.base import Json, JsonObject, Spec, parse
from atelier.engine.config.detect import DETECTOR, GENERATOR, Detect
from atelier.engine.config.document import section_of
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.kind_files import section_class
from atelier.engine.config.sections import places_here, sections_of
from atelier.engine.config.site_name import ANY
from atelier.engine.config.sites import Sites
from atelier.engine.config.train import Train
from atelier.engine.config.tune import ALL_WEIGHTS, FULL_STUDENT, STUDENT, TEACHER, Tune
from atelier.engine.io.storage import join
from atelier.infra.dag import Node
from atelier.infra.sites.policy import Policies

LIST = re.compile(r"^\+{0,2}sites=(\[.*\])$", re.DOTALL)
LOOPBACK = "sites"  # folder of a store
LINKED = ("train", "detect", "tune")  # sections with a `link`
APART = {"detect": (GENERATOR, DETECTOR), "tune": (STUDENT, TEACHER)}  # roles at home, and at another site
KINDS = ("rows", "roles")  # of a link, by site


@dataclass(frozen=True)
class SiteHere:
    """This site: its name, the mailbox folder of its agent, and the GB an hour that its policies allow to and
    from others, where they limit it.
    """

    name: str
    mailbox: str
    hourly: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Placement:
    """The tasks of a run at this site, and at the others."""

    here: list[Node]
    there: dict[str, list[Node]] = field(default_factory=dict)


def spelled_out(overrides: Iterable[str]) -> list[str]:
    """Overrides with `sites=[a,b]` written as keys. A list replaces the whole section `sites`."""
    texts, found = [*overrides], list[str]()
    for text in texts:
        if (match := LIST.match(text)) is None:
            found.append(text)
            continue
        if not any(each.lstrip("+").startswith("sites.loopback") for each in texts):
            found.append("sites.loopback=false")
            if not any(each.lstrip("+").startswith("sites.trial_mbps") for each in texts):
                found.append("sites.trial_mbps=0")
        found.append(f"sites.names={match[1]}")
    return found


def site_here(sites: Sites, root: str) -> SiteHere:
    """This site. Raises ConfigError if it is not one of `sites`, or has no key."""
    if sites.loopback:
        home = sites.names[0]
        _check_others(sites, home)
        return SiteHere(home, join(root, LOOPBACK, home, "keys", "mailbox"))
    from atelier.infra.sites.keys import Keys, keys_folder  # late: cryptography, only for sites

    keys = Keys(keys_folder())
    try:
        home = keys.card.site
    except ConfigError as error:
        way_out = f"{error.way_out}, or sites.loopback=true to try it on this machine"
        raise ConfigError("sites", error.problem, way_out) from None
    _check_others(sites, home)
    if home not in sites.names:
        raise ConfigError("sites", f"this site is {home}, but sites={sites.listed}", "name it among them")
    if unknown := [name for name in sites.names if name not in (home, *keys.peers)]:
        raise ConfigError(
            "sites",
            f"{unknown[0]} is not trusted here",
            "atelier site accept <its card>, and accept this site's card there",
        )
    policies = Policies(keys.folder)
    hourly = {name: policies.of(name).hourly for name in sites.names if name != home}
    return SiteHere(home, str(keys.mailbox), {name: most for name, most in hourly.items() if most})


def _check_others(sites: Sites, home: str) -> None:
    """Raises ConfigError for settings of other sites that name this one."""
    if home in sites.parallel:
        raise ConfigError(f"sites.parallel.{home}", "is this site", "parallel has the layout here")
    if home in sites.mbps:
        raise ConfigError(f"sites.mbps.{home}", "is this site", "the link to another has that one's name")


def with_sites(document: dict[str, Json], sites: Sites, here: SiteHere) -> dict[str, Json]:
    """The configuration at this site; its links name the site. If neither rows, nor roles by site, nor
    `sites.at` are given, `train.link` gets equal shares of the rows. Raises ConfigError for rows or roles of
    other sites.
    """
    result = {**document}
    train = section_of(document.get("train"))
    link, batch = section_of(train.get("link")), train.get("global_batch")
    if not any(map(link.get, KINDS)) and not sites.at and isinstance(batch, int):
        link = {
            **{key: one for key, one in sites.link.items() if key != "choose" or "codec" not in link},
            **link,
        }
        every = {} if "every" in link else {"every": interval(train, link)}
        result["train"] = {**train, "link": {**link, **every, "rows": {**shares(batch, sites.names)}}}
    other = next(name for name in sites.names if name != here.name)
    for name, (ours, theirs) in APART.items():
        if section := section_of(document.get(name)):
            link = section_of(section.get("link"))
            extra = [FULL_STUDENT] if is_among(ALL_WEIGHTS, section.get("controls")) else []
            roles = link.get("roles") or {other: [theirs], here.name: [ours, *extra]}
            result[name] = {**section, "link": {**link, "roles": cast(JsonObject, roles)}}
    for section in LINKED:
        link = section_of(section_of(result.get(section)).get("link"))
        if section_of(link.get("membership")).get("coordinator") == ANY:
            raise ConfigError(
                f"{section}.link.membership.coordinator",
                f"{ANY} needs one mailbox that all sites reach, but agents carry messages between several",
                f"leave it out (then {here.name} is the coordinator), or name one of {sites.listed}",
            )
        for key in KINDS:
            if strange := sorted({*section_of(link.get(key))} - {*sites.names}):
                place = f"{section}.link.{key}"
                raise ConfigError(place, f"{strange[0]} is not one of sites={sites.listed}")
        if link.get("mailbox") not in (None, "", here.mailbox):
            raise ConfigError(
                f"{section}.link.mailbox",
                f"{link['mailbox']}, but the agent's is {here.mailbox}",
                "leave it out",
            )
    return linked_at(decided_at(result, here.name), here.name, here.mailbox)


def is_among(word: str, given: Json) -> bool:
    return isinstance(given, list | tuple) and word in given


def interval(train: Mapping[str, Json], link: Mapping[str, Json]) -> int:
    """The default of link.every, in steps: a divisor of the training's steps, at most a fourth of them, a
    multiple of `fragments` and above `delay`. Raises ConfigError if there is none, or only small ones with
    which most of the time would go to exchanges.
    """
    steps = parse(Train, {**train, "link": {}}, "train").num_steps
    usual = section_class("train", "link").model_fields["every"].default
    most = min(usual, max(1, steps // 4))
    fragments, delay = (
        value if isinstance(value := link.get(key), int) else 0 for key in ("fragments", "delay")
    )
    fits = [n for n in range(1, most + 1) if steps % n == 0 and n % max(1, fragments) == 0 and n > delay]
    if not fits or 4 * fits[-1] < most:
        raise ConfigError(
            "train.link.every",
            f"is not given, and no divisor of the {steps} steps up to {most} fits the link",
            "give it, or another number of steps, such as a multiple of 100",
        )
    return fits[-1]


def check_site_given(arguments: Spec) -> None:
    """Raises ConfigError for roles of several sites in a run that does not name its site."""
    for section, spec in linked(arguments).items():
        for key, value in sections_of(spec).items():
            if value.is_whole:
                place, sites = f"{section}.{key}", value.places
                raise ConfigError(
                    f"{place}.site",
                    f"is not given, but {place}.roles has roles of {', '.join(sites)}",
                    f"{place}.site={sites[0]}, or sites=[{','.join(sites)}] for a run over all",
                )


def linked(arguments: Spec) -> dict[str, Spec]:
    """The sections of a flow's arguments that can train at several sites, by name."""
    found = {name: getattr(arguments, name, None) for name in LINKED}
    return {name: section for name, section in found.items() if isinstance(section, Train | Detect | Tune)}


def linked_at(document: Mapping[str, Json], site: str, mailbox: str) -> dict[str, Json]:
    """The configuration with this site and mailbox in its links that have rows or roles of sites. A site
    without a part in a link gets another's name: those trainings run elsewhere.
    """
    result = {**document}
    for name in LINKED:
        section = section_of(document.get(name))
        link = section_of(section.get("link"))
        if found := section_of(link.get("rows")) or section_of(link.get("roles")):
            own = {"site": site if site in found or not site else min(found), "mailbox": mailbox}
            result[name] = {**section, "link": {**link, **own}}
    return result


def decided_at(document: Mapping[str, Json], home: str) -> dict[str, Json]:
    """The configuration with a coordinator for elastic memberships, if none is given: home, or the first site
    of the link.
    """
    train = section_of(document.get("train"))
    link = section_of(train.get("link"))
    membership = section_of(link.get("membership"))
    if membership.get("kind") != "elastic" or membership.get("coordinator"):
        return {**document}
    rows = section_of(link.get("rows"))
    chosen = home if home in rows or not rows else min(rows)
    return {
        **document,
        "train": {**train, "link": {**link, "membership": {**membership, "coordinator": chosen}}},
    }


def with_all_roles(arguments: Spec) -> Spec:
    """The arguments for drawing the DAG of all sites: each link has the roles of all sites. The layout stays
    the one chosen for this site.
    """
    found = {
        name: section.model_copy(
            update={key: value.for_all_sites for key, value in sections_of(section).items()}
        )
        for name, section in linked(arguments).items()
    }
    return arguments.model_copy(update=found)


def shares(total: int, names: Sequence[str]) -> dict[str, int]:
    """Split `total` rows as evenly as possible. Raises ConfigError for fewer rows than sites."""
    if total < len(names):
        raise ConfigError("train.global_batch", f"is {total}, for {len(names)} sites", "give each a sequence")
    each, more = divmod(total, len(names))
    return {name: each + (place < more) for place, name in enumerate(sorted(names))}


def place(nodes: Sequence[Node], sites: Sites, here: SiteHere | None) -> Placement:
    """Assign tasks to sites: a task named in `sites.at` runs there; a training whose link has rows of several
    sites runs at all of them, one with roles by site at the sites of its roles; any other task runs where a
    task needs it, else here.

    Raises ConfigError for an unknown task in `sites.at`, for a task of another site that needs an artifact
    which is not made there, and for sites without tasks.
    """
    if here is None:
        return Placement([*nodes])
    names = {node.name for node in nodes}
    if unknown := next((name for name in sites.at if name not in names), ""):
        near = nearest(unknown, sorted(names))
        way_out = f"did you mean {near}?" if near else f"there are: {', '.join(sorted(names))}"
        raise ConfigError(f"sites.at.{unknown}", "there is no such task", way_out)
    where = _where(nodes, sites, here.name)
    for node in nodes:
        for other in node.waits:
            if lacking := where[node.name] - where[other] - {here.name}:  # home receives the files
                raise ConfigError(
                    "sites.at",
                    f"{node.name} needs {other} at {min(lacking)}, but it is made only at"
                    f" {', '.join(sorted(where[other]))}",
                    f"sites.at={{{node.name}: {min(where[other])}}}",
                )
    idle = [name for name in sites.names if not any(name in each for each in where.values())]
    if idle:
        raise ConfigError(
            "sites",
            f"{idle[0]} has nothing to do in this flow",
            f"leave it out, or sites.at={{<task>: {idle[0]}}}",
        )
    others = [name for name in sites.names if name != here.name]
    return Placement(
        [node for node in nodes if here.name in where[node.name]],
        {site: [_at(node, site) for node in nodes if site in where[node.name]] for site in others},
    )


def _where(nodes: Sequence[Node], sites: Sites, home: str) -> dict[str, set[str]]:
    where: dict[str, set[str]] = {node.name: set() for node in nodes}
    for node in reversed(nodes):  # dependents come first
        linked = linked_sites(node)
        if node.name in sites.at and linked:
            raise ConfigError(
                f"sites.at.{node.name}",
                f"is at {sites.at[node.name]} alone, but {node.training.section}.link has it at"
                f" {', '.join(linked)}",
                "leave one out",
            )
        if node.name in sites.at:
            where[node.name] = {sites.at[node.name]}
        elif linked:
            where[node.name] = {*linked}
        elif not where[node.name]:
            where[node.name] = {home}
        for other in node.waits:
            if other not in sites.at:
                where[other] |= where[node.name]
    return where


def linked_sites(node: Node) -> list[str]:
    """The sites at which a task's link runs it; empty = it has no link."""
    return places_here(node.training.train) if node.task == "train" else []


def _at(node: Node, site: str) -> Node:
    """The task, assigned to another site."""
    waits = tuple(f"{name}@{site}" for name in node.waits)
    return node.model_copy(update={"name": f"{node.name}@{site}", "site": site, "waits": waits})
