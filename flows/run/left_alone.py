"""What a run over several sites would wait for in vain: messages that others have sent, and that are gone."""

from collections.abc import Iterable, Iterator

from atelier.engine.link.mailbox import Mailbox
from atelier.engine.link.rounds import Rounds
from atelier.flows.run.over_sites import SiteHere
from atelier.flows.run.plan import PlanRow
from atelier.infra.dag import Node
from atelier.infra.run.roles_apart import answers_of, drawings_of
from atelier.infra.store.run_manifest import row_name


def left_alone(nodes: Iterable[Node], rows: Iterable[PlanRow], here: SiteHere) -> Iterator[str]:
    """What would wait for ever: a student that begins where its teacher at another site has come further, and
    a site that goes on in a round that another one has finished; unless what they need lies in the mailbox
    of `here`, the run's home. `nodes` and `rows` are those of all sites.
    """
    trained = [node for node in nodes if node.task == "train" and node.training.train.link.sites]
    found = {row["name"]: row for row in rows}
    of_role: dict[tuple[str, str], list[tuple[Node, PlanRow]]] = {}
    for node in trained:
        name = node.given_name.rpartition(".")[0] if node.training.train.link.roles else node.given_name
        for role in node.products:
            of_role.setdefault((name, role), []).append((node, found[row_name(node, role)]))
    for (name, role), places in of_role.items():
        for node, mine in places:
            if mine["state"] != "run":
                continue
            link, spec = node.training.train.link, node.training.roles[role]
            if link.rows:
                others = places
            elif link.is_apart(role, spec.teacher):
                others = of_role.get((name, spec.teacher), [])
            else:
                continue
            come = max(mine["from_step"], int(spec.start)) - spec.delay
            if come >= spec.taught(node.training.train.num_steps).stop:
                continue  # it has learned all, and has to be published
            rounds = Rounds(link, node.training.train.num_steps)
            needed = rounds.done_by(come) + 1 if link.rows else come + 1  # the first message
            sent = rounds.step_of(needed) if link.rows else needed  # after which step of the other site
            for other, theirs in others:
                is_sent = theirs["state"] == "reuse" or theirs["from_step"] >= sent
                if other is not node and is_sent and not _has(needed, other, node, role, here):
                    yield _told(mine, theirs, come, other, node, role, here)


def _has(number: int, other: Node, node: Node, role: str, here: SiteHere) -> bool:
    """Whether the other site's message of a round, or step, which the role needs, is in home's mailbox."""
    link, site = node.training.train.link, other.site or here.name
    if link.rows:
        boxes = (Mailbox(here.mailbox, each) for each in node.products[role].trajectories)
        return any(box.has(number, site) for box in boxes)
    spec = node.training.roles[role]
    last = other.products[spec.teacher].trajectories[-1]
    box = Mailbox(here.mailbox, drawings_of(last) if spec.detects else answers_of(last, link))
    return box.has(number, site)


def _told(
    mine: PlanRow, theirs: PlanRow, step: int, other: Node, node: Node, key: str, here: SiteHere
) -> str:
    site = other.site or here.name
    where = "is finished" if theirs["state"] == "reuse" else f"is at step {theirs['from_step']}"
    if other.training.train.link.rows:
        return (
            f"{mine['name']}: goes on after step {step}, {site} {where}, and its messages are gone:"
            f" remove that training at {site} too, or another train.seed"
        )
    role = node.training.roles[key]
    if role.attach == "replay":
        return (
            f"{mine['name']}: goes on after step {step}, its teacher at {site} {where}, and what its own"
            f" store had of it is gone: remove that training's folder in the mailboxes of both sites"
        )
    return (
        f"{mine['name']}: goes on after step {step}, its teacher at {site} {where}, and its answers are"
        f" gone: attach=replay of {key} has {role.teacher} train again, for it"
    )
