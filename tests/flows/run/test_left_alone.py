"""What a run over several sites would wait for in vain is refused by its plan, and nothing else is."""

import random
from pathlib import Path
from typing import cast

import pytest

from atelier.engine.config.link import Link
from atelier.engine.link.mailbox import HEAD, Mailbox
from atelier.engine.link.rounds import Rounds
from atelier.flows.run.compose import compose
from atelier.flows.run.draw import placed_nodes
from atelier.flows.run.left_alone import left_alone
from atelier.flows.run.over_sites import SiteHere
from atelier.flows.run.plan import PlanRow
from atelier.infra.dag import Node
from atelier.infra.store.run_manifest import row_name
from atelier.infra.store.store import Store

STEPS = 24  # of experiment=tiny


def lacks(link: Link, mine: int, theirs: int, kept: range) -> bool:
    """Whether a site that goes on after step `mine` needs a message that the other one, which goes on after
    step `theirs`, has sent, and that is not among those `kept`; step by step.
    """
    rounds = Rounds(link, STEPS)
    due = {number for step in range(mine + 1, STEPS + 1) for number in rounds.due_at(step)}
    sent = {rounds.sent_at(step) for step in range(1, theirs + 1)} - {0}
    return bool((due & sent) - {*kept})


@pytest.mark.parametrize("seed", range(12))
def test_a_site_waits_in_vain_for_what_was_sent_and_is_gone(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sites at drawn steps, of one round or not, and messages of drawn rounds left."""
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    draw = random.Random(seed)
    every = draw.choice((2, 4, 6, 8, 12))
    fragments = draw.choice([n for n in (1, 2) if every % n == 0])
    delay = draw.randrange(every)
    words = [f"train.link.every={every}", f"train.link.delay={delay}", f"train.link.fragments={fragments}"]
    frozen = compose("pretrain", ["experiment=tiny", "sites=[a,b]", "sites.loopback=true", *words])
    placed = placed_nodes(frozen, Store(str(tmp_path)))
    nodes = [node for node in (*placed.here, *placed.there["b"]) if node.task == "train"]
    [role], link = nodes[0].products, nodes[0].training.train.link
    trajectory = nodes[0].products[role].trajectories[-1]

    for turn in range(60):
        at = {node.name: draw.randrange(STEPS + 1) for node in nodes}
        box = Mailbox(str(tmp_path / f"mail-{turn}"), trajectory)
        kept = {node.name: range(draw.randint(1, 4), at[node.name] // link.interval + 1) for node in nodes}
        for node in nodes:
            for number in kept[node.name]:
                head = Path(box.folder(number, node.site or "a")) / HEAD
                head.parent.mkdir(parents=True)
                head.touch()
        refused = [*left_alone(nodes, rows(nodes, role, at), SiteHere("a", str(tmp_path / f"mail-{turn}")))]
        one, two = nodes
        expected = [
            f"{row_name(mine, role)}: goes on after step {at[mine.name]}, {other.site or 'a'} "
            for mine, other in ((one, two), (two, one))
            if at[mine.name] < STEPS and lacks(link, at[mine.name], at[other.name], kept[other.name])
        ]
        assert len(refused) == len(expected), (at, kept, link.every, refused, expected)
        assert all(told.startswith(start) for told, start in zip(refused, expected, strict=True)), refused


def rows(nodes: list[Node], role: str, at: dict[str, int]) -> list[PlanRow]:
    """The plan's, of sites that go on after these steps, or have finished."""
    return [
        cast(
            PlanRow,
            {
                "name": row_name(node, role),
                "state": "reuse" if at[node.name] == STEPS else "run",
                "from_step": at[node.name],
            },
        )
        for node in nodes
    ]
