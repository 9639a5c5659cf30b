"""A plan over several sites is refused exactly if a role would wait for messages that never arrive."""

import random
from collections.abc import Collection
from pathlib import Path
from typing import cast

import pytest

from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.config.train.link import Link, link_of
from atelier.engine.extensions.sites.mailbox import HEAD, Mailbox
from atelier.engine.extensions.sites.membership import Decision, Meeting
from atelier.engine.extensions.sites.round_log import RoundLine
from atelier.engine.extensions.sites.rounds import Rounds
from atelier.flows.run.compose import compose
from atelier.flows.run.draw import placed_nodes
from atelier.flows.run.over_sites import SiteHere
from atelier.flows.run.plan_document import PlanRow
from atelier.flows.sites.left_alone import left_alone
from atelier.infra.dag import Node
from atelier.infra.store.run_manifest import row_name
from atelier.infra.store.store import Store

STEPS = 24  # of experiment=tiny


def lacks(link: Link, start: int, mine: int, theirs: int, kept: Collection[int]) -> str:
    """What is lacking at a site that goes on after step `mine`, while the other one does after `theirs` and
    messages of the rounds `kept` lie there: what was sent and is "gone", or "earlier" than what lies there;
    step by step, of a role that begins after `start`.
    """
    rounds = Rounds(link, STEPS - start)
    due = {number for step in range(mine + 1, STEPS + 1) for number in rounds.due_at(step - start)}
    sent = {rounds.sent_at(step - start) for step in range(start + 1, theirs + 1)} - {0}
    if (due & sent) - {*kept}:
        return "gone"
    return "earlier" if min(due) not in kept and any(number > min(due) for number in kept) else ""


@pytest.mark.parametrize("seed", range(12))
def test_a_site_waits_in_vain_for_what_was_sent_and_is_gone(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sites at drawn steps, of one round or not, and messages of drawn rounds left, of an earlier run
    too; of a model that begins with the training, or of a student that begins later.
    """
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    draw = random.Random(seed)
    flow, role, start = draw.choice((("pretrain", "model", 0), ("distill", "student_a", 12)))
    every = draw.choice((2, 4, 6, 12))
    fragments = draw.choice([n for n in (1, 2) if every % n == 0])
    delay = draw.randrange(every)
    words = [f"train.link.every={every}", f"train.link.delay={delay}", f"train.link.fragments={fragments}"]
    nodes = trained(flow, role, tmp_path, *words)
    link = link_of(nodes[0].training.train)
    assert int(nodes[0].training.roles[role].start) == start
    for turn in range(60):
        at = {node.name: draw.choice((start, draw.randrange(start, STEPS + 1))) for node in nodes}
        here = SiteHere("a", str(tmp_path / f"mail-{turn}"))
        box = Mailbox(here.mailbox, nodes[0].products[role].trajectories[-1])
        until = {node.name: (at[node.name] - start) // link.interval for node in nodes}
        if not draw.randrange(4):
            until[draw.choice(nodes).name] += 3
        kept = {node.name: range(draw.randint(1, 4), until[node.name] + 1) for node in nodes}
        for node in nodes:
            for number in kept[node.name]:
                put(box, number, node.site or "a")
        refused = [*left_alone(nodes, rows(nodes, role, at), here)]
        one, two = nodes
        expected = {
            f"{row_name(mine, role)}: continues after step {at[mine.name]}, ": why
            for mine, other in ((one, two), (two, one))
            if at[mine.name] < STEPS
            and (why := lacks(link, start, at[mine.name], at[other.name], kept[other.name]))
        }
        assert len(refused) == len(expected), (at, kept, link.every, refused, expected)
        for told, (begins, why) in zip(refused, expected.items(), strict=True):
            assert told.startswith(begins) and why in told, (told, why)


def test_of_an_elastic_round_those_that_were_in_it_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    words = ["train.link.every=6", "train.link.membership.kind=elastic"]
    nodes = trained("pretrain", "model", tmp_path, *words)
    here = SiteHere("a", str(tmp_path / "mail"))
    box = Mailbox(here.mailbox, nodes[0].products["model"].trajectories[-1])
    at = {"train": 15, "train@b": 6}
    assert [*left_alone(nodes, rows(nodes, "model", at), here)] == []  # nobody has decided that a is in it
    line = RoundLine(round=2, codecs={"a": Codec()}, sha256={"a": "0" * 64}, before="")
    Meeting(box).decide(Decision(trajectory=box.trajectory, site="a", line=line))
    [told] = left_alone(nodes, rows(nodes, "model", at), here)
    assert told.startswith("train@b: continues after step 6, a is at step 15, and its messages are gone")
    put(box, 2, "a")
    assert [*left_alone(nodes, rows(nodes, "model", at), here)] == []


def test_of_a_link_without_home_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    nodes = trained("pretrain", "model", tmp_path, "train.link.every=6")
    at = {"train": 18, "train@b": 6}
    there = str(tmp_path / "mail")
    assert [*left_alone(nodes, rows(nodes, "model", at), SiteHere("a", there))]
    assert [*left_alone(nodes, rows(nodes, "model", at), SiteHere("c", there))] == []


def trained(flow: str, role: str, root: Path, *words: str) -> list[Node]:
    """The training of a role at both sites."""
    given = ["experiment=tiny", "sites=[a,b]", "sites.loopback=true", *words]
    placed = placed_nodes(compose(flow, given), Store(str(root)))
    return [
        node for node in (*placed.here, *placed.there["b"]) if role in node.products and node.task == "train"
    ]


def put(box: Mailbox, number: int, site: str) -> None:
    """A site's message of a round, as a plan sees it."""
    head = Path(box.folder(number, site)) / HEAD
    head.parent.mkdir(parents=True)
    head.touch()


def rows(nodes: list[Node], role: str, at: dict[str, int]) -> list[PlanRow]:
    """The plan's, of sites whose role goes on after these steps, or has finished as all others have."""
    steps = {
        (node.name, key): at[node.name] if key == role else STEPS for node in nodes for key in node.products
    }
    return [
        cast(
            PlanRow,
            {
                "name": row_name(node, key),
                "state": "reuse" if (step := steps[node.name, key]) == STEPS else "run",
                "from_step": step,
            },
        )
        for node in nodes
        for key in node.products
    ]
