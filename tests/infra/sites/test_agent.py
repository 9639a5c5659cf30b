"""Agents that carry messages between two sites, over mutual TLS on loopback: real processes, real kills."""

import hashlib
import json
import os
import random
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from atelier.engine.config.base import Json
from atelier.engine.config.error import AtelierError
from atelier.engine.config.record import FileEntry
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.messages import BODY, Contribution
from atelier.engine.extensions.sites.rates import rate_to
from atelier.infra.sites import grpc_server, messages
from atelier.infra.sites.agent import Agent
from atelier.infra.sites.audit import FIRST, Audit
from atelier.infra.sites.keys import AUDIT
from atelier.infra.sites.peer_problems import PeerProblems
from atelier.infra.sites.policy import Policies, SitePolicy
from atelier.infra.sites.transfer import FORMER, SERVICE, CallError, PeerLink
from tests.infra.sites.agents import (
    PATIENCE_S,
    TRAJECTORY,
    Carrier,
    Site,
    asked,
    asking,
    check,
    connected,
    friends,
    running,
    say,
    until,
    with_agents,
)


def two(folder: Path, silent: str = "", carrier: Carrier = "grpc") -> list[Site]:
    sites = [*friends(folder, silent=silent, carrier=carrier).values()]
    for site in sites:
        site.box.open(site.name, ["a", "b"])
    return sites


def body(site: Site, number: int, of: str) -> bytes:
    return (Path(site.box.folder(number, of)) / BODY).read_bytes()


@pytest.mark.parametrize("carrier", ["grpc", "bucket"])
@pytest.mark.parametrize("is_reachable", [True, False])
def test_messages_arrive_whole_also_where_one_side_only_dials_out(
    tmp_path: Path, is_reachable: bool, carrier: Carrier
) -> None:
    a, b = two(tmp_path, "" if is_reachable else "a", carrier)
    data = {site.name: os.urandom(3_000_001) for site in (a, b)}

    def exchange() -> None:
        for site in (a, b):
            site.send(1, data[site.name])
        until(lambda: a.box.has(1, "b") and b.box.has(1, "a"), "a message is missing")

    with_agents((a, b), exchange)
    assert body(a, 1, "b") == data["b"] and body(b, 1, "a") == data["a"]
    for site in (a, b):
        lines = site.audited()
        assert sum(line["bytes"] for line in lines if line["what"] == "received") == 3_000_001
        assert check(site.keys.folder / AUDIT)


@pytest.mark.parametrize("silent", ["", "a", "b"])
def test_no_more_crosses_in_an_hour_than_a_policy_lets(tmp_path: Path, silent: str) -> None:
    """Of both ways together; an agent that was killed goes on counting, and another policy counts at once."""
    a, b = two(tmp_path, silent)
    policies = Policies(b.keys.folder)
    policies.set(SitePolicy(site="a", hourly=10e-6))

    def arrived() -> int:
        return a.box.has(1, "b") + b.box.has(1, "a")

    with running((a, b)) as kill:
        a.send(1, DATA)
        until(lambda: arrived() == 1, "the first message is missing", a, b)
        kill("b")
        b.send(1, DATA)
        until(
            lambda: "a: 0.007 MB have to wait: 0.007 MB of 0.01 MB have crossed" in b.log(), "no wait", a, b
        )
        assert arrived() == 1
        policies.set(SitePolicy(site="a", hourly=15e-6))
        until(lambda: arrived() == 2, "the second message is missing", a, b)


def test_what_crossed_more_than_an_hour_ago_counts_no_more(tmp_path: Path) -> None:
    now = time.time()
    path, chain = tmp_path / AUDIT, FIRST
    with path.open("w") as file:
        for age, size in ((3700, 5), (3500, 7), (10, 11), (-600, 13)):  # the last one of a clock set back
            about = {"time": now - age, "what": "received", "who": "b", "bytes": size}
            line = json.dumps(about | {"previous": chain})
            chain = hashlib.sha256(line.encode()).hexdigest()
            file.write(line + "\n")
    audit = Audit(path)
    assert audit.last_hour("b") == 7 + 11 and audit.last_hour("c") == 0
    audit.add("sent", who="b", bytes=17)
    audit.add("refused", who="b", bytes=19)
    assert audit.last_hour("b") == 7 + 11 + 17


NUMBERS = range(1, 4)


@pytest.mark.parametrize("carrier", ["grpc", pytest.param("bucket", marks=pytest.mark.slow)])
def test_an_agent_that_is_killed_again_and_again_loses_nothing(tmp_path: Path, carrier: Carrier) -> None:
    """Each time in the midst of messages; what had come is not sent again."""
    a, b = two(tmp_path, carrier=carrier)
    draw = random.Random(3)
    data = {(site.name, number): draw.randbytes(4_000_000) for site in (a, b) for number in NUMBERS}
    kills = 0

    def is_done() -> bool:
        return all(site.box.has(number, other.name) for site, other in ((a, b), (b, a)) for number in NUMBERS)

    with running((a, b)) as kill:
        for (name, number), content in data.items():
            {"a": a, "b": b}[name].send(number, content)
        end = time.monotonic() + PATIENCE_S
        while not is_done():
            assert time.monotonic() < end, a.log() + b.log()
            time.sleep(draw.uniform(0.0, 0.2))
            if kills < 3:
                kill(draw.choice("ab"))
                kills += 1
    for site, other in ((a, b), (b, a)):
        for number in NUMBERS:
            assert body(site, number, other.name) == data[other.name, number]
    assert kills >= 1


def head(name: str, data: bytes, **more: object) -> dict[str, object]:
    entry = FileEntry(path=BODY, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    found = Contribution(trajectory=TRAJECTORY, site=name, round=1, body=entry, before={}, safe=0)
    return json.loads(found.text) | more


DATA = b"weights" * 1000


def offset_of(link: PeerLink, of: str = "b") -> Json:
    """Where a site wants a message of another from."""
    return json.loads(link.ask("Offer", asked(head=head(of, DATA)), (), 20))["offset"]


ATTACKS: dict[str, tuple[dict[str, object], bytes, str]] = {
    "another site": (head("c", DATA), DATA, "the message is of c, and b sends it"),
    "itself": (head("a", DATA), DATA, "the message is of a, and b sends it"),
    "another training": (head("b", DATA, trajectory="cd" * 32), DATA, "is not trained here"),
    "too much": (head("b", DATA), DATA + b"!", "has more than the 7000 bytes that it announces"),
    "too little": (head("b", DATA), DATA[:-1], "ended after 6999 of 7000 bytes"),
    "flipped": (head("b", DATA), DATA[:-1] + b"!", "does not match its digest"),
    "a path": (head("b", DATA, trajectory="../../../etc"), DATA, "trajectory"),
    "another path": (head("b", DATA, site="../b"), DATA, "site"),
    "a path in the digest": (
        head("b", DATA, body={"path": BODY, "bytes": 7000, "sha256": "/../../a"}),
        DATA,
        "64 hex digits",
    ),
    "far ahead": (head("b", DATA, round=2), DATA, "round 2 is not the next one"),
    "no round": (head("b", DATA, round=0), DATA, "round"),
    "another kind": (head("b", DATA, kind="command"), DATA, "kind"),
    "a further field": (head("b", DATA, run="rm"), DATA, "run"),
    "another size": (head("b", DATA[:-1]), DATA[:-1], "6999 bytes of fragment 0, not [7000]"),
    "no fragment": (head("b", DATA, fragment=1), DATA, "7000 bytes of fragment 1, not []"),
    "huge": (head("b", b"", body={"path": BODY, "bytes": 1 << 50, "sha256": "0" * 64}), b"", "at most"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_a_peer_may_not_send_is_refused_by_name_and_leaves_nothing(tmp_path: Path, attack: str) -> None:
    a, b = two(tmp_path)
    if attack in ("another size", "no fragment"):
        a.box.open("a", ["a", "b"], {"none": [7000]})
    document, data, problem = ATTACKS[attack]
    with a.served():
        said = say(a, b.keys, "Put", asked(head=document), data)
        assert problem in said and "\n" not in said, said
        assert a.box.read(1, "b") is None
        good = asked(head=head("b", DATA), offset=len(DATA) - 1 if attack == "too little" else 0)
        assert say(a, b.keys, "Put", good, DATA[-1:] if attack == "too little" else DATA) == ""
        assert body(a, 1, "b") == DATA
        other = asked(head=head("b", DATA + b"2"))
        assert "another message of b to round 1 is here" in say(a, b.keys, "Put", other, DATA + b"2")
        assert say(a, b.keys, "Put", good, DATA) == ""  # the same once more
    assert {path.name for path in Path(a.box.folder(1, "b")).iterdir()} == {"message.json", BODY}


def test_what_one_training_is_refused_holds_up_no_other(tmp_path: Path) -> None:
    """Heads of a training that the peer does not have, and of a round that is over there, come first; two
    rounds of equal bytes are two messages.
    """
    a, b = two(tmp_path)
    other = Mailbox(b.mail, "00" * 32)
    other.open("b", ["a", "b"])
    other.send(1, "b", [DATA], {}, 0, codec=Codec())
    for number in (1, 2, 3):
        a.send(number, DATA)
        b.send(number, DATA)
    a.box.forget(1)  # is over at a
    asking = Agent(b.keys, b.mail)
    with a.served():
        asking.exchange("a")
        assert a.box.read(2, "b") is not None and a.box.read(3, "b") is not None
        assert a.box.read(1, "b") is None and not Path(a.mail, "00" * 8).exists()
        asking.exchange("a")
    lines = (b.keys.folder / AUDIT).read_text()
    assert lines.count("not taken") == 1 and "round 1 is over" in lines


def test_what_a_peer_has_lost_is_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mailbox was removed, while the agents went on."""
    a, b = two(tmp_path)
    with a.served() as sending, b.served():
        for number in (1, 2, 3):
            a.send(number, DATA)
        b.box.open("b", ["a", "b"])
        for number in (1, 2, 3):
            b.send(number, DATA)
        sending.exchange("b")
        assert b.box.read(3, "a") is not None and rate_to(a.mail, "b") is not None
        shutil.rmtree(b.box.place)
        b.box.open("b", ["a", "b"])
        sending.exchange("b")
        assert b.box.read(1, "a") is None
        monkeypatch.setattr(messages, "OFFER_AGAIN_S", 0.0)
        sending.exchange("b")
        assert b.box.read(1, "a") is not None


def test_what_is_damaged_here_ends_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what breaks it, which gRPC mends with patience: one that hangs is opened anew."""
    a, b = two(tmp_path)
    with b.served():
        asking = Agent(a.keys, a.mail)
        channel = asking._channels.of(b.keys.card)
        a.send(1, DATA)
        (Path(a.box.folder(1, "a")) / "message.json").write_bytes(b"{")
        with pytest.raises(AtelierError, match=r"message\.json"):
            asking.exchange("b")
        assert asking._channels.of(b.keys.card) is channel
    shutil.rmtree(a.box.folder(1, "a"))
    a.send(1, DATA)
    with pytest.raises(grpc.RpcError):
        asking.exchange("b")
    assert asking._channels.of(b.keys.card) is channel

    def hangs(*_: object, **more: object) -> None:
        raise CallError(grpc.StatusCode.DEADLINE_EXCEEDED, "late")

    monkeypatch.setattr(asking._exchange, "send", hangs)
    with pytest.raises(CallError, match="late"):
        asking.exchange("b")
    assert asking._channels.of(b.keys.card) is not channel
    asking.stop()


def test_runs_here_hear_what_keeps_the_agent_from_a_peer_until_it_ends(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    problems = PeerProblems(a.mail)
    a.send(1, DATA)
    assert problems.of("b") is None
    with a.served() as at_a, asking(at_a):
        until(lambda: "unavailable" in (problems.of("b") or ""), "nobody says that b is not there")
        with b.served():
            until(lambda: problems.of("b") == "", "nobody says that b is there")
    assert problems.of("b") is None


def test_a_peer_whose_port_hangs_up_is_not_called_at_every_look(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    a.send(1, DATA)
    calls: list[float] = []
    with socket.create_server(("127.0.0.1", b.port)) as listener:

        def hang_up() -> None:
            with suppress(OSError):
                while True:
                    listener.accept()[0].close()
                    calls.append(time.monotonic())

        threading.Thread(target=hang_up, daemon=True).start()
        asking, end = Agent(a.keys, a.mail), time.monotonic() + 3
        while time.monotonic() < end:
            with pytest.raises(grpc.RpcError):
                asking.exchange("b")
            time.sleep(0.05)
        asking.stop()
        listener.shutdown(socket.SHUT_RDWR)
    assert 2 <= len(calls) <= 12


def test_what_a_stream_is_refused_is_in_the_audit_log(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    a.send(1, DATA)
    about = json.loads((Path(a.box.folder(1, "a")) / "message.json").read_bytes())
    with a.served():
        assert say(a, b.keys, "Get", asked(head=about)) == ""
        for changed in ({"trajectory": "cd" * 32}, {"trajectory": "../" * 21 + "x"}):
            assert say(a, b.keys, "Get", asked(head=about | changed))
    lines = a.audited()
    assert [line["what"] for line in lines] == ["fetched", "refused", "refused"]
    assert lines[1]["why"] == "no such message" and lines[1]["who"] == "b"


def test_what_was_accepted_is_never_replaced_by_what_began_before(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    late = threading.Event()

    def slow() -> Iterator[bytes]:
        yield asked(head=head("b", DATA))
        yield DATA[:-1]
        late.wait(PATIENCE_S)
        yield DATA[-1:]

    other = DATA[::-1]
    with a.served(), connected(a, b.keys) as channel:
        begun = channel.stream_unary(f"/{SERVICE}/Put").future(slow())
        folder = Path(a.box.folder(1, "b"))
        until(folder.exists, "the first message does not begin")
        again = asked(head=head("b", other))
        assert "on its way" in say(a, b.keys, "Put", again, other)
        late.set()
        begun.result(PATIENCE_S)
        assert "another message of b to round 1 is here" in say(a, b.keys, "Put", again, other)
        assert body(a, 1, "b") == DATA


def test_an_agent_of_another_version_is_refused_with_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever calls; its site may have revoked nobody, and nothing of it is taken."""
    a, b = two(tmp_path)
    problem = "version 2 of the exchange between sites and that of {} another one: install the same Atelier"
    with a.served():
        said = say(a, b.keys, "Heads", b"{}", service=FORMER)
        assert said.startswith("UNIMPLEMENTED") and problem.format("b") in said
        b.send(1, DATA)
        monkeypatch.setattr(grpc_server, "SERVICE", FORMER)  # a's agent is an older one
        with pytest.raises(CallError, match=problem.format("a")):
            Agent(b.keys, b.mail).exchange("a")
        assert a.box.read(1, "b") is None


def test_half_a_line_of_the_audit_log_is_cut_off(tmp_path: Path) -> None:
    a, _ = two(tmp_path)
    with a.served() as agent:
        say(a, Site(tmp_path / "x", "c").keys, "List", asked())
        agent._audit.add("sent", who="b")
    path = a.keys.folder / AUDIT
    whole = path.read_text()
    path.write_text(whole + '{"time": 17')
    Agent(a.keys, a.mail)
    assert path.read_text() == whole


def test_a_changed_audit_log_is_noticed(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    with a.served():
        for name in "bc":
            say(a, b.keys, "Put", asked(head=head(name, DATA)), DATA)
    path = a.keys.folder / AUDIT
    whole = path.read_text()
    assert check(path)
    for damaged in (whole.replace("7000", "70"), whole.partition("\n")[2]):
        path.write_text(damaged)
        with pytest.raises(Exception, match=r"audit.jsonl:\d: does not follow from the line before"):
            Agent(a.keys, a.mail)


def test_a_key_is_readable_by_its_owner_alone_and_in_no_card(tmp_path: Path) -> None:
    a, _ = two(tmp_path)
    assert (a.keys.folder / "key.pem").stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE" not in a.keys.card.text and b"PRIVATE" in a.keys.key
