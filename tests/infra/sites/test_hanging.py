"""Peers that hang, links that are cut without a word, callers that never end: nobody else waits for them."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from atelier.engine.config.base import Json
from atelier.infra.sites import agent as agents
from atelier.infra.sites import bucket_channel, channels, grpc_server, transfer
from atelier.infra.sites.agent import SERVICE, Agent
from atelier.infra.sites.bucket_calls import Calls
from atelier.infra.sites.bucket_channel import BucketChannel
from atelier.infra.sites.channels import Channels
from atelier.infra.sites.loops import Loops, Work
from atelier.infra.sites.message_calls import MessageCalls
from atelier.infra.sites.transfer import CallError, code_of
from tests.infra.sites.agents import PATIENCE_S, friends, until, with_agents
from tests.infra.sites.test_agent import body, two
from tests.infra.sites.wire import wired

LARGE = os.urandom(8_000_000)


@contextmanager
def asking(agent: Agent) -> Iterator[list[str]]:
    """An agent that asks; what it says."""
    stop, said = threading.Event(), list[str]()
    thread = threading.Thread(target=agent.run, args=(stop, said.append), daemon=True)
    thread.start()
    try:
        yield said
    finally:
        stop.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


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
    monkeypatch.setattr(channels, "ALIVE", [(name, 1000) for name, _ in channels.ALIVE])
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
        assert time.monotonic() - began < transfer.TIMEOUT_S / 2
        assert "b" not in {each.name for each in threading.enumerate()}  # none is left that waits for b
        with pytest.raises(CallError, match="this agent ends"):
            agent.exchange("b")


def test_a_peer_begins_no_more_calls_than_leave_the_agent_for_others(tmp_path: Path) -> None:
    """As many as the agent has threads, none of which ends; the others are answered, and it is when they
    end.
    """
    sites = friends(tmp_path, "abc")
    a, b, c = (sites[name] for name in "abc")
    is_over, codes = threading.Event(), list[grpc.StatusCode | None]()

    def endless() -> Iterator[bytes]:
        is_over.wait()
        yield b"{}"

    def begin() -> None:
        with pytest.raises(grpc.RpcError) as refused:
            to_a["b"].stream_unary(f"/{SERVICE}/Put")(endless(), timeout=PATIENCE_S)
        codes.append(code_of(refused.value))

    def heads(site: str) -> bytes:
        answer: bytes = to_a[site].unary_unary(f"/{SERVICE}/Heads")(b"{}", timeout=20)
        return answer

    with a.served():
        opened = [Channels(site.keys, [], Calls(site.keys), lambda why: None) for site in (b, c)]
        to_a = {name: one.of(a.keys.card) for name, one in zip("bc", opened, strict=True)}
        threads = [threading.Thread(target=begin) for _ in range(grpc_server.THREADS)]
        for thread in threads:
            thread.start()
        too_many = grpc_server.THREADS - grpc_server.AT_ONCE
        until(lambda: len(codes) == too_many, "the calls that are too many")
        assert {*codes} == {grpc.StatusCode.ABORTED}
        assert heads("c")
        with pytest.raises(grpc.RpcError, match="8 calls of b are answered already"):
            heads("b")
        is_over.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert codes[too_many:] == [grpc.StatusCode.INVALID_ARGUMENT] * grpc_server.AT_ONCE
        assert heads("b")
        for one in opened:
            one.close()


def test_a_call_through_a_bucket_ends_where_nothing_moves_and_where_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before its time is over."""
    a, b = two(tmp_path, carrier="bucket")
    is_over, found = threading.Event(), list[CallError]()

    def heads(calls: MessageCalls, request: bytes, peer: str) -> dict[str, Json]:
        is_over.wait()
        return {}

    def ask() -> None:
        with pytest.raises(CallError) as refused:
            channel.unary_unary(f"/{SERVICE}/Heads")(b"{}", timeout=10 * PATIENCE_S)
        found.append(refused.value)

    monkeypatch.setattr(MessageCalls, "heads", heads)
    with a.served():
        channel = BucketChannel(b.keys, a.keys.card, Calls(b.keys), lambda why: None)
        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: any(a.bucket.rglob("in/*")), "the request")
        channel.close()
        asking.join(PATIENCE_S)
        channel = BucketChannel(b.keys, a.keys.card, Calls(b.keys), lambda why: None)
        monkeypatch.setattr(bucket_channel, "SILENT_S", 0.5)
        ask()
        is_over.set()
    codes = grpc.StatusCode
    assert [error.code() for error in found] == [codes.CANCELLED, codes.DEADLINE_EXCEEDED]


def test_what_is_done_again_and_again_has_a_thread_each_and_is_said_when_it_changes() -> None:
    stop, said, done = threading.Event(), list[str](), list[str]()
    hangs, works = threading.Event(), dict[str, Work]()

    def work(name: str, *turns: str | Exception) -> None:
        left = [*turns]

        def do() -> str:
            done.append(name)
            match left.pop(0) if left else "":
                case str() as problem:
                    return problem
                case Exception() as error:
                    raise error

        works[name] = Work(name, do, "is well")

    def hang() -> None:
        done.append("hangs")
        hangs.wait()

    works["hangs"] = Work("hangs", hang)
    work("a", ValueError("it is so"), ValueError("it is so"), grpc.RpcError(), "", grpc.RpcError())
    work("b", "wrong here")
    loops = Loops(stop, said.append)
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
