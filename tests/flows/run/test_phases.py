"""Phases of the data, from the command line to fingerprints and the gang's run file."""

import pytest

from atelier.engine.config.error import ConfigError
from atelier.flows.run.compose import compose
from atelier.infra.dag import Node
from tests.flows.run.test_order import nodes, parent, told

__all__ = ["parent"]
pytestmark = pytest.mark.usefixtures("parent")
TEXT = ("experiment=tiny", "data.blend.good.source=stdlib:csv", "data.blend.more.source=stdlib:xml")
UNREAD = (*TEXT, "data.blend.good.weight=0", "data.blend.more.weight=0")
PHASE = ("data.phases.late.begin=0.5", "data.phases.late.weights.good=2")


def trained(flow: str, *words: str) -> Node:
    return next(
        node for node in nodes(flow, compose(flow, list(words)).document).values() if node.task == "train"
    )


def test_a_run_without_the_phase_has_the_same_trunk_and_reads_what_its_record_says() -> None:
    plain, late, other = (
        trained("pretrain", *UNREAD, *more)
        for more in ((), PHASE, (*PHASE, "data.phases.late.weights.main=3"))
    )
    none = trained("pretrain", *UNREAD, PHASE[0], "data.phases.late.weights.good=0")
    assert none.products["model"].fingerprint == plain.products["model"].fingerprint
    paths = [node.products["model"].trajectories for node in (plain, late, other)]
    assert paths[0][0] == paths[1][0] == paths[2][0] and len({path[-1] for path in paths}) == 3
    for node, read in ((plain, {"main"}), (late, {"main", "good"})):
        found = node.products["model"].parents
        assert {key.partition(".")[2] for key in found if key.startswith("tokens.")} == read
        _, training, _, _ = told(node)
        assert {stream["input"].partition(".")[2] for stream in training["streams"]} == read
    assert told(late)[1]["phases"] == [12] and not told(plain)[1]["phases"]


@pytest.mark.parametrize("words", [("train.health.nan=rollback",), ()])
def test_what_is_read_first_is_identity_also_where_there_is_no_trunk(words: tuple[str, ...]) -> None:
    """Of a root that may roll back, and of a student that begins when the phase has begun."""
    flow = "pretrain" if words else "distill"
    late = () if words else ("roles.student_a.start=0.5", "score.controls=true")
    shares = "data.phases.late.weights={main:1,good:2,more:1}"
    found = []
    for first in ("good", "more"):
        other = "more" if first == "good" else "good"
        text = (*TEXT, f"data.blend.{other}.weight=0", PHASE[0], shares, *words, *late)
        every = nodes(flow, compose(flow, list(text)).document).values()
        found.append(
            {
                name: p.fingerprint
                for node in every
                for name, p in node.products.items()
                if node.task == "train"
            }
        )
    assert found[0].keys() == found[1].keys() and not set(found[0].values()) & set(found[1].values())


def test_a_phase_that_reads_nothing_or_begins_outside_is_refused_at_its_key() -> None:
    for words, problem in (
        (
            ("data.phases.late.begin=24", PHASE[1]),
            r"data.phases.late.begin: step 24 is not within the 24 steps",
        ),
        ((PHASE[0], "data.phases.late.weights.main=0"), r"data.phases.late.weights: no source is left"),
    ):
        with pytest.raises(ConfigError, match=problem):
            trained("pretrain", *UNREAD, *words)


ELASTIC = ("train.link.rows={a:4,b:4}", "train.link.site=a", "train.link.mailbox=/tmp/mail")
ELASTIC = (*ELASTIC, "train.link.membership.kind=elastic", "train.link.every=8")


def test_a_phase_within_a_round_of_sites_that_come_and_go_is_refused_with_what_would_fit() -> None:
    """Sites read samples of a round's later steps before those of its earlier ones: the steps before the
    phase would have learned from it, and be taken for those of any other.
    """
    begin, second = "data.phases.late.begin={}".format, "data.phases.more.weights.more=1"
    trained("pretrain", *UNREAD, begin(16), PHASE[1], *ELASTIC)
    trained("pretrain", *UNREAD, *PHASE, *ELASTIC[:3], "train.link.every=8")
    for words, problem in (
        (PHASE, "late.begin: step 12 is within a round of 8 steps, .*; step 8, or step 16"),
        ((begin(22), PHASE[1]), "late.begin: step 22 .*; step 16$"),
        ((begin(3), PHASE[1]), "late.begin: step 3 .*; step 8$"),
        ((begin(8), PHASE[1], "data.phases.more.begin=0.7", second), "more.begin: step 17 "),
    ):
        with pytest.raises(ConfigError, match=f"data.phases.{problem}"):
            trained("pretrain", *UNREAD, *words, *ELASTIC)
