"""What is wrong at a site itself - damaged files, a full disk, a clock that was set back - or what a trusted
peer sends without end: nothing is lost for good, nothing else stands still, and somebody is told.
"""

import errno
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from atelier.engine.config.base import Json
from atelier.engine.config.codec import Codec
from atelier.engine.config.error import DamageError
from atelier.engine.link.mailbox import Mailbox, Message, ReaderProgress
from atelier.infra.sites import audit as audits
from atelier.infra.sites import file_calls, message_calls, notes
from atelier.infra.sites.agent import Agent
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.bucket_calls import NUMBERS, Calls
from atelier.infra.sites.desk import OrderDesk
from atelier.infra.sites.files import offer
from atelier.infra.sites.hourly import Hourly
from atelier.infra.sites.incoming import Incoming, NotTaken
from atelier.infra.sites.keys import AUDIT, PEERS
from atelier.infra.sites.message_calls import MessageCalls
from atelier.infra.sites.notes import MOST_UNKNOWN
from atelier.infra.sites.order_runner import OrderRunner
from atelier.infra.sites.policy import EVERYTHING, Policies, SitePolicy
from atelier.infra.sites.transfer import CallChannel
from tests.infra.sites.agents import TRAJECTORY, Site, check, friends
from tests.infra.sites.test_agent import DATA, call, head, two
from tests.infra.sites.test_files import BODY, Sites
from tests.infra.sites.test_notes import cancellation, large, order


def lines(site: Site) -> list[dict[str, str]]:
    return [json.loads(line) for line in (site.keys.folder / AUDIT).read_text().splitlines()]


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
        [told] = sending._messages.refusals.lines("b")
        assert "something is damaged" in told and str(tmp_path) not in told
        damaged.write_bytes(before) if of == "policy" else damaged.unlink()
        sending.exchange("b")
        assert b.box.read(1, "a") is not None
    assert [line["what"] for line in lines(b)].count("damaged") == 1


@pytest.mark.parametrize("of", ["a message", "a line of the log"])
def test_a_peer_is_told_nothing_of_this_sites_own_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """This site is, once."""
    a, b = two(tmp_path)
    said, sender = list[str](), "b" if of == "a message" else "c"  # whose b may not send
    begin = json.dumps(head(sender, DATA) | {"offset": 0}).encode()

    def full(*about: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "mail"))

    with a.served() as agent:
        agent._audit.on_damage = said.append
        if of == "a message":
            monkeypatch.setattr(Incoming, "take", full)
        else:
            monkeypatch.setattr(Audit, "_append", full)
        for _ in range(2):
            told = call(a, b.keys, "Put", begin, DATA)
            assert told == "UNKNOWN: OSError there; that site's agent says more"
    assert len(said) == 1 and str(tmp_path / "mail") in said[0]


FIRST = "00" * 32  # a training that is looked at before the others


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
    with peer.served(), pytest.raises(DamageError, match=str(place)):
        Agent(at.keys, at.mail).exchange(peer.name)
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
    with a.served(), pytest.raises(grpc.RpcError, match="there; that site's agent says more"):
        Agent(b.keys, b.mail).exchange("a")
    assert b.box.read(1, "a") is not None


def test_a_message_in_the_middle_that_a_peer_has_lost_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two(tmp_path)
    monkeypatch.setattr(message_calls, "OFFER_AGAIN_S", 0.0)
    with a.served() as sending, b.served():
        for number in (1, 2, 3):
            a.send(number, DATA)
            b.send(number, DATA)
        sending.exchange("b")
        (Path(b.box.folder(2, "a")) / "message.json").unlink()
        sending.exchange("b")
        assert b.box.read(2, "a") is not None


def test_of_many_messages_that_are_kept_a_few_are_offered_again_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two(tmp_path)
    monkeypatch.setattr(message_calls, "OFFER_AGAIN_S", 0.0)
    offered: list[int] = []
    lacking = MessageCalls._is_lacking

    def counted(calls: MessageCalls, channel: CallChannel, peer: str, head: Message) -> bool:
        offered.append(head.round)
        return lacking(calls, channel, peer, head)

    monkeypatch.setattr(MessageCalls, "_is_lacking", counted)
    with a.served() as sending, b.served():
        for number in range(1, 10):
            a.send(number, DATA)
            b.send(number, DATA)
        for _ in range(5):
            sending.exchange("b")
    assert offered == [1, 2, 3, 1, 4, 5, 6, 1, 7, 8, 9, 1, 2, 3]


def test_a_damaged_progress_is_as_none(tmp_path: Path) -> None:
    box = Mailbox(str(tmp_path), TRAJECTORY)
    box.open("a", ["a", "b"])
    (Path(box.place) / "b-progress.json").write_bytes(b"{")
    assert Incoming(str(tmp_path), "a").progress(box, "b") is None


def test_a_card_that_cannot_be_read_keeps_no_other_site_out(tmp_path: Path) -> None:
    sites = friends(tmp_path, "abc")
    a, b = sites["a"], sites["b"]
    (a.keys.folder / PEERS / "c.json").write_bytes(b"{")
    assert [*a.keys.peers] == ["b"] and a.keys.peer_of(b.keys.card.certificate) == "b"
    with pytest.raises(DamageError, match=r"c\.json"):
        a.keys.check_cards()
    with a.served() as agent:
        work = next(work for work in agent._works(lambda line: None) if work.name == "cards here")
        assert "accept the card of that site again" in (work.do() or "")
        Agent(b.keys, b.mail).exchange("a")
    a.keys.revoke("b")


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


def test_a_full_disk_ends_no_agent_and_its_orders_end_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of an order has ended, and its reply cannot be written."""
    b = friends(tmp_path)["b"]
    Policies(b.keys.folder).set(SitePolicy(site="a", tasks=(EVERYTHING,)))
    desk, said, asked = OrderDesk(b.mail), list[str](), order()
    desk.put(asked)
    runner = OrderRunner(b.keys, b.mail, str(tmp_path / "store"), said.append)

    class Ended:
        returncode = 3

        def poll(self) -> int:
            return 3

    def full(note: object) -> None:
        raise OSError(28, "No space left on device")

    runner._running[asked.id] = Ended()  # pyright: ignore[reportArgumentType]
    runner._starts[asked.id] = 1
    with monkeypatch.context() as patch:
        patch.setattr(runner._desk, "put", full)
        for _ in range(3):
            runner.look()
        assert len(said) == 1 and "No space left" in said[0]
    runner.look()
    reply = desk.reply(asked.id)
    assert reply is not None and reply.state == "failed" and not runner._running


def test_an_order_that_cannot_be_read_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = friends(tmp_path)["b"]
    desk, asked = OrderDesk(b.mail), order()
    desk.put(asked)
    desk.put(order(nonce="2"))
    about = desk._about

    def failing(number: str, kind: str) -> object:
        if number == asked.id:
            raise PermissionError(13, "Permission denied")
        return about(number, kind)

    monkeypatch.setattr(desk, "_about", failing)
    assert len([*desk.listed()]) == 1


def test_a_trusted_peer_fills_no_disk_with_what_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "MOST_REFUSED", 5)
    now = [600.0]
    monkeypatch.setattr(audits.time, "monotonic", lambda: now[0])
    log = Audit(tmp_path / "audit.jsonl")
    for number in range(20):
        log.add("refused", who="b", why=f"{number} " + "x" * 100_000)
    log.add("refused", who="c", why="of another")
    now[0] += 60
    log.add("refused", who="b", why="a minute later")
    whys = [json.loads(line)["why"] for line in log.path.read_text().splitlines()]
    assert [why.split()[0] for why in whys] == ["0", "1", "2", "3", "4", "of", "a"]
    assert max(map(len, whys)) < 600 and whys[4].endswith("what else is refused in this minute has no line")
    assert check(log.path)


def test_nor_do_strangers_each_with_a_connection_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "MOST_REFUSED", 5)
    monkeypatch.setattr(audits.time, "monotonic", lambda: 600.0)
    log = Audit(tmp_path / "audit.jsonl")
    for port in range(20):
        log.add("refused", who=f"ipv4:127.0.0.1:{port}", why="its certificate is not trusted")
    log.add("refused", who="b", why="of one that is known")
    whos = [json.loads(line)["who"] for line in log.path.read_text().splitlines()]
    assert whos == [*(f"ipv4:127.0.0.1:{port}" for port in range(5)), "b"]
    assert len(log._refused) == 2


def test_a_clock_that_was_set_back_counts_an_hour_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1e9]
    monkeypatch.setattr(audits.time, "time", lambda: now[0])
    log = Audit(tmp_path / "audit.jsonl")
    log.add("sent", who="b", bytes=1000)
    now[0] -= 10 * 3600
    for _ in range(6):
        log.add("sent", who="b", bytes=7)
        now[0] += 3000
    assert log.last_hour("b") == 7 == Audit(tmp_path / "audit.jsonl").last_hour("b")


def test_nothing_is_less_than_nothing(tmp_path: Path) -> None:
    a, _ = two(tmp_path)
    hourly = Hourly(a.keys.folder, Audit(a.keys.folder / AUDIT))
    with pytest.raises(NotTaken, match="behind its end"), hourly.admitted("b", 7000 - 10**40):
        pass
    hourly.check("b", 0)


@pytest.mark.parametrize("damage", [b"\xff", b"{", b'{"previous": 1}'])
def test_a_damaged_audit_log_is_named_with_its_line(tmp_path: Path, damage: bytes) -> None:
    log = Audit(tmp_path / "audit.jsonl")
    log.add("sent", who="b", bytes=1)
    with log.path.open("ab") as file:
        file.write(damage + b"\n")
    with pytest.raises(DamageError, match=r"audit\.jsonl:2: .*move the file away"):
        Audit(log.path)


def test_damaged_numbers_of_calls_begin_anew_with_the_time(tmp_path: Path) -> None:
    a = friends(tmp_path)["a"]
    (a.keys.folder / NUMBERS).write_bytes(b"\xff\x00 not a number")
    with Calls(a.keys).opened("b") as call:
        assert call.number > time.time_ns() - 60 * 10**9


def test_a_file_that_power_loss_has_emptied_is_made_anew(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    offer(sites.desks["b"], sites.order, sites.artifact, str(sites.address), sites.record)
    path = sites.files["b"].path(sites.head())
    os.truncate(path, 0)
    offer(sites.desks["b"], sites.order, sites.artifact, str(sites.address), sites.record)
    assert path.read_bytes() == BODY


def test_a_damaged_file_is_not_offered_and_its_order_ends_with_its_name(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    (sites.address / sites.head().entry.path).write_bytes(BODY[:-1] + b"!")
    with pytest.raises(DamageError, match=r"store/model/payload-1/model.safetensors: content does not match"):
        offer(sites.desks["b"], sites.order, sites.artifact, str(sites.address), sites.record)
    assert not [*sites.files["b"].outgoing("a")]


@pytest.mark.parametrize("of", ["other bytes", "unreadable"])
def test_a_file_that_cannot_be_fetched_is_asked_for_again_later_and_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """Damaged where it was made after it was offered; home, which only dials out, says it once."""
    made = Sites(tmp_path / "orders")
    a, b = friends(tmp_path, silent="a").values()
    a.mail, b.mail = (str(tmp_path / "orders" / name) for name in "ab")
    offer(made.desks["b"], made.order, made.artifact, str(made.address), made.record)
    there, here = ([made.files[name].path(made.head(number)) for number in (0, 1)] for name in "ba")
    there[0].write_bytes(BODY[:-1] + b"!")
    monkeypatch.setattr("atelier.infra.sites.refusals.LASTS_S", 0.0)
    given: list[Path] = []
    blocks_of = file_calls.blocks_of

    def counted(path: Path, offset: int) -> Iterator[bytes]:
        given.append(path)
        if path == there[0] and of == "unreadable":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return blocks_of(path, offset)

    with b.served():
        agent = Agent(a.keys, a.mail)
        with monkeypatch.context() as patch:
            patch.setattr(file_calls, "blocks_of", counted)
            for _ in range(3):
                agent.exchange("b")
        assert here[1].read_bytes() == b"{}" and given == there
        there[0].write_bytes(BODY)
        agent._files._not_before.clear()
        agent.exchange("b")
    assert here[0].read_bytes() == BODY
    said = agent._messages.refusals.lines("b")
    assert len(said) == 2 and "is not taken here: " in said[0] and said[1].endswith(" goes on")


def test_a_file_that_is_refused_when_it_has_come_is_sent_again_later_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is damaged where it was made."""
    made = Sites(tmp_path / "orders")
    sites = friends(tmp_path)
    a, b = sites["a"], sites["b"]
    for site in (a, b):
        desk = OrderDesk(site.mail)
        desk.put(made.order)
        reply = made.desks["b"].reply(made.order.id)
        assert reply is not None
        desk.put(reply)
    agent = Agent(b.keys, b.mail)
    path = agent._files._files.path(made.head())
    path.parent.mkdir(parents=True)
    path.write_bytes(BODY[:-1] + b"!")
    pushes: list[Path] = []
    push = file_calls.push

    def counted(channel: object, call: str, begin: bytes, path: Path, offset: int, size: int) -> None:
        pushes.append(path)
        push(channel, call, begin, path, offset, size)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(file_calls, "push", counted)
    with a.served():
        for _ in range(3):
            agent.exchange("a")
        assert len(pushes) == 1 and agent._messages.refusals._early
        path.write_bytes(BODY)
        agent._files._not_before.clear()
        agent.exchange("a")
    assert Path(str(Agent(a.keys, a.mail)._files._files.path(made.head()))).read_bytes() == BODY


def test_home_hears_of_the_files_that_it_waits_for_however_many_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_calls, "MOST_HEADS", 2)
    made = Sites(tmp_path / "orders")
    agent = Agent(friends(tmp_path)["b"].keys, str(tmp_path / "orders" / "b"))
    offer(made.desks["b"], made.order, made.artifact, str(made.address), made.record)

    def heads(orders: list[str]) -> Json:
        return agent._files.heads(json.dumps({"orders": orders}).encode(), "a")["heads"]

    assert heads([made.order.id]) and not heads(["00" * 32])
    assert made.files["a"].waiting("b") == [made.order.id]


def test_an_order_that_is_not_taken_yet_is_said_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = friends(tmp_path).values()
    asked = order()
    OrderDesk(a.mail).put(asked)
    monkeypatch.setattr("atelier.infra.sites.refusals.LASTS_S", 0.0)
    monkeypatch.setattr("atelier.infra.sites.notes.MOST_KEPT", 0)
    agent = Agent(a.keys, a.mail)
    with b.served():
        for _ in range(2):
            agent.exchange("b")
    [line] = agent._messages.refusals.lines("b")
    assert line.startswith(f"b does not take the order {asked.id[:16]}: ") and "orders here" in line


@pytest.mark.parametrize("of", ["no room", "a damaged order"])
def test_a_note_that_a_site_which_only_dials_out_cannot_take_yet_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """After a pause, as its cancellation; it is said once, and another one comes meanwhile."""
    a, b = friends(tmp_path, silent="b").values()
    Policies(b.keys.folder).set(SitePolicy(site="a", tasks=(EVERYTHING,)))
    asked, small = large("big", MOST_UNKNOWN), order(nonce="small")
    home, there = OrderDesk(a.mail), OrderDesk(b.mail)
    damaged = Path(there.folder(asked.id)) / "order.json"
    for note in (asked, cancellation(asked), small):
        home.put(note)
    monkeypatch.setattr("atelier.infra.sites.refusals.LASTS_S", 0.0)
    with a.served(), monkeypatch.context() as patch:
        if of == "no room":
            patch.setattr(notes, "MOST_BYTES", MOST_UNKNOWN)
        else:
            damaged.parent.mkdir(parents=True)
            damaged.write_bytes(b"{")
        agent = Agent(b.keys, b.mail)
        for _ in range(8):
            agent.exchange("a")
        assert [*there.orders()] == [small]
        assert [line["kind"] for line in lines(a)].count("order") == 2  # no more was fetched
        damaged.unlink(missing_ok=True)
        patch.setattr(notes, "MOST_BYTES", 1 << 20)
        patch.setattr(notes, "AGAIN_S", 0.0)
        for _ in range(4):
            agent.exchange("a")
        assert there.order(asked.id) == asked and there.is_cancelled(asked.id)
    said, name = agent._messages.refusals.lines("a"), f"the order {asked.id[:16]}"
    assert sum(line.startswith(f"a: {name} is not taken here: ") for line in said) == 1
    assert f"a: {name} goes on" in said


def test_a_note_that_is_never_taken_is_asked_for_once(tmp_path: Path) -> None:
    a, b = friends(tmp_path, silent="b").values()
    OrderDesk(a.mail).put(large("big", MOST_UNKNOWN))
    agent = Agent(b.keys, b.mail)
    with a.served():
        for _ in range(3):
            agent.exchange("a")
    assert [line["what"] for line in lines(b)] == ["refused"] and len(lines(a)) == 1


@pytest.mark.parametrize("what", ["sent", "received"])
def test_a_file_that_had_come_when_an_agent_was_killed_has_its_lines_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Killed before it wrote the line."""
    made = Sites(tmp_path / "orders")
    a, b = friends(tmp_path).values()
    a.mail, b.mail = (str(tmp_path / "orders" / name) for name in "ab")
    offer(made.desks["b"], made.order, made.artifact, str(made.address), made.record)
    add = Audit.add

    def killed(audit: Audit, happened: str, **about: Json) -> None:
        if happened == what and about["kind"] == "file":
            raise InterruptedError
        add(audit, happened, **about)

    with a.served():
        with monkeypatch.context() as patch, pytest.raises((InterruptedError, grpc.RpcError)):
            patch.setattr(Audit, "add", killed)
            Agent(b.keys, b.mail).exchange("a")
        for _ in range(3):
            Agent(b.keys, b.mail).exchange("a")
    for site, line_of in ((b, "sent"), (a, "received")):
        found = [line["path"] for line in lines(site) if line["what"] == line_of and line["kind"] == "file"]
        assert sorted(found) == sorted(entry.path for entry in made.record.files)


def test_files_of_the_same_bytes_have_a_line_each(tmp_path: Path) -> None:
    log = Audit(tmp_path / "audit.jsonl")
    for number in range(2):
        for path in ("x", "y"):
            log.add_once("sent", "b", kind="file", order="ab", path=path, sha256="0" * 64, bytes=number)
    assert [json.loads(line)["path"] for line in log.path.read_text().splitlines()] == ["x", "y"]


def test_a_progress_that_a_peer_refuses_was_not_sent(tmp_path: Path) -> None:
    a, b = friends(tmp_path).values()
    a.box.open("a", ["a", "b"])  # it is no teacher
    b.box.open_answers("b", ["a", "b"], "a", most=1, ahead=1)
    b.box.tell(ReaderProgress(trajectory=TRAJECTORY, site="b", step=0, safe=0))
    agent = Agent(b.keys, b.mail)
    with a.served():
        for _ in range(2):
            agent.exchange("a")
    assert [line["what"] for line in lines(b)] == ["not taken"]
