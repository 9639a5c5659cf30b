"""Calls through a bucket: what lies in it, how much, and what happens to it when somebody dies or changes its
key.
"""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from atelier.infra.sites import bucket_calls, bucket_channel, transfer
from atelier.infra.sites.agent import SERVICE, Agent
from atelier.infra.sites.bucket import (
    DEAD_S,
    IN,
    LOOK_DOOR_S,
    OUT,
    Beacon,
    Bucket,
    BucketError,
    DoorWatch,
    publish,
)
from atelier.infra.sites.bucket_calls import NUMBERS, WINDOW, Calls, Taken, grouped
from atelier.infra.sites.bucket_channel import BucketChannel
from atelier.infra.sites.transfer import CallChannel, CallError
from tests.infra.sites.agents import PATIENCE_S, Site, friends, until
from tests.infra.sites.test_agent import DATA, body, head

SMALL = 1000  # bytes of an object's messages here


@pytest.fixture
def pair(tmp_path: Path) -> list[Site]:
    sites = [*friends(tmp_path, carrier="bucket").values()]
    for site in sites:
        site.box.open(site.name, ["a", "b"])
    return sites


def place(site: Site) -> Path:
    return site.bucket / site.keys.card.digest[:32]


def calls_to(site: Site, by: Site, calls: Calls | None = None) -> BucketChannel:
    return BucketChannel(by.keys, site.keys.card, calls or Calls(by.keys), lambda why: None)


def heads(channel: CallChannel) -> Any:
    return json.loads(channel.unary_unary(f"/{SERVICE}/Heads")(b"{}", timeout=20))


def put(channel: CallChannel, blocks: Iterator[bytes], data: bytes = DATA, timeout: float = 20) -> None:
    def parts() -> Iterator[bytes]:
        yield json.dumps(head("b", data) | {"offset": 0}).encode()
        yield from blocks

    channel.stream_unary(f"/{SERVICE}/Put")(parts(), timeout=timeout)


def test_an_agent_that_does_not_run_is_known_to_be_away_by_its_door_alone(pair: list[Site]) -> None:
    a, _ = pair
    now = [100.0]
    bucket = Bucket(a.keys.card.address, a.keys.card.digest)
    bucket.make()
    watch = DoorWatch(bucket, a.keys.card, lambda: now[0])

    def open_door(nonce: str, beat: int) -> None:
        publish(bucket, Beacon(certificate=a.keys.card.digest, nonce=nonce * 32, beat=beat), a.keys)
        now[0] += 2 * LOOK_DOOR_S

    with pytest.raises(BucketError, match="the agent of a does not run"):
        watch.nonce()
    open_door("1", 1)
    assert watch.nonce() == "1" * 32
    now[0] += DEAD_S + 1
    with pytest.raises(BucketError, match="was not heard of for 15 s"):
        watch.nonce()
    open_door("1", 1)  # the same once more, as anybody may write it
    with pytest.raises(BucketError, match="was not heard of"):
        watch.nonce()
    open_door("1", 2)
    assert watch.nonce() == "1" * 32
    open_door("2", 1)
    assert watch.nonce() == "2" * 32
    bucket.remove("door")
    now[0] += 2 * LOOK_DOOR_S
    with pytest.raises(BucketError, match="does not run"):
        watch.nonce()


def test_what_is_left_of_a_former_start_is_removed_and_nothing_else(pair: list[Site]) -> None:
    """Also of a former certificate; what others have there stays."""
    a, b = pair
    former = place(a)
    for way in (IN, OUT):
        (former / way).mkdir(parents=True)
        (former / way / f"{'d' * 32}.3").write_bytes(b"left")
    other = a.bucket / ("0" * 32) / IN / f"{'d' * 32}.0"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"of another site")
    a.keys.rotate()
    b.trust(a)
    with a.served():
        assert not former.exists() and heads(calls_to(a, b)) == {"heads": []}
        until(lambda: not [*(place(a) / IN).iterdir(), *(place(a) / OUT).iterdir()], "an object is left")
    assert [path.name for path in a.bucket.iterdir()] == [
        "0" * 32
    ] and other.read_bytes() == b"of another site"


def test_an_agent_whose_folder_was_removed_makes_it_anew(pair: list[Site]) -> None:
    a, _ = pair
    bucket = Bucket(a.keys.card.address, a.keys.card.digest)
    with a.served():
        bucket.clear()
        until(lambda: bucket.exists("door"), "its door")


def test_new_certificates_are_taken_without_a_restart(pair: list[Site]) -> None:
    a, b = pair
    with a.served():
        assert heads(calls_to(a, b)) == {"heads": []}
        b.keys.rotate()
        with pytest.raises(CallError) as refused:
            BucketChannel(b.keys, a.keys.card, Calls(b.keys), lambda why: None).unary_unary("/x/Heads")(
                b"{}", timeout=0.5
            )
        assert refused.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED  # nobody is told why
        a.trust(b)
        assert heads(calls_to(a, b)) == {"heads": []}
        former = place(a)
        a.keys.rotate()
        until(lambda: not former.exists(), "the former door stays open")
        b.trust(a)
        until(lambda: (place(a) / "door").exists(), "there is no new door")
        assert heads(calls_to(a, b)) == {"heads": []}


def test_numbers_of_calls_rise_also_when_the_clock_is_set_back(pair: list[Site]) -> None:
    _, b = pair
    with Calls(b.keys).opened("a") as first:
        pass
    path = b.keys.folder / NUMBERS
    path.write_text(f"{2 << 60}\n")
    calls = Calls(b.keys)
    with calls.opened("a") as second, calls.opened("a") as third:
        assert third.open == (second.name,)
    assert first.number < (2 << 60) < second.number < third.number
    taken = Taken()
    assert [taken.problem(10, number) for number in (11, 13, 12)] == [""] * 3
    assert taken.problem(10, 12) == taken.problem(10, 10) == "it was taken before"
    assert taken.problem(10, 5000) == "" and taken.problem(10, 14) == "it was taken before"
    assert "former start" in taken.problem(9, 6000)


def test_messages_are_put_into_objects_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_calls, "MOST", 10)
    found = [*grouped([b"12345", b"12345", b"1", b"", b"1234567890"])]
    assert found == [([b"12345", b"12345"], False), ([b"1", b""], False), ([b"1234567890"], True)]
    assert [*grouped([])] == [([], True)]
    with pytest.raises(CallError, match="a message of 11 bytes, at most 10"):
        list(grouped([b"x" * 11]))


def test_a_sender_waits_until_what_it_has_written_is_read(
    pair: list[Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is ended by an answer that comes before it is done, with nothing left."""
    monkeypatch.setattr(bucket_calls, "MOST", SMALL)
    a, b = pair
    most, write, data = [0], Bucket.write, DATA * 10

    def writing(bucket: Bucket, content: bytes, *parts: str) -> None:
        write(bucket, content, *parts)
        most[0] = max(most[0], len(list((place(a) / IN).iterdir())))

    monkeypatch.setattr(Bucket, "write", writing)
    blocks = [data[start : start + SMALL] for start in range(0, len(data), SMALL)]
    with a.served():
        channel = calls_to(a, b)
        put(channel, iter(blocks), data)
        assert body(a, 1, "b") == data and most[0] <= WINDOW + 1
        taken = iter(blocks * 100)
        with pytest.raises(CallError, match="another message of b to round 1 is here") as refused:
            put(channel, taken, data[::-1])
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert len([*taken]) > 98 * len(blocks)
        put(channel, iter(blocks * 100), data)  # it is there: nothing of it is read
        until(lambda: not [*(place(a) / IN).iterdir(), *(place(a) / OUT).iterdir()], "an object is left")


def test_who_does_not_answer_is_not_asked_for_a_while(
    pair: list[Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that has not accepted this site's card: the others wait for it once, not for each call."""
    monkeypatch.setattr(bucket_channel, "TIMEOUT_S", 0.3)
    a, b = pair
    a.keys.revoke("b")
    with a.served():
        channel = calls_to(a, b)

        def ask() -> CallError:
            with pytest.raises(CallError, match="a does not answer; perhaps it has not accepted") as refused:
                channel.unary_unary(f"/{SERVICE}/Heads")(b"{}", timeout=0.3)
            return refused.value

        codes = grpc.StatusCode
        assert [ask().code() for _ in range(3)] == [codes.DEADLINE_EXCEEDED, *[codes.UNAVAILABLE] * 2]
        b.keys.rotate()
        a.trust(b)
        assert heads(channel) == {"heads": []}  # with another certificate it is asked at once


def test_a_call_ends_where_the_bucket_does_not_answer_for_a_moment(
    pair: list[Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an error, not when its time is over: then it is made again."""
    monkeypatch.setattr(bucket_calls, "MOST", SMALL)
    a, b = pair
    read = Bucket.read

    def failing(bucket: Bucket, *parts: str, **more: int) -> bytes | None:
        if parts[0] == IN and parts[-1].endswith(".2"):
            raise BucketError("503")
        return read(bucket, *parts, **more)

    with a.served():
        monkeypatch.setattr(Bucket, "read", failing)
        blocks = [DATA[start : start + SMALL] for start in range(0, len(DATA), SMALL)]
        with pytest.raises(CallError, match="503") as refused:
            put(calls_to(a, b), iter(blocks))
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        monkeypatch.undo()
        b.send(1, DATA)
        Agent(b.keys, b.mail).exchange("a")
        assert body(a, 1, "b") == DATA


def test_a_call_that_was_given_up_holds_up_no_later_one(
    pair: list[Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an agent that was killed, or whose time was over: the next call says which go on."""
    monkeypatch.setattr(bucket_calls, "MOST", SMALL)
    monkeypatch.setattr(transfer, "BLOCK", SMALL)
    a, b = pair
    begun, ends = threading.Event(), threading.Event()

    def slow() -> Iterator[bytes]:
        yield DATA[:SMALL]
        yield DATA[SMALL : 2 * SMALL]
        begun.set()
        ends.wait(PATIENCE_S)

    with a.served() as agent:
        assert agent._bucket is not None
        killed = Calls(b.keys)

        def give_up() -> None:
            with pytest.raises(CallError):
                put(calls_to(a, b, killed), slow(), timeout=4)

        giving_up = threading.Thread(target=give_up)
        giving_up.start()
        begun.wait(PATIENCE_S)
        heads(calls_to(a, b, killed))
        assert len(agent._bucket._answering) == 1  # another call of the same start ends none that goes on
        later = Calls(b.keys)
        until(lambda: heads(calls_to(a, b, later)) == {"heads": []}, "no answer")
        server = agent._bucket
        assert server is not None
        until(lambda: not server._answering, "the former start's call goes on")
        b.send(1, DATA)
        Agent(b.keys, b.mail).exchange("a")
        assert body(a, 1, "b") == DATA
        ends.set()
        giving_up.join(PATIENCE_S)
