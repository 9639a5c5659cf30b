"""The nodes of a gang meet all or not at all, and end together."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import AtelierError, StoppedError
from atelier.engine.config.run_file import RunFile
from atelier.infra.launch import rendezvous
from atelier.infra.launch.rendezvous import NodePlace, Rendezvous

RUN = RunFile(task="train", version=1, config={"x": 1}, scratch="")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "POLL_S", 0.01)


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    """Set in the end, so that no thread of a test outlives it."""
    event = threading.Event()
    yield event
    event.set()


def nodes(root: Path, stop: threading.Event, *pools: str, patience_s: float = 60.0) -> list[Rendezvous]:
    names = pools or ("a", "b")
    return [
        Rendezvous(str(root), NodePlace(id="g1", index=index, pools=names, patience_s=patience_s), stop)
        for index in range(len(names))
    ]


class Following(threading.Thread):
    """Another node: it arrives and follows; `found` is what it got or what it was told."""

    def __init__(self, node: Rendezvous) -> None:
        super().__init__()
        self.node, self.found = node, None
        self.start()

    def run(self) -> None:
        self.node.arrive()
        try:
            self.found: Any = self.node.follow()
        except AtelierError as error:
            self.found = error


def test_all_get_the_same_run_and_the_same_place_to_meet(tmp_path: Path, stop: threading.Event) -> None:
    first, *others = nodes(tmp_path, stop, "a", "b", "c")
    followers = [Following(node) for node in others]
    first.arrive()
    environment = first.gather(RUN, lambda _: None)
    for follower in followers:
        follower.join(60)
        assert follower.found == (RUN, environment)
    assert environment["ATELIER_RENDEZVOUS"].startswith("tcp://127.0.0.1:")
    assert environment["GLOO_SOCKET_IFNAME"] == "lo"


def test_nobody_starts_before_all_are_there(tmp_path: Path, stop: threading.Event) -> None:
    first, second, third = nodes(tmp_path, stop, "a", "b", "c")
    follower, gathered = Following(second), threading.Event()
    first.arrive()
    said: list[str] = []
    waits = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        if "node 1" not in text:
            waits.set()

    thread = threading.Thread(target=lambda: (first.gather(RUN, say), gathered.set()))
    thread.start()
    assert waits.wait(60)
    assert said[-1] == "waits for node 2 of 3 (pool c)"
    assert not gathered.is_set() and follower.found is None and not list(tmp_path.rglob("go.json"))
    last = Following(third)
    for one in (thread, follower, last):
        one.join(60)
    assert gathered.is_set() and follower.found == last.found


def test_one_that_does_not_come_is_named_and_the_others_are_sent_home(
    tmp_path: Path, stop: threading.Event
) -> None:
    first, second, _ = nodes(tmp_path, stop, "a", "b", "c", patience_s=0.05)
    second.arrive()
    first.arrive()
    with pytest.raises(AtelierError) as caught:
        first.gather(RUN, lambda _: None)
    text = "node 2 of 3 (pool c) did not arrive within 0 s"
    assert str(caught.value) == f"{text}; start a worker: atelier worker c"
    with pytest.raises(StoppedError, match=r"the gang has ended: node 2 of 3 \(pool c\) did not arrive"):
        second.follow()


def test_one_that_comes_too_late_does_not_start(tmp_path: Path, stop: threading.Event) -> None:
    first, second = nodes(tmp_path, stop, patience_s=0.0)
    first.arrive()
    with pytest.raises(AtelierError):
        first.gather(RUN, lambda _: None)
    late = Following(second)
    late.join(60)
    assert isinstance(late.found, StoppedError)


def test_a_stop_while_gathering_is_told_to_those_who_came(tmp_path: Path, stop: threading.Event) -> None:
    own = threading.Event()
    first, *_ = nodes(tmp_path, own, "a", "b", "c")  # the third does not come
    second = nodes(tmp_path, stop, "a", "b", "c")[1]
    first.arrive()
    follower = Following(second)
    with pytest.raises(StoppedError, match="stopped while the gang was gathering"):
        first.gather(RUN, lambda _: own.set())
    follower.join(60)
    assert isinstance(follower.found, StoppedError) and not list(tmp_path.rglob("go.json"))


def test_a_stop_while_following_is_told_to_the_first(tmp_path: Path, stop: threading.Event) -> None:
    own = threading.Event()
    second = nodes(tmp_path, own)[1]
    second.arrive()
    own.set()
    with pytest.raises(StoppedError):
        second.follow()
    heard, over = threading.Event(), threading.Event()
    nodes(tmp_path, stop)[0].watch(heard, over)
    assert heard.is_set()


@pytest.mark.parametrize("who", [0, 1])
def test_when_one_ends_the_others_are_stopped_and_itself_is_not(
    tmp_path: Path, stop: threading.Event, who: int
) -> None:
    both = nodes(tmp_path, stop)
    stops, over = [threading.Event(), threading.Event()], threading.Event()
    threads = [
        threading.Thread(target=node.watch, args=(heard, over))
        for node, heard in zip(both, stops, strict=True)
    ]
    for thread in threads:
        thread.start()
    both[who].end("rank 0 was ended by SIGKILL")
    assert stops[1 - who].wait(60)
    threads[1 - who].join(60)
    over.set()
    threads[who].join(60)
    assert not stops[who].is_set()
    with pytest.raises(StoppedError, match="the gang has ended: rank 0 was ended by SIGKILL"):
        both[1 - who].check()


def test_the_first_reason_for_an_end_stays(tmp_path: Path, stop: threading.Event) -> None:
    first, second = nodes(tmp_path, stop)
    first.end("the cause")
    second.end("what came of it")
    with pytest.raises(StoppedError, match="the cause"):
        second.check()


def test_nodes_of_several_machines_meet_at_the_first_ones_address(
    tmp_path: Path, stop: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = nodes(tmp_path, stop)
    monkeypatch.setenv("ATELIER_ADDRESS", "10.0.0.7")
    first.arrive()
    monkeypatch.setattr(rendezvous, "_machine", lambda: "another")
    monkeypatch.setenv("ATELIER_ADDRESS", "10.0.0.8")
    second.arrive()
    environment = first.gather(RUN, lambda _: None)
    assert environment["ATELIER_RENDEZVOUS"].startswith("tcp://10.0.0.7:")
    assert "GLOO_SOCKET_IFNAME" not in environment and second.follow() == (RUN, environment)


def test_ranks_are_shared_evenly_or_refused() -> None:
    place = NodePlace(id="g", index=0, pools=("a", "b", "c"))
    assert place.share(6) == 2
    with pytest.raises(AtelierError, match="4 ranks do not divide over 3 nodes; 6 would"):
        place.share(4)


def test_a_place_survives_its_way_through_a_runs_parameters() -> None:
    place = NodePlace(id="g", index=1, pools=("a", "b"), patience_s=7.0)
    assert NodePlace.model_validate_json(place.model_dump_json()) == place


@contextmanager
def saying_what_it_waits_for(node: Rendezvous) -> Iterator[None]:
    """A node that waits for its slots, while the block runs."""
    node.wait_for("2 of 2 cores")
    ended = threading.Event()
    beats = threading.Thread(target=node.watch, args=(threading.Event(), ended))
    beats.start()
    try:
        yield
    finally:
        ended.set()
        beats.join(60)


def test_one_that_waits_for_its_slots_is_waited_for_as_long_as_it_says_so(
    tmp_path: Path, stop: threading.Event
) -> None:
    first, second = nodes(tmp_path, stop, patience_s=2.0)  # a busy machine may not beat for a second
    first.arrive()
    said: list[str] = []
    found: list[Any] = []
    with saying_what_it_waits_for(second):
        gathering = threading.Thread(target=lambda: found.append(first.gather(RUN, said.append)))
        gathering.start()
        gathering.join(4.5)  # twice its patience
        assert gathering.is_alive()
        assert said[-1] == "waits for node 1 of 2 (pool b) (waits for 2 of 2 cores)"
        second.arrive()
        gathering.join(60)
    assert found and "ATELIER_RENDEZVOUS" in found[0]


def test_one_that_falls_silent_while_it_waits_for_its_slots_is_given_up(
    tmp_path: Path, stop: threading.Event
) -> None:
    first, second = nodes(tmp_path, stop, patience_s=0.4)
    first.arrive()
    with saying_what_it_waits_for(second):
        while not list(tmp_path.rglob("waiting-1.json")):
            time.sleep(0.01)
    with pytest.raises(AtelierError, match=r"node 1 of 2 \(pool b\) did not arrive"):
        first.gather(RUN, lambda _: None)
