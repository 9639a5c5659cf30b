"""Rows of a plan about links between sites (bytes, seconds, rates), and reasons to refuse a link."""

from collections.abc import Iterable, Mapping, Sequence

from atelier.engine.config.error import ConfigError
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Role
from atelier.engine.extensions.sites.config.train.link import Link, link_of
from atelier.engine.extensions.sites.lessons import bytes_of_token
from atelier.engine.extensions.sites.link_cost import (
    BITS,
    MEGA,
    chosen,
    contribution_costs,
    exchanged,
    lesson_cost,
)
from atelier.engine.extensions.sites.rates import rate_to
from atelier.engine.extensions.sites.round_log import check_followed
from atelier.engine.extensions.sites.rounds import Rounds
from atelier.flows.run.site_rows import Here, LinkRow
from atelier.infra.dag import Node
from atelier.infra.store.store import Store


def link_rows(nodes: Sequence[Node], step_s: Mapping[str, float], vocab: int, here: Here) -> list[LinkRow]:
    """A row for every role whose messages cross between sites. `nodes`: of all sites; `step_s`: by node, for
    all its roles together, 0 = not known.
    """
    found: dict[tuple[str, ...], LinkRow] = {}
    of_training: dict[str, list[Node]] = {}
    for node in nodes:
        if node.task == "train" and link_of(node.training.train).sites:
            of_training.setdefault(_training_name(node), []).append(node)
    for name, each in of_training.items():
        slowest = max(step_s.get(node.name, 0.0) for node in each)
        known = slowest if all(step_s.get(node.name, 0.0) for node in each) else 0.0
        for node in each:
            link = link_of(node.training.train)
            make = _contributions if link.rows else _answers
            for row in make(name, node, known, vocab, here):
                found.setdefault((name, row["role"], row["kind"], *row["sites"]), row)
    return [*found.values()]


def _training_name(node: Node) -> str:
    """The name of a training. With `roles` each site has a task of its own."""
    link = link_of(node.training.train)
    return node.given_name.removesuffix(f".{link.site}") if link.roles else node.given_name


def _rates(link: Link, here: Here, own: str, others: Iterable[str]) -> dict[str, float]:
    """Bytes a second from site `own` to each of the others; {} if one is not known. Links without this site
    are never known. Both directions have one rate.
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
    """The model with its vocabulary; None if that is not known."""
    if role.model.vocab != "auto":
        return role.model
    return role.model.resolved(vocab) if vocab else None


def _contributions(name: str, node: Node, step_s: float, vocab: int, here: Here) -> Iterable[LinkRow]:
    training = node.training
    link, roles = link_of(training.train), [key for key in node.products if training.roles[key].moves]
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
    """Rows of the teachers here, one for each site of their students."""
    training = node.training
    train, link = training.train, link_of(training.train)
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


def refusals(node: Node, store: Store) -> list[str]:
    """Why the round log that a training follows at this site does not fit the training or its
    finished model.
    """
    if node.task != "train" or not link_of(node.training.train).rounds:
        return []
    train, section = node.training.train, node.training.section
    try:
        for key, product in node.products.items():
            role = node.training.roles[key]
            if not role.moves:
                continue
            steps = role.last(train.num_steps) - int(role.start)
            followed = check_followed(link_of(train), Rounds(link_of(train), steps).last, section)
            record = store.find(product.kind, product.fingerprint)
            if record is not None and (made := str(record.summary.get("rounds", ""))) != followed:
                raise ConfigError(
                    f"{section}.link.rounds",
                    f"{link_of(train).rounds} ends with {followed[:12]}, and the log of the finished"
                    f" {product.name} with {made[:12] or 'nothing'}",
                    "another store for the model of this log, or leave it out",
                )
    except ConfigError as error:
        return [f"{node.name}: {error}"]
    return []
