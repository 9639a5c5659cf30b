"""Rows of a plan about sites: what each of them makes, and what a training over several of them costs its
link (engine/plan/link_cost.py); and what a plan refuses of a link.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from atelier.engine.config.error import ConfigError
from atelier.engine.config.link import Link
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Role
from atelier.engine.link.lessons import bytes_of_token
from atelier.engine.link.rates import rate_to
from atelier.engine.link.round_log import check_followed
from atelier.engine.link.rounds import Rounds
from atelier.engine.plan.exchanged import exchanged
from atelier.engine.plan.link_cost import (
    BITS,
    MEGA,
    LinkCost,
    chosen,
    contribution_costs,
    lesson_cost,
)
from atelier.infra.dag import Node
from atelier.infra.sites.policy import GIGA
from atelier.infra.store.store import Store

HOUR_S = 3600


@dataclass(frozen=True)
class Here:
    """This site, and what its links to others carry, Mbit/s, where that was given."""

    site: str = ""
    mbps: Mapping[str, float] = field(default_factory=dict)


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


def link_rows(nodes: Sequence[Node], step_s: Mapping[str, float], vocab: int, here: Here) -> list[LinkRow]:
    """A row for every role that crosses between sites. `nodes`: of all sites; `step_s`: by node, all its
    roles together, 0 = not known.
    """
    found: dict[tuple[str, ...], LinkRow] = {}
    of_training: dict[str, list[Node]] = {}
    for node in nodes:
        if node.task == "train" and node.training.train.link.sites:
            of_training.setdefault(_training_name(node), []).append(node)
    for name, each in of_training.items():
        slowest = max(step_s.get(node.name, 0.0) for node in each)
        known = slowest if all(step_s.get(node.name, 0.0) for node in each) else 0.0
        for node in each:
            link = node.training.train.link
            make = _contributions if link.rows else _answers
            for row in make(name, node, known, vocab, here):
                found.setdefault((name, row["role"], row["kind"], *row["sites"]), row)
    return [*found.values()]


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


def _training_name(node: Node) -> str:
    """Of roles apart each site has a task of its own."""
    link = node.training.train.link
    return node.given_name.removesuffix(f".{link.site}") if link.roles else node.given_name


def _rates(link: Link, here: Here, own: str, others: Iterable[str]) -> dict[str, float]:
    """Bytes a second from a site to each of the others; {} where one is not known, as all are in which this
    site has no part. A link carries as much each way.
    """
    found: dict[str, float] = {}
    for site in others:
        peer = own if site == here.site else site
        if here.site not in (own, site):
            return {}
        rate = here.mbps[peer] * MEGA / BITS if peer in here.mbps else rate_to(link.mailbox, peer)
        if not rate:
            return {}
        found[site] = rate
    return found


def _mbps(rates: Mapping[str, float]) -> dict[str, float]:
    return {site: round(rate * BITS / MEGA, 3) for site, rate in rates.items()}


def _model(role: Role, vocab: int) -> ModelSpec | None:
    """With its vocabulary; None while that is not known."""
    if role.model.vocab != "auto":
        return role.model
    return role.model.resolved(vocab) if vocab else None


def _contributions(name: str, node: Node, step_s: float, vocab: int, here: Here) -> Iterable[LinkRow]:
    training = node.training
    link, roles = training.train.link, [key for key in node.products if training.roles[key].moves]
    rates = _rates(link, here, link.site, [site for site in link.sites if site != link.site])
    widths = {key: role.model.hidden for key, role in training.roles.items()}
    for key in roles:
        role = training.roles[key]
        model, steps = _model(role, vocab), role.last(training.train.num_steps) - int(role.start)
        if model is None:
            continue
        weights = exchanged(role, model, precision=training.train.precision, widths=widths)
        if weights is None:
            continue
        costs = contribution_costs(link, weights, steps=steps, step_s=step_s, roles=len(roles), rates=rates)
        is_known = bool(link.choose and rates and step_s)
        yield {
            "task": name,
            "role": key,
            "kind": "contributions",
            "sites": link.sites,
            "messages": steps // link.interval,
            "every": link.interval,
            "staleness": link.delay,
            "step_s": round(step_s, 6) or None,
            "mbps": _mbps(rates),
            "costs": costs,
            "chosen": chosen(link, costs, step_s=step_s, roles=len(roles), rates=rates).text
            if is_known
            else "",
            "token_bytes": 0,
        }


def _answers(name: str, node: Node, step_s: float, vocab: int, here: Here) -> Iterable[LinkRow]:
    """Of the teachers here, to each site of their students."""
    training = node.training
    train, link = training.train, training.train.link
    for teacher in node.products:
        model = _model(training.roles[teacher], vocab)
        if model is None:
            continue
        readers: dict[tuple[str, str], list[Role]] = {}
        for key, role in training.roles.items():
            if role.teacher == teacher and link.is_apart(key, teacher):
                readers.setdefault((link.site_of(key), role.lesson), []).append(role)
        for (site, lesson), roles in readers.items():
            asked = [role.asked(train.num_steps) for role in roles]
            steps = max(each.stop for each in asked) - min(each.start for each in asked)
            rates = _rates(link, here, link.site, [site])
            rate = rates.get(site, 0.0)
            cost = lesson_cost(
                train, model, lesson, training.roles[teacher], steps=steps, step_s=step_s, rate=rate
            )
            yield {
                "task": name,
                "role": teacher,
                "kind": lesson,
                "sites": [link.site, site],
                "messages": steps,
                "every": 1,
                "staleness": link.ahead,
                "step_s": round(step_s, 6) or None,
                "mbps": _mbps(rates),
                "costs": [cost],
                "chosen": "",
                "token_bytes": bytes_of_token(link, model, lesson, train.precision),
            }


def log_refusals(node: Node, store: Store) -> list[str]:
    """Why the round log that a training follows at this site is not that of one like it, or of its finished
    model.
    """
    if node.task != "train" or not node.training.train.link.rounds:
        return []
    train, section = node.training.train, node.training.section
    try:
        for key, product in node.products.items():
            role = node.training.roles[key]
            if not role.moves:
                continue
            steps = role.last(train.num_steps) - int(role.start)
            followed = check_followed(train.link, Rounds(train.link, steps).last, section)
            record = store.find(product.kind, product.fingerprint)
            if record is not None and (made := str(record.summary.get("rounds", ""))) != followed:
                raise ConfigError(
                    f"{section}.link.rounds",
                    f"{train.link.rounds} ends with {followed[:12]}, and the finished {product.name} is of a"
                    f" log that ends with {made[:12] or 'nothing'}",
                    "another store for the model of this log, or leave it out",
                )
    except ConfigError as error:
        return [f"{node.name}: {error}"]
    return []
