"""Damaged messages, progress, policies and cards at a site itself: nothing is lost for good, nothing else
stops, and the damage is reported.
"""

import errno
import json
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from atelier.engine.config.document import parse_object
from atelier.engine.config.error import DamageError
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.messages import BODY, Message, ReaderProgress, head_of
from atelier.infra.sites import messages
from atelier.infra.sites.agent import Agent
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.bucket_calls import NUMBERS, Calls
from atelier.infra.sites.desk import OrderDesk, note_of
from atelier.infra.sites.incoming import Incoming, NotTaken
from atelier.infra.sites.keys import FORMER, PEERS
from atelier.infra.sites.messages import Messages
from atelier.infra.sites.order_runner import OrderRunner
from atelier.infra.sites.policy import EVERYTHING, Policies, SitePolicy
from atelier.infra.sites.refusals import is_damage_here
from tests.infra.sites.agents import TRAJECTORY, asked, friends, make_due, say
from tests.infra.sites.orders import order
from tests.infra.sites.test_agent import DATA, head, two

FIRST = "00" * 32  # a training that is looked at before the others


def make_anew(sending: Agent) -> None:
    """The reader of a's training begins anew."""
    kind = sending._exchange.kinds["message"]
    assert isinstance(kind, Messages)
    kind.begins_anew("b", TRAJECTORY)


@pytest.mark.parametrize("of", ["policy", "message", "message of another place"])
def test_what_is_damaged_here_is_asked_for_again_when_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """The peer is told nothing of this site's files; this site is, once."""
    monkeypatch.setattr("atelier.infra.sites.refusals.LASTS_S", 0.0)
    a, b = two(tmp_path)
    said: list[str] = []
    Policies(b.keys.folder).set(SitePolicy(site="a"))
    policy = next(path for path in b.keys.folder.rglob("a.json") if PEERS not in path.parts)
    place = Path(b.box.folder(1, "a")) / "message.json"
    damaged = policy if of == "policy" else place
    before = policy.read_bytes()
    place.parent.mkdir(parents=True)
    damaged.write_bytes(json.dumps(head("c", DATA)).encode() if of == "message of another place" else b"{")
    a.send(1, DATA)
    sending = Agent(a.keys, a.mail)
    with b.served() as agent:
        agent._audit.on_damage = said.append
        for _ in range(3):
            sending.exchange("b")
        assert len(said) == 1 and str(damaged) in said[0]
        [told] = sending._refusals.lines("b")
        assert "a file is damaged" in told and str(tmp_path) not in told
        damaged.write_bytes(before) if of == "policy" else damaged.unlink()
        sending.exchange("b")
        assert b.box.read(1, "a") is not None
    assert [line["what"] for line in b.audited()].count("damaged") == 1


def test_whose_damage_it_is_is_known_by_its_place_whatever_its_text() -> None:
    for read in (
        lambda: parse_object(b"{", "b"),
        lambda: head_of(b'{"kind": 7}', "b"),
        lambda: note_of(b"", 7, "b"),
    ):
        with pytest.raises(DamageError) as sent:
            read()
        assert not is_damage_here(sent.value, "b") and is_damage_here(sent.value, "c")
    assert is_damage_here(DamageError("b: this is how a file here is called"), "b")


@pytest.mark.parametrize("of", ["a message", "a line of the log"])
def test_a_peer_is_told_nothing_of_this_sites_own_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """This site is, once."""
    a, b = two(tmp_path)
    said, sender = list[str](), "b" if of == "a message" else "c"  # whose b may not send
    begin = asked(head=head(sender, DATA))

    def full(*about: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "mail"))

    with a.served() as agent:
        agent._audit.on_damage = said.append
        if of == "a message":
            monkeypatch.setattr(Incoming, "take", full)
        else:
            monkeypatch.setattr(Audit, "_append", full)
        for _ in range(2):
            told = say(a, b.keys, "Put", begin, DATA)
            assert told == "UNKNOWN: OSError there; see the log of that agent"
    assert len(said) == 1 and str(tmp_path / "mail") in said[0]


@pytest.mark.parametrize("silent", ["", "b"])
def test_a_damaged_head_of_one_training_holds_up_no_other(tmp_path: Path, silent: str) -> None:
    """Of a's messages, where a sends them, or where b fetches them."""
    a, b = two(tmp_path, silent)
    for site in (a, b):
        Mailbox(site.mail, FIRST).open(site.name, ["a", "b"])
        Mailbox(site.mail, FIRST).send(1, site.name, [DATA], {}, 0, codec=Codec())
    Mailbox(a.mail, FIRST).send(2, "a", [DATA], {}, 0, codec=Codec())
    at, peer = (b, a) if silent else (a, b)
    place = Path(Mailbox(at.mail, FIRST).folder(2, "a"))
    place.mkdir(parents=True, exist_ok=True)
    (place / "message.json").write_bytes(b"{")
    a.send(1, DATA)
    said, agent = list[str](), Agent(at.keys, at.mail)
    agent._audit.on_damage = said.append
    with peer.served():
        try:
            agent.exchange(peer.name)
        except DamageError as error:
            said.append(str(error))
    assert len(said) == 1 and str(place) in said[0]
    assert b.box.read(1, "a") is not None


@pytest.mark.parametrize("silent", ["", "a", "b"])
def test_a_damaged_progress_of_one_training_holds_up_no_other(tmp_path: Path, silent: str) -> None:
    """Of b, that learns from a: where b says it, where a asks for it, and where b fetches what it is to
    learn.
    """
    a, b = friends(tmp_path, silent=silent).values()
    for site in (a, b):
        for box in (Mailbox(site.mail, FIRST), site.box):
            box.open_answers(site.name, ["a", "b"], "a", most=len(DATA), ahead=1)
    a.box.answer(1, "a", [DATA])
    b.box.tell(ReaderProgress(trajectory=TRAJECTORY, site="b", step=0, safe=0))
    damaged = Path(Mailbox(b.mail, FIRST).place) / "b-progress.json"
    damaged.write_bytes(b"{")
    at, peer = (a, b) if silent == "a" else (b, a)
    said: list[str] = []
    with peer.served() as agent:
        agent._audit.on_damage = said.append
        try:
            Agent(at.keys, at.mail).exchange(peer.name)
        except DamageError as error:
            said.append(str(error))
    assert len(said) == 1 and str(damaged) in said[0]
    assert a.box.progress("b") is not None and (silent == "" or b.box.read(1, "a") is not None)


def test_what_a_peer_does_not_give_of_one_training_holds_up_no_other(tmp_path: Path) -> None:
    a, b = two(tmp_path, "b")
    for site in (a, b):
        Mailbox(site.mail, FIRST).open(site.name, ["a", "b"])
    Mailbox(a.mail, FIRST).send(1, "a", [DATA], {}, 0, codec=Codec())
    a.send(1, DATA)
    (Path(Mailbox(a.mail, FIRST).folder(1, "a")) / "tensors.safetensors").unlink()
    with a.served(), pytest.raises(grpc.RpcError, match="there; see the log of that agent"):
        Agent(b.keys, b.mail).exchange("a")
    assert b.box.read(1, "a") is not None


def test_a_message_of_other_bytes_is_fetched_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damaged at its sender when its head was written."""
    a, b = two(tmp_path, "b")
    a.send(1, DATA)
    body = Path(a.box.folder(1, "a")) / BODY
    body.write_bytes(DATA[:-1] + b"!")
    agent = Agent(b.keys, b.mail)
    with a.served() as there:
        for _ in range(2):
            with pytest.raises(NotTaken, match="does not match its digest"):
                agent.exchange("a")
            for _ in range(3):
                agent.exchange("a")
            make_due(there._exchange.later["b"])
            make_due(agent._exchange.later["a"])
        assert [line["what"] for line in a.audited()] == 2 * ["fetched", "not taken"]
        body.write_bytes(DATA)
        agent.exchange("a")
        assert b.box.read(1, "a") is not None


@pytest.mark.parametrize("is_damaged", [True, False])
def test_what_waits_for_a_while_is_that_message_and_none_that_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    """It waits twice as long after each time that it came damaged, not where its sender cannot read it."""
    a, b = two(tmp_path, "b")
    monkeypatch.setattr(Messages, "again_s", 0.01)
    a.send(1, DATA)
    body = Path(a.box.folder(1, "a")) / BODY
    if is_damaged:
        body.write_bytes(DATA[:-1] + b"!")
    else:
        body.unlink()
    agent = Agent(b.keys, b.mail)

    def try_it() -> None:
        for _ in range(2):  # what became of it is said the next time
            with suppress(NotTaken, grpc.RpcError):
                agent.exchange("a")

    with a.served() as there:
        later = there._exchange.later["b"]
        for expected in [0.01, 0.02, 0.04] if is_damaged else [0.01] * 3:
            time.sleep(expected)
            try_it()
            assert [seconds for _, seconds in later._known.values()] == [expected]
        monkeypatch.setattr(Messages, "again_s", 60.0)
        time.sleep(0.05)
        try_it()
        shutil.rmtree(body.parent)
        a.send(1, DATA[:-1] + b"?")
        agent.exchange("a")
        assert b.box.read(1, "a") is not None and len(later._known) == 1


def test_a_message_in_the_middle_that_a_peer_has_lost_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two(tmp_path)
    monkeypatch.setattr(messages, "OFFER_AGAIN_S", 0.0)
    with a.served() as sending, b.served():
        for number in (1, 2, 3):
            a.send(number, DATA)
            b.send(number, DATA)
        sending.exchange("b")
        (Path(b.box.folder(2, "a")) / "message.json").unlink()
        sending.exchange("b")
        assert b.box.read(2, "a") is not None


def test_a_message_that_was_refused_when_it_had_come_is_not_sent_again_until_it_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its body is damaged where it was made; its reader begins anew."""
    a, b = two(tmp_path)
    monkeypatch.setattr(messages, "OFFER_AGAIN_S", 0.0)
    pushes, take = list[int](), Incoming.take

    def counted(incoming: Incoming, head: Message, *given: Any) -> None:
        pushes.append(head.round)
        take(incoming, head, *given)

    monkeypatch.setattr(Incoming, "take", counted)
    a.send(1, DATA)
    place = Path(a.box.folder(1, "a")) / BODY
    place.write_bytes(bytes(len(DATA)))
    with a.served() as sending, b.served():
        for _ in range(5):
            sending.exchange("b")
            make_anew(sending)
        assert len(pushes) == 1 and len(sending._refusals.lines("b")) == 1
        assert [line["what"] for line in a.audited()] == ["not taken"]
        place.write_bytes(DATA)
        sending.exchange("b")
        assert b.box.read(1, "a") is not None


def test_of_many_messages_that_are_kept_a_few_are_offered_again_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two(tmp_path)
    monkeypatch.setattr(messages, "OFFER_AGAIN_S", 0.0)
    offered, offset = list[int](), Incoming.offset

    def counted(incoming: Incoming, head: Message, peer: str) -> int | None:
        offered.append(head.round)
        return offset(incoming, head, peer)

    monkeypatch.setattr(Incoming, "offset", counted)
    with a.served() as sending, b.served():
        for number in range(1, 10):
            a.send(number, DATA)
            b.send(number, DATA)
        for _ in range(5):
            sending.exchange("b")
    assert offered == [*range(1, 10), 1, 2, 3, 1, 4, 5, 6, 1, 7, 8, 9, 1, 2, 3]


def test_a_damaged_progress_is_as_none(tmp_path: Path) -> None:
    box = Mailbox(str(tmp_path), TRAJECTORY)
    box.open("a", ["a", "b"])
    (Path(box.place) / "b-progress.json").write_bytes(b"{")
    assert Incoming(str(tmp_path), "a").progress(box, "b") is None


@pytest.mark.parametrize("place", [PEERS, FORMER])
@pytest.mark.parametrize("is_folder", [False, True])
def test_a_card_that_cannot_be_read_keeps_no_other_site_out(
    tmp_path: Path, place: str, is_folder: bool
) -> None:
    sites = friends(tmp_path, "abc")
    a, b, card = sites["a"], sites["b"], sites["a"].keys.folder / place / "c.json"
    a.keys.revoke("c")
    if is_folder:
        card.mkdir()
    else:
        card.write_bytes(b"{")
    assert [*a.keys.peers] == ["b"] and a.keys.peer_of(b.keys.card.certificate) == "b"
    with pytest.raises(DamageError, match=r"c\.json"):
        a.keys.check_cards()
    with a.served() as agent:
        work = next(work for work in agent._works(lambda line: None) if work.name == "cards here")
        assert "accept the card of that site again" in (work.do() or "")
        Agent(b.keys, b.mail).exchange("a")
    a.keys.revoke("b")
    a.keys.accept(b.keys.card.text, "b.json")
    if place == PEERS:
        a.keys.revoke("c")
        assert not card.exists()


def test_a_damaged_card_revokes_nobody_and_can_be_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orders of its site wait, and go on when it is mended."""
    sites = friends(tmp_path)
    b, asked, said = sites["b"], order(), list[str]()
    Policies(b.keys.folder).set(SitePolicy(site="a", tasks=(EVERYTHING,)))
    desk, card = OrderDesk(b.mail), b.keys.folder / PEERS / "a.json"
    desk.put(asked)
    runner, whole = OrderRunner(b.keys, b.mail, str(tmp_path / "store"), said.append), card.read_bytes()
    monkeypatch.setattr(runner, "_start", lambda order: said.append("started"))
    card.write_bytes(b"{")
    for _ in range(2):
        runner.look()
    assert len(said) == 1 and str(card) in said[0] and desk.reply(asked.id) is None
    card.write_bytes(whole)
    runner.look()
    assert said[1:] == ["started"]
    card.write_bytes(b"{")
    b.keys.revoke("a")
    assert not card.exists() and not b.keys.trusts("a")


def test_damaged_numbers_of_calls_begin_anew_with_the_time(tmp_path: Path) -> None:
    a = friends(tmp_path)["a"]
    (a.keys.folder / NUMBERS).write_bytes(b"\xff\x00 not a number")
    assert Calls(a.keys).number() > time.time_ns() - 60 * 10**9


def test_a_progress_that_a_peer_refuses_was_not_sent(tmp_path: Path) -> None:
    a, b = friends(tmp_path).values()
    a.box.open("a", ["a", "b"])  # it is no teacher
    b.box.open_answers("b", ["a", "b"], "a", most=1, ahead=1)
    b.box.tell(ReaderProgress(trajectory=TRAJECTORY, site="b", step=0, safe=0))
    agent = Agent(b.keys, b.mail)
    with a.served():
        for _ in range(2):
            agent.exchange("a")
    assert [line["what"] for line in b.audited()] == ["not taken"]
