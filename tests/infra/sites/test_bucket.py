"""Calls through a bucket: its objects and their size, and cleaning up after a death or a new key."""

import base64
import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import grpc
import pytest

from atelier.engine.config.base import canonical
from atelier.engine.extensions.sites.messages import BODY
from atelier.infra.sites import bucket_link
from atelier.infra.sites.agent import Agent
from atelier.infra.sites.bucket import (
    DEAD_S,
    IN,
    LOOK_DOOR_S,
    OUT,
    START,
    Beacon,
    Bucket,
    BucketError,
    DoorWatch,
    publish,
)
from atelier.infra.sites.bucket_calls import NUMBERS, WINDOW, Calls, with_last
from atelier.infra.sites.bucket_link import BucketLink
from atelier.infra.sites.bucket_server import BucketServer
from atelier.infra.sites.signature import sign
from atelier.infra.sites.transfer import CallError, PeerLink
from tests.infra.sites.agents import PATIENCE_S, Site, asked, friends, until
from tests.infra.sites.test_agent import DATA, body, head, offset_of, two

SMALL = 1000  # bytes of a block here


@pytest.fixture
def pair(tmp_path: Path) -> list[Site]:
    sites = [*friends(tmp_path, carrier="bucket").values()]
    for site in sites:
        site.box.open(site.name, ["a", "b"])
    return sites


def place(site: Site) -> Path:
    return site.bucket / site.keys.card.digest[:32]


def calls_to(site: Site, by: Site, calls: Calls | None = None, lane: int = 0) -> BucketLink:
    card = site.keys.card
    return BucketLink(by.keys, card, card.address, calls or Calls(by.keys), lambda why: None, lane)


def put(link: PeerLink, blocks: Iterable[bytes], data: bytes = DATA, timeout: float = 20) -> None:
    link.ask("Put", asked(head=head("b", data)), blocks, timeout)


def test_an_agent_that_does_not_run_is_known_to_be_away_by_its_door_alone(pair: list[Site]) -> None:
    a, _ = pair
    now = [100.0]
    bucket = Bucket(a.keys.card.address, a.keys.card.digest)
    bucket.make()
    watch = DoorWatch(bucket, a.keys.card, lambda: now[0])

    def open_door(nonce: str, beat: int) -> None:
        door = Beacon(certificate=a.keys.card.digest, nonce=START + nonce * 16, beat=beat)
        publish(bucket, door, a.keys)
        now[0] += 2 * LOOK_DOOR_S

    with pytest.raises(BucketError, match="the agent of a does not run"):
        watch.nonce()
    open_door("1", 1)
    assert watch.nonce() == START + "1" * 16
    now[0] += DEAD_S + 1
    with pytest.raises(BucketError, match="has not changed its door for 15 s"):
        watch.nonce()
    open_door("1", 1)  # the same once more, as anybody may write it
    with pytest.raises(BucketError, match="has not changed its door"):
        watch.nonce()
    open_door("1", 2)
    assert watch.nonce() == START + "1" * 16
    open_door("2", 1)
    assert watch.nonce() == START + "2" * 16
    bucket.remove("door")
    now[0] += 2 * LOOK_DOOR_S
    with pytest.raises(BucketError, match="does not run"):
        watch.nonce()


def test_what_is_wrong_with_a_door_is_said_until_the_next_look(pair: list[Site]) -> None:
    a, _ = pair
    now = [100.0]
    bucket = Bucket(a.keys.card.address, a.keys.card.digest)
    bucket.make()
    watch = DoorWatch(bucket, a.keys.card, lambda: now[0])
    for nonce, problem in (("f" * 32, "another one: install the same Atelier"), (START + "1" * 16, "")):
        publish(bucket, Beacon(certificate=a.keys.card.digest, nonce=nonce, beat=1), a.keys)
        now[0] += 2 * LOOK_DOOR_S
        for _ in range(3):
            with pytest.raises(BucketError, match=problem) if problem else nullcontext():
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
        assert not former.exists() and offset_of(calls_to(a, b)) == 0
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
        assert offset_of(calls_to(a, b)) == 0
        b.keys.rotate()
        with pytest.raises(CallError) as refused:
            calls_to(a, b).ask("Offer", asked(head=head("b", DATA)), (), 0.5)
        assert refused.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED  # nobody is told why
        a.trust(b)
        assert offset_of(calls_to(a, b)) == 0
        former = place(a)
        a.keys.rotate()
        until(lambda: not former.exists(), "the former door stays open")
        b.trust(a)
        until(lambda: (place(a) / "door").exists(), "there is no new door")
        assert offset_of(calls_to(a, b)) == 0


def test_numbers_of_calls_rise_also_when_the_clock_is_set_back(pair: list[Site]) -> None:
    _, b = pair
    first = Calls(b.keys).number()
    path = b.keys.folder / NUMBERS
    path.write_text(f"{2 << 60}\n")
    calls = Calls(b.keys)
    assert first < (2 << 60) < calls.number() < calls.number()


def test_the_last_block_says_so_and_there_is_one_at_least() -> None:
    assert [*with_last([b"1", b"", b"2"])] == [(b"1", False), (b"", False), (b"2", True)]
    assert [*with_last([])] == [(b"", True)]


def test_a_site_without_an_address_answers_in_the_buckets_of_its_peers(tmp_path: Path) -> None:
    """And no more in that of one that is revoked."""
    a, b = two(tmp_path, "b", "bucket")
    with b.served() as agent:
        check_buckets(agent)
        assert [*agent._buckets] == [a.keys.card.address] and (place(b) / "door").exists()
        b.keys.revoke("a")
        check_buckets(agent)
        assert not agent._buckets and not place(b).exists()


def check_buckets(agent: Agent) -> None:
    for job in agent.bucket_jobs():
        job.do()


def test_a_bucket_that_is_dead_stops_the_answers_in_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one that hangs; and no answers begin when the agent has ended."""
    sites = friends(tmp_path, "abc", silent="b", carrier="bucket")
    b, urls = sites["b"], [f"file://{tmp_path / name}" for name in "ac"]
    for name, url in zip("ac", urls, strict=True):
        (tmp_path / name).mkdir(exist_ok=True)
        card = sites[name].keys.card.model_copy(update={"address": url})
        b.keys.accept(card.text, "card", replace=True)
    hangs, start = threading.Event(), BucketServer.start

    def hanging(server: BucketServer) -> None:
        if server._url == urls[0]:
            hangs.wait(PATIENCE_S)
        start(server)

    monkeypatch.setattr(BucketServer, "start", hanging)
    agent, stop = Agent(b.keys, b.mail), threading.Event()
    thread = threading.Thread(target=agent.run, args=(stop, lambda line: None))
    thread.start()
    try:
        until(lambda: [*agent._buckets] == urls[1:], "the other bucket has no answers")
    finally:
        stop.set()
        agent.stop()
        hangs.set()
        thread.join(PATIENCE_S)
    assert [*agent._buckets] == urls[1:]
    for name in "ac":
        door = tmp_path / name / b.keys.card.digest[:32] / "door"
        until(lambda door=door: not door.exists(), "a door stays open")  # type: ignore[misc]


def test_an_agent_of_another_version_is_named(pair: list[Site]) -> None:
    """As an older one, whose door says no version."""
    a, b = pair
    bucket = Bucket(a.keys.card.address, a.keys.card.digest)
    bucket.make()
    door = {"beat": 1, "certificate": a.keys.card.digest, "nonce": "1" * 32}
    text = canonical({"what": "an agent answers here", **door})
    signature = base64.b64encode(sign(a.keys.key, text)).decode()
    bucket.write(json.dumps({"door": door, "signature": signature}).encode(), "door")
    with pytest.raises(CallError, match="and that of a another one: install the same Atelier at both"):
        offset_of(calls_to(a, b))
    with a.served():  # and an older one can read the door of this one
        assert {*json.loads((place(a) / "door").read_bytes())["door"]} == {*door}


def test_a_sender_waits_until_what_it_has_written_is_read(
    pair: list[Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is ended by an answer that comes before it is done, with nothing left."""
    a, b = pair
    most, write, data = [0], Bucket.write, DATA * 10

    def writing(bucket: Bucket, content: bytes, *parts: str) -> None:
        write(bucket, content, *parts)
        most[0] = max(most[0], len(list((place(a) / IN).iterdir())))

    monkeypatch.setattr(Bucket, "write", writing)
    blocks = [data[start : start + SMALL] for start in range(0, len(data), SMALL)]
    with a.served():
        link = calls_to(a, b)
        put(link, blocks, data)
        assert body(a, 1, "b") == data and most[0] <= WINDOW + 1
        taken = iter(blocks * 100)
        with pytest.raises(CallError, match="another message of b to round 1 is here") as refused:
            put(link, taken, data[::-1])
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert len([*taken]) > 98 * len(blocks)
        put(link, iter(blocks * 100), data)  # it is there: nothing of it is read
        until(lambda: not [*(place(a) / IN).iterdir(), *(place(a) / OUT).iterdir()], "an object is left")


def test_who_does_not_answer_is_not_asked_for_a_while(
    pair: list[Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that has not accepted this site's card: the others wait for it once, not for each call."""
    monkeypatch.setattr(bucket_link, "TIMEOUT_S", 0.3)
    a, b = pair
    a.keys.revoke("b")
    with a.served():
        link = calls_to(a, b)

        def ask() -> CallError:
            with pytest.raises(CallError, match="a does not answer; perhaps it has not accepted") as refused:
                link.ask("Offer", asked(head=head("b", DATA)), (), 0.3)
            return refused.value

        codes = grpc.StatusCode
        assert [ask().code() for _ in range(3)] == [codes.DEADLINE_EXCEEDED, *[codes.UNAVAILABLE] * 2]
        b.keys.rotate()
        a.trust(b)
        assert offset_of(link) == 0  # with another certificate it is asked at once


def test_a_call_ends_where_the_bucket_does_not_answer_for_a_moment(
    pair: list[Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an error, not when its time is over: then it is made again."""
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
            put(calls_to(a, b), blocks)
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        monkeypatch.undo()
        b.send(1, DATA)
        Agent(b.keys, b.mail).exchange("a")
        assert body(a, 1, "b") == DATA


def test_a_call_that_was_given_up_holds_up_no_later_one(
    pair: list[Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an agent that was killed, or whose time was over: the next call of its lane ends it."""
    monkeypatch.setattr(BucketLink, "block", SMALL)
    a, b = pair
    begun, ends = threading.Event(), threading.Event()

    def slow() -> Iterator[bytes]:
        yield DATA[:SMALL]
        yield DATA[SMALL : 2 * SMALL]
        begun.set()
        ends.wait(PATIENCE_S)

    with a.served() as agent:
        [server] = agent._buckets.values()
        killed = Calls(b.keys)
        link = calls_to(a, b, killed)

        def give_up() -> None:
            with pytest.raises(CallError):
                put(link, slow(), timeout=PATIENCE_S)

        giving_up = threading.Thread(target=give_up)
        giving_up.start()
        begun.wait(PATIENCE_S)

        def is_refused() -> bool:  # as soon as the other site has read the first blocks
            with suppress(CallError):
                offset_of(calls_to(a, b, killed, lane=1))
                return False
            return True

        until(is_refused, "the second call is not refused")
        until(lambda: len(server._answering) == 1, "the second call is still answered")
        assert giving_up.is_alive()  # a call of another lane ends none that goes on
        later = Calls(b.keys)
        with suppress(CallError):
            offset_of(calls_to(a, b, later))
        until(lambda: not server._answering, "the former start's call goes on")
        b.send(1, DATA)
        sender = Agent(b.keys, b.mail)

        def arrived() -> bool:  # the call that was ended may still hold the file
            sender.exchange("a")
            return (Path(a.box.folder(1, "b")) / BODY).exists()

        until(arrived, "the file has not come")
        assert body(a, 1, "b") == DATA
        ends.set()
        link.close()
        giving_up.join(PATIENCE_S)
        assert not giving_up.is_alive()
