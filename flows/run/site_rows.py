"""Rows of a plan about sites: what each of them makes, and what crosses between them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from atelier.engine.config.sections import site_here
from atelier.engine.plan.interconnect import LinkCost
from atelier.flows.run.compose import RunConfig
from atelier.infra.dag import Node
from atelier.infra.sites.policy import GIGA

HOUR_S = 3600


@dataclass(frozen=True)
class Here:
    """This site, and what its links to others carry, Mbit/s, where that was given."""

    site: str = ""
    mbps: Mapping[str, float] = field(default_factory=dict)


def here_of(frozen: RunConfig, nodes: Sequence[Node]) -> Here:
    """This site; of a run that is typed at each site the one that its links name."""
    if frozen.here is not None:
        return Here(frozen.here.name, frozen.sites.mbps)
    named = (site_here(node.training.train) for node in nodes if node.task == "train")
    return Here(next(filter(None, named), ""))


class SiteRow(TypedDict):
    """What one site makes: tasks and their artifacts."""

    site: str
    tasks: int
    artifacts: int
    reuse: int
    run: int
    device_hours: float


class LinkRow(TypedDict):
    """What crosses between sites for one role of a training: contributions of each site to all others, or a
    teacher's lessons, from the first site to the second.
    """

    task: str
    role: str
    kind: str  # contributions, or the name of a lesson
    sites: list[str]
    messages: int  # of a site: rounds, or steps that are answered
    every: int  # steps from one message to the next
    staleness: int  # steps from a contribution to its outer step; else, how far they may be ahead
    step_s: float | None  # of the slowest site; None = not known
    mbps: dict[str, float]  # what the link carries, by the site that is reached; {} = not known
    costs: list[LinkCost]  # of each codec that may be taken
    chosen: str  # by these rates; '' = there is one, or too little is known
    token_bytes: int  # of a scored, or a hidden token; 0 = these are contributions


def site_rows(nodes: Mapping[str, Sequence[Node]], rows: Iterable[Mapping[str, object]]) -> list[SiteRow]:
    """A row a site. `nodes`: of each, home's first; `rows`: of the plan; those without a site are home's."""
    found: list[SiteRow] = []
    by_site: dict[str, list[Mapping[str, object]]] = {name: [] for name in nodes}
    for row in rows:
        by_site[str(row["site"] or next(iter(nodes)))].append(row)
    for name, mine in by_site.items():
        running = [row for row in mine if row["state"] != "reuse"]
        hours = sum(float(str(row["device_hours"])) for row in running)
        found.append(
            {
                "site": name,
                "tasks": len(nodes[name]),
                "artifacts": len(mine),
                "reuse": len(mine) - len(running),
                "run": len(running),
                "device_hours": round(hours, 6),
            }
        )
    return found


def over_budget(links: Iterable[LinkRow], own: str, hourly: Mapping[str, float]) -> Iterator[str]:
    """What would cross between site `own` and others in more than the GB that its policies let in an hour:
    what its smallest codec has to send at once, or all that its steps send; the way out.
    """
    for row in links:
        peers = [site for site in row["sites"] if own in row["sites"] and site != own]
        each = min(max(cost["fragments"] or [cost["bytes"]]) for cost in row["costs"])
        whole, ways = min(cost["bytes"] for cost in row["costs"]), 2 if row["kind"] == "contributions" else 1
        steps = HOUR_S / row["step_s"] / row["every"] if row["step_s"] else 0.0
        for peer in peers:
            most = hourly.get(peer, 0.0)
            if not most or max(whole, ways * each * steps) <= most * GIGA:
                continue
            place, allow = f"{row['task']}.{row['role']}", f"atelier site allow {peer} --hourly"
            if whole > most * GIGA:
                yield (
                    f"{place}: a message of {whole / GIGA:.3g} GB, and {own} lets {most:g} GB an hour cross"
                    f" to and from {peer}; another codec, or {allow} at {own}"
                )
            else:
                yield (
                    f"{place}: {ways * each * steps / GIGA:.3g} GB an hour at {row['step_s']:.3g} s a step,"
                    f" and {own} lets {most:g} cross to and from {peer}; a larger link.every, another codec,"
                    f" or {allow} at {own}"
                )
