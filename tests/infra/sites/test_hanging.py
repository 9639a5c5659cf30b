"""Peers that hang, links that are cut silently, callers that never end: no other peer waits for them."""

import os
import resource
import signal
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
from atelier.infra.sites import agent as agents
from atelier.infra.sites import bucket_link, channels, grpc_server, transfer
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.bucket import MOST
from atelier.infra.sites.bucket_calls import Calls, RequestHead
from atelier.infra.sites.bucket_link import BucketLink
from atelier.infra.sites.channels import Channels
from atelier.infra.sites.exchange import SiteExchange
from atelier.infra.sites.hourly import Hourly
from atelier.infra.sites.incoming import Incoming, NotTaken
from atelier.infra.sites.keys import AUDIT
from atelier.infra.sites.kinds import ItemKind
from atelier.infra.sites.loops import Loops, RepeatedJob
from atelier.infra.sites.policy import Policies, SitePolicy
from atelier.infra.sites.transfer import AT_ONCE, SERVICE, THREADS, CallError, PeerLink
from tests.infra.sites.agents import PATIENCE_S, Site, asked, asking, connected, friends, until, with_agents
from tests.infra.sites.test_agent import body, head, offset_of, two
from tests.infra.sites.wire import wired

LARGE = os.urandom(8_000_000)


def link_to(site: Site, by: Site, lane: int = 0) -> BucketLink:
    card = site.keys.card
    return BucketLink(by.keys, card, card.address, Calls(by.keys), lambda why: None, lane)


def test_who_hangs_holds_up_no_other_peer(tmp_path: Path) -> None:
    """a's agent has something for b, which is stopped, and for c."""
    sites = friends(tmp_path, "abc")
    a, b, c = (sites[name] for name in "abc")
    for site in (a, b, c):
        site.box.open(site.name, [*sites])
    hangs = b.begin()
    try:
        with a.served() as agent, c.served(), asking(agent) as said:
            hangs.send_signal(signal.SIGSTOP)
            a.send(1, LARGE)
            until(lambda: c.box.read(1, "a") is not None, "the message for c")
            assert said == []  # nothing was given up before that
    finally:
        hangs.send_signal(signal.SIGKILL)
        hangs.wait()


@pytest.mark.parametrize("silent", ["", "b"])
def test_a_transfer_whose_link_is_cut_goes_on_over_another_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    """From a to b, pushed, or fetched by b, which cannot be called; the cut is in the middle of it."""
    alive = [(name, 300 if "interval" in name else 3000) for name, _ in channels.ALIVE]
    monkeypatch.setattr(channels, "ALIVE", alive)
    a, b = two(tmp_path, silent)
    called, calls = (a, b) if silent else (b, a)
    with wired(called, calls) as wire:

        def work() -> None:
            wire.break_after(3_000_000)
            a.send(1, LARGE)
            until(lambda: b.box.read(1, "a") is not None, "the message")

        with_agents((a, b), work)
        assert wire.is_broken
        assert len(wire.seen) < 1.3 * len(LARGE), "it did not go on where it stopped"
    assert body(b, 1, "a") == LARGE


def test_an_agent_ends_while_a_peer_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "GRACE_S", 0.3)
    a, b = two(tmp_path)
    with b.served(), wired(b, a) as wire, a.served() as agent:
        with asking(agent):
            wire.break_after(3_000_000)
            a.send(1, LARGE)
            until(lambda: wire.is_broken, "the cut")
            began = time.monotonic()
        until(lambda: "b" not in {each.name for each in threading.enumerate()}, "the end of what waits for b")
        assert time.monotonic() - began < transfer.TIMEOUT_S / 2
        with pytest.raises(CallError, match="this agent is stopping"):
            agent.exchange("b")


@pytest.mark.parametrize("method", ["Put", "List", "Get"])
def test_a_peer_begins_no_more_calls_than_leave_the_agent_for_others(tmp_path: Path, method: str) -> None:
    """As many as the agent has threads, none of which says what is asked; the others are answered, and it is
    when they end.
    """
    sites = friends(tmp_path, "abc")
    a, b, c = (sites[name] for name in "abc")
    is_over, codes = threading.Event(), list[grpc.StatusCode | None]()

    def endless() -> Iterator[bytes]:
        is_over.wait()
        yield b"{}"

    def begin(channel: grpc.Channel) -> None:
        with suppress(grpc.RpcError):
            for _ in channel.stream_stream(f"/{SERVICE}/{method}")(endless(), timeout=PATIENCE_S):
                codes.append(None)
            return
        codes.append(grpc.StatusCode.ABORTED)

    def heads(site: str) -> bytes:
        return to_a[site].ask("List", asked(), (), 20)

    with a.served(), connected(a, b.keys) as calling:
        opened = [Channels(site.keys, [], Calls(site.keys), lambda why: None) for site in (b, c)]
        to_a = {name: one.of(a.keys.card) for name, one in zip("bc", opened, strict=True)}
        threads = [threading.Thread(target=begin, args=(calling,), daemon=True) for _ in range(THREADS)]
        try:
            for thread in threads:
                thread.start()
            until(lambda: len(codes) == THREADS - AT_ONCE, "the calls that are too many")
            assert heads("c")
            with pytest.raises(grpc.RpcError, match="8 calls of b are answered already"):
                heads("b")
        finally:
            is_over.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert heads("b")
        for one in opened:
            one.close()


def test_a_peer_begins_no_more_calls_through_a_bucket_than_leave_the_agent_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = friends(tmp_path, "abc", carrier="bucket")
    a, b, c = (sites[name] for name in "abc")
    is_over, codes = threading.Event(), list[grpc.StatusCode]()

    def endless() -> Iterator[bytes]:
        yield bytes(MOST)
        yield b"x"  # now the first object is written
        is_over.wait()

    def begin(lane: int) -> None:
        with pytest.raises(CallError) as refused:
            link_to(a, b, lane).ask("Put", b"?", endless(), PATIENCE_S)
        codes.append(refused.value.code())

    def reading(exchange: SiteExchange, call: str, requests: Iterator[bytes], peer: str) -> Iterator[bytes]:
        request = next(requests)
        if call == "Put":
            assert len([*requests]) == 2
        yield from answer(exchange, call, iter((request,)), peer)

    answer = SiteExchange.answer
    monkeypatch.setattr(SiteExchange, "answer", reading)
    for site in (a, b, c):
        site.box.open(site.name, [*sites])
    with a.served() as agent:
        [server] = agent._buckets.values()
        threads = [threading.Thread(target=begin, args=(lane,), daemon=True) for lane in range(AT_ONCE)]
        try:
            for thread in threads:
                thread.start()
            until(lambda: len(server._answering) == AT_ONCE, "the calls")
            assert offset_of(link_to(a, c), "c") == 0
            with pytest.raises(ValueError, match="less than 8"):
                RequestHead(sender=b.keys.card.digest, last=True, lane=AT_ONCE)
        finally:
            is_over.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert codes == [grpc.StatusCode.INVALID_ARGUMENT] * AT_ONCE
        assert offset_of(link_to(a, b)) == 0


def test_a_call_through_a_bucket_ends_where_nothing_moves_and_where_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before its time is over."""
    a, b = two(tmp_path, carrier="bucket")
    is_asked, is_over, found = threading.Event(), threading.Event(), list[CallError]()

    def hangs(*about: object) -> Json:
        is_asked.set()
        is_over.wait()
        return None

    def ask() -> None:
        with pytest.raises(CallError) as refused:
            link.ask("Offer", asked(head=head("b", LARGE)), (), 10 * PATIENCE_S)
        found.append(refused.value)

    monkeypatch.setattr(Incoming, "offset", hangs)
    with a.served():
        try:
            link = link_to(a, b)
            asks = threading.Thread(target=ask)
            asks.start()
            assert is_asked.wait(PATIENCE_S)
            link.close()
            asks.join(PATIENCE_S)
            link = link_to(a, b)
            monkeypatch.setattr(bucket_link, "SILENT_S", 0.5)
            ask()
        finally:
            is_over.set()
    codes = grpc.StatusCode
    assert [error.code() for error in found] == [codes.CANCELLED, codes.DEADLINE_EXCEEDED]


def test_who_connects_and_says_nothing_is_hung_up_on_and_takes_up_no_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger, before TLS; an agent may have as many descriptors as its user may allow it."""
    name, after = grpc_server.HANDSHAKE
    assert name == "grpc.server_handshake_timeout_ms" and after == 20_000
    monkeypatch.setattr(grpc_server, "HANDSHAKE", (name, 300))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    a, _ = two(tmp_path)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard))
    try:
        with a.served():
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
            with socket.create_connection(("127.0.0.1", a.port), timeout=10) as silent:
                assert silent.recv(1) == b""
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_agents_far_from_each_other_meet(tmp_path: Path) -> None:
    """A third of a second there and back, as around the world; and the link is cut once."""
    a, b = two(tmp_path)
    with wired(b, a) as wire:
        wire.delay(0.17)
        a.send(1, LARGE[:100_000])
        with_agents((a, b), lambda: until(lambda: b.box.read(1, "a") is not None, "the message"))


def test_an_agent_has_ended_when_nothing_is_done_for_a_call_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written into the audit log by another agent then follows from the last line."""
    a, b = two(tmp_path)
    is_asked, goes_on, steps = threading.Event(), threading.Event(), list[str]()

    def hangs(*about: object) -> Iterator[bytes]:
        is_asked.set()
        goes_on.wait()
        steps.append("noted")
        yield b"{}"

    monkeypatch.setattr(SiteExchange, "answer", hangs)
    with a.served() as agent:
        asks = threading.Thread(target=lambda: to_a.ask("List", asked(), (), 20))
        opened = Channels(b.keys, [], Calls(b.keys), lambda why: None)
        to_a = opened.of(a.keys.card)
        ends = threading.Thread(target=lambda: (agent.stop(), steps.append("ended")))
        try:
            monkeypatch.setattr(threading, "excepthook", lambda found: None)  # its call is broken off
            asks.start()
            assert is_asked.wait(PATIENCE_S)
            ends.start()
            asks.join(PATIENCE_S)
            assert steps == []
        finally:
            goes_on.set()
        ends.join(PATIENCE_S)
    assert steps[:2] == ["noted", "ended"]


def test_who_is_revoked_while_something_is_sent_gets_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two(tmp_path)

    def revoking(link: PeerLink, peer: str, kind: ItemKind[object]) -> None:
        a.keys.revoke(peer)

    with b.served(), a.served() as agent:
        monkeypatch.setattr(agent._exchange, "send", revoking)
        with pytest.raises(AtelierError, match="b is no longer trusted"):
            agent.exchange("b")


def test_what_is_under_way_counts_in_an_hours_budget(tmp_path: Path) -> None:
    """Several at once get no more than one after another."""
    a, _ = two(tmp_path)
    Policies(a.keys.folder).set(SitePolicy(site="b", hourly=10e-6))
    hourly = Hourly(a.keys.folder, Audit(a.keys.folder / AUDIT))
    with hourly.admitted("b", 6000):
        hourly.check("b", 4000)
        hourly.check("c", 9000)
        with pytest.raises(NotTaken, match="have to wait"), hourly.admitted("b", 4001):
            pass
    with hourly.admitted("b", 10_000):
        pass


def test_no_name_of_a_peer_hides_what_is_done_here(tmp_path: Path) -> None:
    names = ("a", "rounds", "cards", "peers")
    a = friends(tmp_path, names)["a"]
    with a.served() as agent:
        works = [work.name for work in agent._works(lambda line: None)]
    assert len({*works}) == len(works) == 3 + 3 * 3  # three are none of a peer, and no bucket is there


def test_what_is_done_again_and_again_has_a_thread_each_and_is_said_when_it_changes() -> None:
    stop, said, done = threading.Event(), list[str](), list[str]()
    hangs, works = threading.Event(), dict[str, RepeatedJob]()

    def work(name: str, *turns: str | Exception) -> None:
        left = [*turns]

        def do() -> str:
            done.append(name)
            match left.pop(0) if left else "":
                case str() as problem:
                    return problem
                case Exception() as error:
                    raise error

        works[name] = RepeatedJob(name, do, "is well")

    def hang() -> None:
        done.append("hangs")
        hangs.wait()

    def say(line: str) -> None:
        said.append(line)
        raise OSError  # nobody reads it

    works["hangs"] = RepeatedJob("hangs", hang)
    work("a", ValueError("it is so"), ValueError("it is so"), grpc.RpcError(), "", grpc.RpcError())
    work("b", "wrong here")
    loops = Loops(stop, say)
    thread = threading.Thread(target=loops.run, args=(lambda: works.values(),))
    thread.start()
    until(lambda: done.count("a") > 5, "the works are not done")
    assert sorted(said) == ["a: is well", "a: it is so", "b: is well", "wrong here"]
    assert done.count("hangs") == 1
    again = works.pop("hangs")
    del works["b"]
    until(lambda: done.count("a") > 9, "a is not done")
    num_b = done.count("b")
    works["hangs"] = again
    until(lambda: done.count("a") > 12, "a is not done")
    assert done.count("b") == num_b and done.count("hangs") == 1  # never twice at once
    stop.set()
    thread.join(PATIENCE_S)
    assert not loops.join(0.1)
    hangs.set()
    assert loops.join(PATIENCE_S)
