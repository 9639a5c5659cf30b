"""Which contributions of another site are accepted, by their heads alone."""

import hashlib
from pathlib import Path

import pytest

from atelier.engine.config.record import FileEntry
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.membership import Meeting
from atelier.engine.extensions.sites.messages import BODY, Contribution
from atelier.infra.sites.incoming import Arrival, Incoming, NotTaken
from tests.infra.sites.test_agent import two
from tests.infra.sites.test_meetings import rounds, said

TRAJECTORY, DATA = "ef" * 32, b"weights"


def arrival(peer: str) -> Arrival:
    return Arrival(peer, lambda is_new: None, blocks=[DATA])


def contribution(*before: str) -> Contribution:
    """Of site a, sent after an outer step with these sites."""
    entry = FileEntry(path=BODY, bytes=len(DATA), sha256=hashlib.sha256(DATA).hexdigest())
    digests = {site: "0" * 64 for site in before}
    return Contribution(trajectory=TRAJECTORY, site="a", round=1, body=entry, before=digests, safe=0)


@pytest.mark.parametrize(
    ("before", "problem"),
    [
        ([f"s{number}" for number in range(15_000)], r"a head of \d+ bytes, at most 1048576 are accepted"),
        (["a", "c"], "is sent after a step with c, which takes no part"),
    ],
)
def test_a_head_that_the_mailbox_could_not_read_again_or_of_strange_sites_is_not_taken(
    tmp_path: Path, before: list[str], problem: str
) -> None:
    box = Mailbox(str(tmp_path), TRAJECTORY)
    box.open("b", ("a", "b"))
    incoming = Incoming(str(tmp_path), "b")
    with pytest.raises(NotTaken, match=problem) as refused:
        incoming.take(contribution(*before), arrival("a"))
    assert refused.value.when == "never" and box.rounds() == []
    incoming.take(contribution("a", "b"), arrival("a"))
    assert box.contribution(1, "a") == contribution("a", "b")


def test_a_site_without_part_in_the_first_round_of_a_branch_takes_the_others_contributions(
    tmp_path: Path,
) -> None:
    a, b = two(tmp_path)
    branch = rounds().model_copy(update={"first": 4})
    for site in (a, b):
        site.box.open(site.name, ["a", "b"], {}, branch)
    incoming = Incoming(a.mail, "a")
    b.box.send(4, "b", [DATA], {}, 0, codec=Codec())
    head = b.box.contribution(4, "b")
    assert head is not None
    with pytest.raises(NotTaken, match="round 4 is not the next one"):
        incoming.judge(head, "b")
    Meeting(a.box).tell(said("a", 5))
    incoming.judge(head, "b")
