"""Presences and decisions of an elastic membership between agents."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from atelier.engine.config.error import DataError
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.config.outer import Membership
from atelier.engine.extensions.sites.coordinator import Coordinator
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.membership import Decision, Meeting, Presence
from atelier.engine.extensions.sites.messages import AboutRounds
from atelier.engine.extensions.sites.round_log import RoundLine
from atelier.engine.extensions.sites.sample_log import SampleLog
from atelier.infra.sites.agent import Agent
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.incoming import Incoming
from atelier.infra.sites.keys import AUDIT
from atelier.infra.sites.meetings import Meetings
from tests.infra.sites.agents import TRAJECTORY, Site, asked, check, make_due, say, until
from tests.infra.sites.test_agent import DATA, two

ROWS = {"a": 1, "b": 1}
NOBODY = SampleLog(ROWS, 4).decided((), ROWS)  # is in round 1


def rounds(**membership: object) -> AboutRounds:
    given = Membership.model_validate({"kind": "elastic", **membership})
    return AboutRounds(rows=ROWS, every=4, last=9, membership=given, coordinator=given.coordinator or "a")


def elastic(folder: Path, silent: str = "", **membership: object) -> list[Site]:
    sites = two(folder, silent)
    for site in sites:
        site.box.open(site.name, ["a", "b"], {}, rounds(**membership))
    return sites


def said(site: str, number: int = 1, beat: int = 1) -> Presence:
    return Presence(trajectory=TRAJECTORY, site=site, round=number, safe=0, beat=beat, coordinator="a")


def tell(to: Site, of: Site, text: bytes | str) -> str:
    return say(to, of.keys, "Put", asked("meeting", json.loads(text)))


def decided(box: Mailbox, number: int = 1, before: RoundLine | None = None) -> RoundLine:
    """A decision of a, in its mailbox: b is in none of its rounds."""
    box.send(number, "a", [DATA], before.sha256 if before else {}, 0, codec=Codec())
    clock = iter([0.0, 1e6])
    coordinator = Coordinator("a", rounds(grace=1.0), box, lambda: next(clock))
    line = coordinator.look(number, before) or coordinator.look(number, before)
    assert line is not None
    return line


@pytest.mark.parametrize("silent", ["", "a", "b"])
def test_presences_and_decisions_arrive_also_where_one_side_only_dials_out(
    tmp_path: Path, silent: str
) -> None:
    a, b = elastic(tmp_path, silent)
    lines = [decided(a.box)]
    for number in (2, 3):
        lines.append(decided(a.box, number, lines[-1]))
    Meeting(a.box).tell(said("a", 4))
    Meeting(b.box).tell(said("b", 2))
    agents = [site.begin() for site in (a, b)]
    try:
        until(
            lambda: (
                len([*Meeting(b.box).decided()]) == 3
                and Meeting(b.box).presence("a") is not None
                and Meeting(a.box).presence("b") is not None
            ),
            "not all has arrived",
            a,
            b,
        )
    finally:
        for agent in agents:
            agent.terminate()
            agent.wait()
    assert [decision.line for decision in Meeting(b.box).decided()] == lines
    assert Meeting(a.box).presence("b") == said("b", 2)
    kept = b.audited()
    assert [line["round"] for line in kept if line.get("kind") == "decision"] == [1, 2, 3]
    assert check(b.keys.folder / AUDIT)


def attacks(line: RoundLine) -> dict[str, tuple[dict[str, object], str]]:
    """What a may not say to b, and why; `line` is the decision of round 1 that b has."""
    other = line.model_copy(update={"codecs": {"a": Codec(kind="int8")}})
    samples = SampleLog(ROWS, 4, line.samples).decided(["a"], ["a", "b"])
    second = line.model_copy(update={"round": 2, "before": line.digest, "samples": samples})
    lost = samples.model_copy(update={"fresh": samples.fresh + 4})

    def decision(text: RoundLine, site: str = "a", trajectory: str = TRAJECTORY) -> dict[str, object]:
        return json.loads(Decision(trajectory=trajectory, site=site, line=text).text)

    return {
        "another decision": (decision(other), "another decision of round 1 is here"),
        "of another site": (decision(second, site="b"), "the message is of b, and a sends it"),
        "of another training": (decision(second, trajectory="cd" * 32), "is not trained here"),
        "not after the last": (
            decision(second.model_copy(update={"before": "0" * 64})),
            "round 2: its decision does not follow the line before",
        ),
        "far ahead": (decision(second.model_copy(update={"round": 4})), "round 4 is not the next one"),
        "a stranger": (
            decision(second.model_copy(update={"sha256": {"c": "0" * 64}})),
            "round 2: c is not a site of the training",
        ),
        "lost samples": (decision(second.model_copy(update={"samples": lost})), "assigns other samples"),
        "after the last": (decision(second.model_copy(update={"round": 10})), "is not one of rounds 1 to 9"),
        "no number": (decision(second) | {"line": {"round": "x"}}, "line.round"),
        "a further field": (decision(second) | {"run": "rm"}, "run"),
        "a presence of another": (
            json.loads(said("b").model_dump_json(by_alias=True)),
            "is of b, and a sends",
        ),
        "a presence with a path": (
            json.loads(said("a").model_dump_json(by_alias=True)) | {"trajectory": "../../x"},
            "trajectory",
        ),
    }


@pytest.mark.parametrize(
    "attack", [*attacks(RoundLine(round=1, codecs={}, sha256={}, samples=NOBODY, before=""))]
)
def test_what_is_not_a_peers_to_say_is_refused_by_name_and_leaves_nothing(
    tmp_path: Path, attack: str
) -> None:
    a, b = elastic(tmp_path)
    line = decided(a.box)
    good = Decision(trajectory=TRAJECTORY, site="a", line=line)
    document, problem = attacks(line)[attack]
    with b.served():
        assert tell(b, a, good.text) == ""
        before = sorted(str(path) for path in Path(b.mail).rglob("*"))
        answer = tell(b, a, json.dumps(document))
        assert problem in answer and "\n" not in answer, answer
        assert sorted(str(path) for path in Path(b.mail).rglob("*")) == before
        assert tell(b, a, good.text) == ""  # the same once more


def test_only_the_coordinator_decides(tmp_path: Path) -> None:
    for folder, given, problem in (
        ("named", "b", "b decides who is in a round of abababababababab, not a"),
        ("any", "any", "coordinator=any is for one mailbox without agents; name a site"),
    ):
        a, b = elastic(tmp_path / folder, coordinator=given)
        line = RoundLine(round=1, codecs={}, sha256={}, samples=NOBODY, before="")
        with b.served():
            text = Decision(trajectory=TRAJECTORY, site="a", line=line).text
            assert problem in tell(b, a, text)
        assert Meeting(b.box).last() is None


def test_a_strict_membership_has_neither_presences_nor_decisions(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    with b.served():
        text = said("a").model_dump_json(by_alias=True).encode()
        assert "all sites are in every round" in tell(b, a, text)


def test_the_coordinators_agent_decides_while_its_ranks_are_away(tmp_path: Path) -> None:
    """a has sent nothing; b is heard, and was late for the round: it is in the next one."""
    a, b = elastic(tmp_path, grace=0.5)
    first = decided(a.box)
    agents = [site.begin() for site in (a, b)]
    beat = 0
    try:

        def is_in() -> bool:
            nonlocal beat
            beat += 1
            Meeting(b.box).tell(said("b", 3, beat))
            last = Meeting(b.box).last()
            return last is not None and last.line.round == 2

        until(is_in, a.log() + b.log())
    finally:
        for agent in agents:
            agent.terminate()
            agent.wait()
    second = Meeting(b.box).last()
    assert second is not None and second.line.before == first.digest
    assert not second.line.sha256 and second.line.samples is not None
    assert [*second.line.samples.next] == ["b"]


def test_decisions_that_a_peer_has_lost_are_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Meetings, "early_s", 0.0)
    a, b = elastic(tmp_path)
    asking = Agent(a.keys, a.mail)
    first = decided(a.box)
    with b.served():
        asking.meet("b")
        shutil.rmtree(b.box.place)
        b.box.open("b", ["a", "b"], {}, rounds())
        second = decided(a.box, 2, first)
        asking.meet("b")
        asking.meet("b")
    assert [decision.line for decision in Meeting(b.box).decided()] == [first, second]


def test_decisions_that_are_forgotten_everywhere_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """b has lost its mailbox, and not its checkpoints: it goes on from the round after the last safe one."""
    monkeypatch.setattr(Meetings, "early_s", 0.0)
    a, b = elastic(tmp_path)
    asking = Agent(a.keys, a.mail)
    lines = [decided(a.box)]
    for number in (2, 3, 4):
        lines.append(decided(a.box, number, lines[-1]))
    a.box.forget(2)
    with b.served():
        asking.meet("b")
        assert Meeting(b.box).last() is None  # it may need the earlier ones
        Meeting(b.box).tell(said("b", 3).model_copy(update={"safe": 2}))
        asking.meet("b")
    assert [decision.line for decision in Meeting(b.box).decided()] == lines[2:]


@pytest.mark.parametrize("silent", ["", "b"])
def test_a_site_that_has_lost_all_is_told_which_decisions_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    """b begins anew, at round 1; one that knows what came before hears nothing of that."""
    monkeypatch.setattr(Meetings, "early_s", 0.0)
    a, b = elastic(tmp_path, silent)
    lines = [decided(a.box)]
    for number in (2, 3, 4):
        lines.append(decided(a.box, number, lines[-1]))
    a.box.forget(3)
    Meeting(a.box).tell(said("a", 5).model_copy(update={"safe": 3}))
    asking, called = (b, a) if silent else (a, b)
    agent, theirs, told = Agent(asking.keys, asking.mail), Meeting(a.box), Meeting(b.box)
    with called.served():
        theirs.tell(said("b", 4))
        told.tell(said("b", 4))
        agent.meet(called.name)
        assert told.presence("a") == Meeting(a.box).presence("a")
        told.check_told(4, "a")
        theirs.tell(said("b", 1))
        told.tell(said("b", 1))
        agent.meet(called.name)
        with pytest.raises(
            DataError, match=r"round-000001.decision.json: is gone, and at a round 4 is the oldest: .*again"
        ):
            told.check_told(1, "a")


@pytest.mark.parametrize("silent", ["", "a", "b"])
@pytest.mark.parametrize("damaged", ["decision.json", "a-presence.json"])
def test_what_is_damaged_of_an_old_training_holds_up_no_other(
    tmp_path: Path, silent: str, damaged: str
) -> None:
    a, b = elastic(tmp_path, silent)
    for site in (a, b):
        Mailbox(site.mail, "00" * 32).open(site.name, ["a", "b"], {}, rounds())
    old, line = Mailbox(a.mail, "00" * 32), decided(a.box)
    decided(old)
    Meeting(old).tell(said("a").model_copy(update={"trajectory": old.trajectory}))
    [path] = Path(old.place).rglob(damaged)
    path.write_text("{")
    for site in (a, b):
        Meeting(site.box).tell(said(site.name, 2))
    asking, called = (b, a) if silent == "b" else (a, b)
    with called.served():
        Agent(asking.keys, asking.mail).meet(called.name)
    assert Meeting(b.box).presence("a") == said("a", 2)
    assert silent == "" or Meeting(a.box).presence("b") == said("b", 2)
    last = Meeting(b.box).last()
    assert last is not None and last.line == line
    kept = a.audited()
    assert [str(path) in each["why"] for each in kept if each["what"] == "damaged"] == [True]


@pytest.mark.parametrize("silent", ["", "b"])
@pytest.mark.parametrize("at", ["a", "b"])
def test_a_damaged_decision_holds_up_no_later_one_when_the_coordinators_agent_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: str, at: str
) -> None:
    monkeypatch.setattr(Meetings, "early_s", 0.0)
    a, b = elastic(tmp_path, silent)
    asking, called = (b, a) if silent else (a, b)

    def meet() -> None:
        """With agents that know of nothing that was told before."""
        with called.served():
            agent = Agent(asking.keys, asking.mail)
            for _ in range(2):
                agent.meet(called.name)

    lines = [decided(a.box)]
    lines.append(decided(a.box, 2, lines[0]))
    meet()
    site = {"a": a, "b": b}[at]
    Path(site.box.folder(1, site.name)).with_name("decision.json").write_text("{")
    lines.append(decided(a.box, 3, lines[1]))
    meet()
    last = Meeting(b.box).last()
    assert last is not None and last.line == lines[2]
    assert [line["what"] for line in site.audited()].count("damaged") == 1


@pytest.mark.parametrize("silent", ["", "b"])
@pytest.mark.parametrize("damaged", ["a decision of another round", "its own presence"])
def test_what_is_damaged_here_is_refused_in_nobodys_name(tmp_path: Path, silent: str, damaged: str) -> None:
    """The peer hears nothing of it, and what it decides is taken when it is mended."""
    a, b = elastic(tmp_path, silent)
    line = decided(a.box)
    decision = json.loads((Path(a.box.folder(1, "a")).parent / "decision.json").read_bytes())
    decision["line"]["round"] = 2
    place = Path(b.box.place, "b-presence.json")
    if damaged != "its own presence":
        place = Path(b.box.folder(1, "b")).parent / "decision.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("{" if damaged == "its own presence" else json.dumps(decision))
    asking, called = (b, a) if silent else (a, b)
    with called.served() as there:
        agent = Agent(asking.keys, asking.mail)
        for _ in range(2):  # what is not taken of a list is said with the next one
            agent.meet(called.name)
        whats = [each["what"] for site in (a, b) for each in site.audited()]
        assert whats.count("damaged") == 1 and not {"refused", "not taken"} & {*whats}
        place.unlink()
        for each, peer in ((agent, called), (there, asking)):
            make_due(each._exchange.later[peer.name])
        agent.meet(called.name)
    last = Meeting(b.box).last()
    assert last is not None and last.line == line


def test_an_agent_leaves_rounds_to_its_ranks_while_they_are_heard(tmp_path: Path) -> None:
    a, _ = elastic(tmp_path, grace=0.2)
    calls = Meetings(Incoming(a.mail, "a"), Audit(tmp_path / "log"))
    decided(a.box)
    a.box.send(2, "a", [DATA], {"a": hashlib.sha256(DATA).hexdigest()}, 0, codec=Codec())

    def is_decided() -> bool:
        calls.decide()
        return Meeting(a.box).decision(2) is not None

    for beat in range(20):  # as often as its ranks speak, whatever the clock says
        Meeting(a.box).tell(said("a", 2, beat))
        assert not is_decided()
    until(is_decided, "nobody decides")


def test_after_its_mailbox_is_lost_an_agent_decides_nothing_anew(tmp_path: Path) -> None:
    a, _ = elastic(tmp_path, grace=0.1)
    calls = Meetings(Incoming(a.mail, "a"), Audit(tmp_path / "log"))
    Meeting(a.box).tell(said("b", 4))
    calls.decide()
    until(lambda: not calls.hears(TRAJECTORY, "a"), "a is heard for ever")
    calls.decide()
    assert Meeting(a.box).last() is None


@pytest.mark.parametrize("kind", ["without it", "another one"])
def test_a_contribution_that_was_decided_against_is_not_taken(tmp_path: Path, kind: str) -> None:
    a, b = elastic(tmp_path)
    if kind == "another one":
        b.box.send(1, "b", [DATA], {}, 0, codec=Codec())
        a.box.send(1, "b", [DATA], {}, 0, codec=Codec())
        decided(a.box)
        shutil.rmtree(a.box.folder(1, "b"))
        shutil.rmtree(b.box.folder(1, "b"))
        b.box.send(1, "b", [DATA + b"2"], {}, 0, codec=Codec())
    else:
        decided(a.box)
        b.box.send(1, "b", [DATA], {}, 0, codec=Codec())
    head = b.box.contribution(1, "b")
    assert head is not None
    with a.served():
        said = say(a, b.keys, "Offer", asked(head=json.loads(head.text)))
    assert ("round 1 was decided without b" if kind == "without it" else "the decision on round 1") in said
    assert not a.box.has(1, "b")
