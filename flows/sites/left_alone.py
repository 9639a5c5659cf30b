"""Detect messages that will never arrive in a run over several sites: sent by others, and gone."""

from collections.abc import Iterable, Iterator

from atelier.engine.extensions.sites.config.train.link import link_of
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.membership import Meeting
from atelier.engine.extensions.sites.placement import lesson_of
from atelier.engine.extensions.sites.rounds import Rounds
from atelier.flows.run.over_sites import SiteHere
from atelier.flows.run.plan_document import PlanRow
from atelier.infra.dag import Node
from atelier.infra.store.run_manifest import row_name

Place = tuple[Node, PlanRow]  # a role at a site


def left_alone(nodes: Iterable[Node], rows: Iterable[PlanRow], here: SiteHere) -> Iterator[str]:
    """Problems of roles that would wait for ever: a student that begins where its teacher at another site is
    past, or a site that continues in a round that another has finished, if the messages are not in the
    mailbox of `here`, the run's home. Links without home are not checked. `nodes` and `rows`: of all sites.
    """
    trained = [
        node for node in nodes if node.task == "train" and here.name in link_of(node.training.train).sites
    ]
    found = {row["name"]: row for row in rows}
    of_role: dict[tuple[str, str], list[Place]] = {}
    for node in trained:
        name = node.given_name.rpartition(".")[0] if link_of(node.training.train).roles else node.given_name
        for role in node.products:
            of_role.setdefault((name, role), []).append((node, found[row_name(node, role)]))
    for (name, role), places in of_role.items():
        for node, mine in places:
            link, spec = link_of(node.training.train), node.training.roles[role]
            if mine["state"] != "run" or not (link.rows or link.is_apart(role, spec.teacher)):
                continue
            come = max(mine["from_step"], int(spec.start)) - spec.delay
            if come < spec.taught(node.training.train.num_steps).stop:  # else it needs no more messages
                others = places if link.rows else of_role.get((name, spec.teacher), [])
                yield from _lacking(
                    (node, mine), role, come, [each for each in others if each[0] is not node], here
                )


def _lacking(place: Place, role: str, come: int, others: list[Place], here: SiteHere) -> Iterator[str]:
    """Problems with the first message that a role needs from each of the others after step `come`."""
    node, mine = place
    link, spec, steps = link_of(node.training.train), node.training.roles[role], node.training.train.num_steps
    needed = sent = come + 1  # the message, and after which step of the other site it is sent
    if link.rows:
        start = int(spec.start)
        rounds = Rounds(link, spec.last(steps) - start)
        needed = rounds.done_by(come - start) + 1
        sent = start + rounds.step_of(needed)
    for other, theirs in others:
        boxes, site = _boxes(node, other, role, here), other.site or here.name
        is_over = theirs["state"] == "reuse"
        is_sent = is_over or theirs["from_step"] >= sent
        if link.is_elastic:  # a site must be in a round only if the decision names it
            decided = [each for box in boxes if (each := Meeting(box).decision(needed)) is not None]
            is_sent = site in decided[0].line.sha256 if decided else is_over
        if any(box.has(needed, site) for box in boxes):
            continue
        if is_sent:
            yield _told(mine, theirs, come, other, node, role, boxes, site)
        elif link.rows and not link.is_elastic:
            for box in boxes:
                if any(box.has(number, site) for number in box.rounds() if number > needed):
                    yield (
                        f"{mine['name']}: continues after step {come}, and the mailbox has later messages of"
                        f" {site} from an earlier run: remove {box.place}, and that folder in the mailbox of"
                        f" {site}"
                    )


def _boxes(node: Node, other: Node, role: str, here: SiteHere) -> list[Mailbox]:
    """The mailboxes at home that may have messages for a role of `node` from another site."""
    link = link_of(node.training.train)
    if link.rows:
        return [Mailbox(here.mailbox, each) for each in node.products[role].trajectories]
    spec = node.training.roles[role]
    last = other.products[spec.teacher].trajectories[-1]
    return [Mailbox(here.mailbox, lesson_of(spec.lesson, last, link))]


def _told(
    mine: PlanRow,
    theirs: PlanRow,
    step: int,
    other: Node,
    node: Node,
    key: str,
    boxes: list[Mailbox],
    site: str,
) -> str:
    """The text of a problem. `boxes`: the mailboxes of the messages of `site`."""
    where = "is finished" if theirs["state"] == "reuse" else f"is at step {theirs['from_step']}"
    if link_of(other.training.train).rows:
        places = " and ".join(box.place for box in boxes)
        return (
            f"{mine['name']}: continues after step {step}, {site} {where}, and its messages are gone: remove"
            f" that training at {site} too, and {places} at both sites; or use another train.seed"
        )
    role = node.training.roles[key]
    if role.attach == "replay":
        return (
            f"{mine['name']}: continues after step {step}, its teacher at {site} {where}, and its own later"
            " checkpoints are gone: remove that training's folder in the mailboxes of both sites"
        )
    return (
        f"{mine['name']}: continues after step {step}, its teacher at {site} {where}, and its answers are"
        f" gone: attach=replay of {key} trains {role.teacher} again for it"
    )
