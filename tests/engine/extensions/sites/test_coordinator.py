"""Decisions of a coordinator on who is in a round, with a clock that the test moves."""

import hashlib
from pathlib import Path

import pytest

from atelier.engine.config.error import DataError
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.config.outer import Membership
from atelier.engine.extensions.sites.coordinator import Coordinator, check_after, check_who
from atelier.engine.extensions.sites.mailbox import HEAD, MOST_HEAD, Mailbox
from atelier.engine.extensions.sites.membership import Decision, Meeting, Presence
from atelier.engine.extensions.sites.messages import AboutRounds, Contribution
from atelier.engine.extensions.sites.round_log import RoundLine
from atelier.engine.extensions.sites.sample_log import SampleLog

TRAJECTORY = "ab" * 32
ROWS = {"a": 1, "b": 2, "c": 1}


class Table:
    """Three sites around one mailbox, and a clock."""

    def __init__(self, folder: Path, **membership: object) -> None:
        self.now = 100.0
        self.box = Mailbox(str(folder), TRAJECTORY)
        given = {"kind": "elastic", "grace": 10.0, "deadline": 50.0} | membership
        self.rounds = AboutRounds(
            rows=ROWS,
            every=4,
            last=9,
            membership=Membership.model_validate(given),
            coordinator=str(given.get("coordinator", "a")),
        )
        self.coordinator = Coordinator("a", self.rounds, self.box, lambda: self.now)
        self.line: RoundLine | None = None
        self.beats = 0

    def contribute(self, *sites: str, number: int = 1) -> None:
        before = self.line.sha256 if self.line else {}
        for site in sites:
            self.box.send(number, site, [f"{site}{number}".encode()], before, 0, codec=Codec())

    def say(self, *sites: str, number: int = 1) -> None:
        for site in sites:
            self.beats += 1
            said = Presence(
                trajectory=TRAJECTORY, site=site, round=number, safe=0, beat=self.beats, coordinator="a"
            )
            Meeting(self.box).tell(said)

    def look(self, number: int = 1) -> list[str] | None:
        """Who is in a round, None while that is open."""
        line = self.coordinator.look(number, self.line)
        if line is not None:
            self.line = line
        return None if line is None else sorted(line.sha256)


def test_a_round_is_decided_at_once_when_all_have_contributed(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.contribute("a", "b")
    assert table.look() is None
    table.contribute("c")
    assert table.look() == ["a", "b", "c"]
    assert table.line is not None and table.line.sha256["a"] == hashlib.sha256(b"a1").hexdigest()
    table.contribute("a", "b", number=2)
    table.say("c", number=2)
    assert table.look(2) is None


def test_a_site_that_is_heard_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.contribute("a", "b")
    for _ in range(7):
        table.say("c")
        assert table.look() is None
        table.now += 8.0
    table.say("c")
    assert table.look() == ["a", "b"]  # 56 seconds after a and b had contributed


def test_a_silent_site_is_waited_for_as_long_as_the_grace(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.say("a", "b", "c")
    table.contribute("a", "b")
    assert table.look() is None
    table.now += 9.0
    assert table.look() is None
    table.now += 2.0
    assert table.look() == ["a", "b"]
    assert table.line is not None and table.line.samples is not None
    assert [*table.line.samples.next] == ["a", "b"]  # c is not expected


def test_fewer_than_the_minimum_wait_for_ever(tmp_path: Path) -> None:
    table = Table(tmp_path, minimum=2)
    table.contribute("a")
    for _ in range(20):
        assert table.look() is None
        table.now += 100.0
    table.contribute("b")
    assert table.look() == ["a", "b"]


def test_one_that_says_it_goes_on_later_is_not_waited_for_and_is_in_the_next_round(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.contribute("a", "b")
    table.say("c", number=2)
    assert table.look() == ["a", "b"]
    assert table.line is not None and table.line.samples is not None
    assert [*table.line.samples.next] == ["a", "b", "c"]


def test_where_all_of_a_round_are_gone_nobody_is_in_it_and_those_that_wait_are_in_the_next(
    tmp_path: Path,
) -> None:
    """Else a site that came too late for a round would wait for one that has died in it."""
    table = Table(tmp_path)
    table.contribute("a")
    table.look()
    table.now += 11.0
    assert table.look() == ["a"]
    table.now += 11.0
    table.say("b", number=3)
    assert table.look(2) == []
    assert table.line is not None and table.line.samples is not None
    assert [*table.line.samples.next] == ["b"]
    first = [*table.line.samples.next["b"]]
    assert first == [(4, 12)] and table.line.samples.again == ((12, 16),)  # missed in round 1, and a's


def test_a_contribution_to_other_weights_is_none(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.contribute("a", "b", "c")
    assert table.look() == ["a", "b", "c"]
    table.box.send(2, "c", [b"c2"], {"a": "0" * 64}, 0, codec=Codec())
    table.contribute("a", "b", number=2)
    assert table.look(2) == ["a", "b"]  # c will send no other one


def test_sites_that_begin_as_one_model_are_in_the_first_round(tmp_path: Path) -> None:
    """What they say was added before it is that model."""
    table, begun = Table(tmp_path), {"a": "ab" * 32}
    for site, before in {"a": begun, "b": begun, "c": {"a": "cd" * 32}}.items():
        table.box.send(1, site, [site.encode()], before, 0, codec=Codec())
    rounds = table.rounds.model_copy(update={"begun": begun})
    table.coordinator = Coordinator("a", rounds, table.box, lambda: table.now)
    assert table.look() == ["a", "b"]  # c began as another one


def test_a_site_whose_presence_is_damaged_is_as_one_that_has_said_nothing(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.say("a", "b", "c")
    Path(table.box.place, "c-presence.json").write_text("{")
    table.contribute("a", "b")
    assert table.look() is None
    table.now += 11
    table.say("a", "b")
    assert table.look() == ["a", "b"]


def test_of_two_that_decide_at_once_the_first_has_decided(tmp_path: Path) -> None:
    table = Table(tmp_path)
    lines = [
        RoundLine(round=1, codecs={}, sha256={}, before=""),
        RoundLine(round=1, codecs={}, sha256={}, before="x"),
    ]
    one, other = (Decision(trajectory=TRAJECTORY, site="a", line=line) for line in lines)
    meeting = Meeting(table.box)
    assert meeting.decide(one) == one and meeting.decide(other) == one
    assert [*meeting.decided()] == [one]


def test_a_round_whose_decision_is_gone_is_refused(tmp_path: Path) -> None:
    """This site's checkpoints were lost, or the mailbox is another run's."""
    table = Table(tmp_path)
    table.contribute("a", "b", "c")
    table.look()
    table.contribute("a", "b", "c", number=2)
    table.look(2)
    table.box.forget(1)
    with pytest.raises(DataError, match=r"decision.json: is gone, and round 2 is decided.*start all again"):
        Table(tmp_path).coordinator.look(1, None)


def test_a_contribution_that_cannot_be_added_is_as_one_that_never_came(tmp_path: Path) -> None:
    table, asked = Table(tmp_path), list[str]()

    def why_not(head: Contribution) -> str:
        asked.append(head.site)
        return "is too long" if head.site == "b" else ""

    table.coordinator = Coordinator("a", table.rounds, table.box, lambda: table.now, why_not)
    table.contribute("a", "b")
    table.say("b")
    assert table.look() is None
    table.contribute("c")
    assert table.look() == ["a", "c"]
    assert sorted(asked) == ["a", "b", "c"]  # each once
    assert table.coordinator.refused == {"b": "is too long"}


@pytest.mark.parametrize("fault", ["not good", "other weights", "not read"])
def test_where_too_few_are_left_of_all_sites_a_round_ends_with_the_reason(tmp_path: Path, fault: str) -> None:
    """No site sends another contribution to the round than its first."""
    table = Table(tmp_path, minimum=2)

    def why_not(head: Contribution) -> str:
        return "b1 is too long" if head.site == "b" and fault == "not good" else ""

    table.coordinator = Coordinator("a", table.rounds, table.box, lambda: table.now, why_not)
    table.contribute("a")
    before = {"a": "0" * 64} if fault == "other weights" else {}
    table.box.send(1, "b", [b"b1"], before, 0, codec=Codec())
    if fault == "not read":
        Path(table.box.folder(1, "b"), HEAD).write_text("{")
    table.say("a", "b")
    table.now += 1000.0
    assert table.look() is None  # c may be back
    table.box.send(1, "c", [b"c1"], {"a": "0" * 64}, 0, codec=Codec())
    why = {
        "not good": "b1 is too long",
        "other weights": "b began with other weights",
        "not read": "message.json",
    }
    with pytest.raises(
        DataError, match=rf"round 1: needs 2 sites .*of b and c are refused: .*{why[fault]}.*again"
    ):
        table.look()


def test_in_a_branch_any_site_decides_without_those_that_are_away(tmp_path: Path) -> None:
    table = Table(tmp_path, coordinator="any")
    table.contribute("a")
    table.rounds = table.rounds.model_copy(update={"first": 3})
    table.coordinator = Coordinator("a", table.rounds, table.box, lambda: table.now)
    before = RoundLine(
        round=2, codecs={}, sha256={}, samples=SampleLog(ROWS, 4).decided(ROWS, ROWS), before=""
    )
    table.box.send(3, "a", [b"a3"], {}, 0, codec=Codec())
    assert table.coordinator.look(3, before) is None
    table.now += 11.0
    assert (line := table.coordinator.look(3, before)) is not None and [*line.sha256] == ["a"]


def wrong_lines(line: RoundLine) -> dict[str, RoundLine]:
    """Decisions that no coordinator makes, of one that it has made."""
    samples = line.samples
    assert samples is not None

    def with_samples(**more: object) -> RoundLine:
        return line.model_copy(update={"samples": samples.model_copy(update=more)})

    return {
        "after the last": line.model_copy(update={"round": 10}),
        "without samples": line.model_copy(update={"samples": None}),
        "a stranger": line.model_copy(update={"sha256": {"d": "0" * 64}, "codecs": {"d": Codec()}}),
        "a stranger comes": with_samples(next={**samples.next, "d": ((0, 4),)}),
        "other codecs": line.model_copy(update={"codecs": {"a": Codec()}}),
        "too few": line.model_copy(update={"sha256": {"a": "0" * 64}, "codecs": {"a": Codec()}}),
        "one that had none": with_samples(assigned={"a": samples.assigned["a"]}),
        "samples twice": with_samples(next={**samples.next, "a": samples.assigned["a"]}),
        "samples lost": with_samples(fresh=samples.fresh + 4),
        "not after the last": line.model_copy(update={"before": "0" * 64}),
    }


@pytest.mark.parametrize(
    "fault",
    [
        *wrong_lines(
            RoundLine(round=1, codecs={}, sha256={}, samples=SampleLog(ROWS, 4).decided((), ROWS), before="")
        )
    ],
)
def test_a_decision_that_no_coordinator_makes_is_refused(tmp_path: Path, fault: str) -> None:
    table = Table(tmp_path, minimum=2)
    table.contribute("a", "b", "c")
    table.look()
    assert table.line is not None

    def check(line: RoundLine) -> None:
        check_who(line, table.rounds)
        check_after(line, table.rounds, None)

    check(table.line)
    with pytest.raises(DataError, match="round"):
        check(wrong_lines(table.line)[fault])


@pytest.mark.parametrize("number", [1, 2])
def test_a_decision_is_made_once(tmp_path: Path, number: int) -> None:
    """Another coordinator, with another clock and another view, finds it."""
    table = Table(tmp_path)
    table.contribute("a", "b", "c")
    table.look()
    if number == 2:
        table.contribute("a", number=2)
        table.look(2)
        table.now += 11
        assert table.look(2) == ["a"]
    other = Table(tmp_path)
    before = None
    for each in range(1, number + 1):
        found = other.coordinator.look(each, before)
        before = found
    assert before == table.line


def test_any_site_decides_only_where_all_reach_one_mailbox(tmp_path: Path) -> None:
    table = Table(tmp_path, coordinator="any")
    table.contribute("a", "b", "c")
    table.box.open("a", "abc")
    assert table.look() is None
    table.box.open("b", "abc")
    table.box.open("c", "abc")
    assert table.look() == ["a", "b", "c"]


@pytest.mark.parametrize("damage", ["no JSON", "of another site", "too long"])
def test_a_site_whose_contribution_cannot_be_read_is_as_one_that_never_came(
    tmp_path: Path, damage: str
) -> None:
    """Nobody waits for it, and those that are in the round go on."""
    table = Table(tmp_path)
    table.say("a", "b", "c")
    table.contribute("a", "b", "c")
    head = Path(table.box.folder(1, "c")) / HEAD
    damaged = {
        "no JSON": b"{",
        "of another site": Path(table.box.folder(1, "b"), HEAD).read_bytes(),
        "too long": head.read_bytes() + b" " * MOST_HEAD,
    }
    head.write_bytes(damaged[damage])
    assert table.look() == ["a", "b"]
