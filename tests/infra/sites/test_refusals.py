"""An agent reports which messages of one site the other refuses."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import grpc
import pytest

from atelier.engine.config.error import DamageError
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.infra.sites import refusals, transfer
from atelier.infra.sites.agent import Agent
from atelier.infra.sites.exchange import MOST_ITEMS, AnyKind, SiteExchange
from atelier.infra.sites.incoming import NotTaken
from atelier.infra.sites.refusals import DIFFERS, CompletedKeys, Refusals, RetrySchedule
from atelier.infra.sites.transfer import CallError
from tests.infra.sites.agents import Site, asking, friends, until
from tests.infra.sites.test_agent import DATA, head, two

OTHER = "cd" * 32


def is_said(said: list[str], line: str) -> Callable[[], bool]:
    return lambda: line in said


def begun(site: Site, trajectory: str) -> Mailbox:
    """The mailbox of a training of a and b at a site, with this site's first message."""
    box = Mailbox(site.mail, trajectory)
    box.open(site.name, ["a", "b"])
    box.send(1, site.name, [b"weights"], {}, 0, codec=Codec())
    return box


@pytest.mark.parametrize("silent", ["", "b"])
def test_a_training_that_a_peer_does_not_have_is_said_once_when_that_has_lasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    """Where the peer can be called, and where it calls alone; and that it goes on, when it does."""
    monkeypatch.setattr(refusals, "LASTS_S", 0.5)
    a, b = friends(tmp_path, silent=silent).values()
    begun(a, "ab" * 32)
    begun(b, OTHER)
    with a.served() as at_a, b.served() as at_b, asking(at_b if silent else at_a) as said:
        expected = f"b does not take round 1 of {'ab' * 8}: it is not trained there{DIFFERS}"
        if silent:
            expected = f"a: round 1 of {'ab' * 8} is not taken here: it is not trained here{DIFFERS}"
        until(is_said(said, expected), "it is not said")
        begun(b, "ab" * 32)
        peer = "a" if silent else "b"
        until(
            is_said(said, f"{peer}: round 1 of {'ab' * 8} is accepted now"), "that it is accepted is not said"
        )
        assert said.count(expected) == 1
        assert all("\n" not in line for line in said)


def test_what_a_peer_will_never_take_is_said_at_once(tmp_path: Path) -> None:
    a, b = friends(tmp_path).values()
    begun(a, "ab" * 32)
    Mailbox(b.mail, "ab" * 32).open("b", ["b", "c"])
    with a.served() as at_a, b.served(), asking(at_a) as said:
        expected = (
            f"b does not take round 1 of {'ab' * 8}: failed_precondition: a takes no part in {'ab' * 8}"
        )
        until(is_said(said, expected), "it is not said")
    assert said.count(expected) == 1


def test_a_peer_fills_no_memory_with_what_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a peer answers: this one says more than it was asked for."""
    monkeypatch.setattr(refusals, "MOST_EARLY", 5)
    found: list[dict[str, object]] = []

    def listed(exchange: SiteExchange, kind: AnyKind, *about: object) -> dict[str, object]:
        return {"groups": [[one] for one in found] if kind.name == "message" else []}

    monkeypatch.setattr(SiteExchange, "_list", listed)
    a, b = two(tmp_path, "a")
    agent = Agent(a.keys, a.mail)
    with b.served():
        for number in range(7):
            about = head("b", DATA, trajectory=f"{number:064x}")
            found.append({"key": str(number), "head": about})
        agent.exchange("b")
        found = found[:1] * (MOST_ITEMS + 1)
        with pytest.raises(DamageError, match="at most 1000 items"):
            agent.exchange("b")
    agent.stop()
    assert [training[-2:] for _, training in agent._refusals._early] == ["02", "03", "04", "05", "06"]
    settled = CompletedKeys[int](3)
    for number in (1, 2, 1, 3, 4):
        settled.add(number)
    assert [number for number in range(6) if number in settled] == [2, 3, 4]


def test_a_refusal_that_does_not_last_and_what_is_over_are_not_said() -> None:
    found = Refusals()
    found.early("b", "t", "round 1", NotTaken("round 1 is not the next one", "early", "round"))
    found.settled("b", "t")
    found.never("b", "round 1", CallError(transfer.OVER, "was needed once, says another version"))
    assert not found.lines("b")


def test_a_refusal_is_said_of_each_message_that_it_holds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "LASTS_S", 0.0)
    found = Refusals()
    for what in ("round 1", "round 1", "round 2"):
        found.early("b", "t", what, CallError(grpc.StatusCode.ABORTED, "the next one is missing"))
    assert found.lines("b") == [
        "b does not take round 1: aborted: the next one is missing",
        "b does not take round 2: aborted: the next one is missing",
    ]
    assert not found.lines("b")


def test_what_comes_damaged_again_and_again_is_tried_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is damaged where it was made crosses a dozen times in an hour, and not 360 times."""
    now, tries = [0.0], list[float]()
    monkeypatch.setattr("atelier.infra.sites.refusals.time.monotonic", lambda: now[0])
    later = RetrySchedule[str]()
    while now[0] < 3600:
        if later.is_due("file"):
            tries.append(now[0])
            later.failed("file", 10.0, is_damaged=True)
        assert later.is_due("another")
        now[0] += 1.0
    assert tries[:5] == [0, 10, 30, 70, 150] and max(b - a for a, b in pairwise(tries)) == 600
    later.succeeded("file")
    assert later.is_due("file")
    for _ in range(3):  # waits for something
        later.failed("file", 10.0, is_damaged=False)
        assert not later.is_due("file")
        now[0] += 10.0
        assert later.is_due("file")
