"""A run over several sites: what `sites` fills in of a configuration, and which tasks run where."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from atelier.engine.config.base import Json
from atelier.engine.config.document import section_of
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.sites import Sites
from atelier.engine.io.storage import join
from atelier.infra.dag import Node

LOOPBACK = "sites"  # folder of a store


@dataclass(frozen=True)
class SiteHere:
    """This site: its name, and the folder of the messages that its agent carries."""

    name: str
    mailbox: str


@dataclass(frozen=True)
class Placement:
    """The tasks of a run that are this site's, and those of the others."""

    here: list[Node]
    there: dict[str, list[Node]] = field(default_factory=dict)


def site_here(sites: Sites, root: str) -> SiteHere:
    """Raises ConfigError when this site is none of them, or has no key."""
    if sites.loopback:
        home = sites.names[0]
        return SiteHere(home, join(root, LOOPBACK, home, "keys", "mailbox"))
    from atelier.infra.sites.keys import Keys, keys_folder  # cryptography: only where there are sites

    keys = Keys(keys_folder())
    home = keys.card.site
    if home in sites.parallel:
        raise ConfigError(f"sites.parallel.{home}", "is this site", "parallel has the layout here")
    if home not in sites.names:
        raise ConfigError(
            "sites", f"this site is {home}, and sites={list(sites.names)}", "name it among them"
        )
    if unknown := [name for name in sites.names if name not in (home, *keys.peers)]:
        raise ConfigError(
            "sites",
            f"{unknown[0]} is not trusted here",
            "atelier site accept <its card>, and there this one's",
        )
    return SiteHere(home, str(keys.mailbox))


def with_sites(document: dict[str, Json], sites: Sites, here: SiteHere) -> dict[str, Json]:
    """The configuration as it is at this site: `train.link` says which it is, and has equal shares of the
    rows where neither they nor `sites.at` are given. Raises ConfigError for rows of other sites.
    """
    train = section_of(document.get("train"))
    link, batch = section_of(train.get("link")), train.get("global_batch")
    rows = section_of(link.get("rows"))
    if link.get("roles"):
        raise ConfigError(
            "train.link.roles",
            "with `sites` is not built: each site declares its own roles",
            "the same command at each site, with train.link.site and one mailbox (docs/run/sites.md)",
        )
    if not rows and not sites.at and isinstance(batch, int):
        rows = {**shares(batch, sites.names)}
    if not rows:
        return document
    if strange := sorted({*rows} - {*sites.names}):
        raise ConfigError("train.link.rows", f"{strange[0]} is none of sites={list(sites.names)}")
    if link.get("mailbox") not in (None, "", here.mailbox):
        raise ConfigError(
            "train.link.mailbox", f"{link['mailbox']}, and the agent's is {here.mailbox}", "leave it out"
        )
    return linked_at(
        {**document, "train": {**train, "link": {**link, "rows": rows}}}, here.name, here.mailbox
    )


def linked_at(document: Mapping[str, Json], site: str, mailbox: str) -> dict[str, Json]:
    """The configuration with this site and mailbox in its `train.link`, if it has rows of sites; one that has
    no part in them stands for another: its trainings run elsewhere.
    """
    train = section_of(document.get("train"))
    link = section_of(train.get("link"))
    if not (rows := section_of(link.get("rows"))):
        return {**document}
    own = {"site": site if site in rows or not site else min(rows), "mailbox": mailbox}
    return {**document, "train": {**train, "link": {**link, **own}}}


def shares(total: int, names: Sequence[str]) -> dict[str, int]:
    """`total` rows in parts as equal as can be. Raises ConfigError for fewer rows than sites."""
    if total < len(names):
        raise ConfigError("train.global_batch", f"is {total}, for {len(names)} sites", "a sequence for each")
    each, more = divmod(total, len(names))
    return {name: each + (place < more) for place, name in enumerate(sorted(names))}


def place(nodes: Sequence[Node], sites: Sites, here: SiteHere | None) -> Placement:
    """Which tasks run where: one that `sites.at` names, there; a training whose `train.link` has rows of
    several sites, at all of them; any other where a task that needs it runs, and here where none does.

    Raises ConfigError for an unknown task in `sites.at`, a task of another site than home that needs what it
    does not make, and sites that have nothing to do.
    """
    if here is None:
        return Placement([*nodes])
    names = {node.name for node in nodes}
    if unknown := next((name for name in sites.at if name not in names), ""):
        near = nearest(unknown, sorted(names))
        way_out = f"did you mean {near}?" if near else f"there are: {', '.join(sorted(names))}"
        raise ConfigError(f"sites.at.{unknown}", "no task is called so", way_out)
    where = _where(nodes, sites, here.name)
    for node in nodes:
        for other in node.waits:
            if lacking := where[node.name] - where[other] - {here.name}:  # home gets the files
                raise ConfigError(
                    "sites.at",
                    f"{node.name} needs {other} at {min(lacking)}, which is made at"
                    f" {', '.join(sorted(where[other]))} alone",
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
    for node in reversed(nodes):  # what needs it comes first
        linked = node.training.train.link.sites if node.task == "train" else []
        if node.name in sites.at and linked:
            raise ConfigError(
                f"sites.at.{node.name}",
                f"is at {sites.at[node.name]} alone, and train.link.rows has {', '.join(linked)}",
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


def _at(node: Node, site: str) -> Node:
    """The task as another site's."""
    waits = tuple(f"{name}@{site}" for name in node.waits)
    return node.model_copy(update={"name": f"{node.name}@{site}", "site": site, "waits": waits})
