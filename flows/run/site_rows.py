"""Rows of a plan about sites: the tasks of each, and the traffic between them."""

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
    """This site, and the given bandwidths of its links to others in Mbit/s."""

    site: str = ""
    mbps: Mapping[str, float] = field(default_factory=dict)


def here_of(frozen: RunConfig, nodes: Sequence[Node]) -> Here:
    """This site. If the run is started at each site separately, it is named by the links."""
    if frozen.here is not None:
        return Here(frozen.here.name, frozen.sites.rates)
    named = (site_here(node.training.train) for node in nodes if node.task == "train")
    return Here(next(filter(None, named), ""))


class SiteRow(TypedDict):
    """Tasks and artifacts of one site."""

    site: str
    tasks: int
    artifacts: int
    reuse: int
    run: int
    device_hours: float


class LinkRow(TypedDict):
    """Traffic between sites for one role of a training: contributions of each site to all others, or a
    teacher's lessons from the first site to the second.
    """

    task: str
    role: str
    kind: str  # contributions, or the name of a lesson
    sites: list[str]
    messages: int  # of a site: rounds, or steps with teacher outputs
    every: int  # steps from one message to the next
    staleness: int  # steps from a contribution to its outer step; for lessons, how far a site may be ahead
    step_s: float | None  # of the slowest site; None = not known
    mbps: dict[str, float]  # bandwidth of the link, by destination; {} = not known
    costs: list[LinkCost]  # of each possible codec
    chosen: str  # codec chosen by these rates; '' = only one is possible, or too little is known
    token_bytes: int  # of a scored or a hidden token; 0 for contributions


def site_rows(nodes: Mapping[str, Sequence[Node]], rows: Iterable[Mapping[str, object]]) -> list[SiteRow]:
    """A row for each site. `nodes` by site, home's first; `rows` of the plan without a site are home's."""
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
    """Errors if the traffic between site `own` and others exceeds the GB an hour of its policies: one message
    with the smallest codec, or all messages of an hour. Each has a way out.
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
                    f"{place}: a message of {whole / GIGA:.3g} GB, but {own} allows {most:g} GB an hour"
                    f" to and from {peer}; another codec, or {allow} at {own}"
                )
            else:
                yield (
                    f"{place}: {ways * each * steps / GIGA:.3g} GB an hour at {row['step_s']:.3g} s a step,"
                    f" but {own} allows {most:g} to and from {peer}; a larger link.every, another codec,"
                    f" or {allow} at {own}"
                )
