"""A peer that sends invalid calls in the exchange."""

import errno
import inspect
import json
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from atelier.engine.extensions.sites.messages import BODY
from atelier.infra.sites import audit as audits
from atelier.infra.sites import exchange, messages, refusals
from atelier.infra.sites.agent import Agent
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.desk import OrderDesk
from atelier.infra.sites.exchange import Result
from atelier.infra.sites.incoming import Incoming, NotTaken
from atelier.infra.sites.messages import Messages
from atelier.infra.sites.notes import Notes
from atelier.infra.sites.refusals import Refusals, RetrySchedule, ending
from atelier.infra.sites.transfer import BLOCK, CallError
from tests.infra.sites.agents import TRAJECTORY, Site, answered, make_due
from tests.infra.sites.orders import order
from tests.infra.sites.test_agent import DATA, two
from tests.infra.sites.test_files import Sites


class Direct:
    """A link to an agent in this process; `answer` gets each of its answers and says what comes of it."""

    block = BLOCK

    def __init__(self, to: Agent, own: str) -> None:
        self.to, self.own, self.calls = to, own, list[str]()
        self.answer: Callable[[str, bytes], bytes] = lambda call, answer: answer
        self.given: list[Generator[bytes, None, None]] = []

    def ask(self, call: str, request: bytes, blocks: Iterable[bytes], timeout: float) -> bytes:
        self.calls.append(call)
        try:
            return self.answer(call, answered(self.to, call, request, self.own, *blocks))
        except Exception as error:
            raise ending(error, self.own, self.to._audit) from None

    def get(self, request: bytes, timeout: float) -> Generator[bytes, None, None]:
        self.calls.append("Get")
        self.given.append(self._blocks(request))
        return self.given[-1]

    def _blocks(self, request: bytes) -> Generator[bytes, None, None]:
        yield from self.to._exchange.answer("Get", iter((request,)), self.own)

    def close(self) -> None: ...


class Pair:
    """The sites a and b of a training, their agents, and a's link to b."""

    def __init__(self, folder: Path) -> None:
        self.a, self.b = two(folder)
        self.agents = {site.name: Agent(site.keys, site.mail) for site in (self.a, self.b)}
        self.link = Direct(self.agents["b"], "a")

    def send(self, kind: str = "message") -> None:
        exchange = self.agents["a"]._exchange
        exchange.send(self.link, "b", exchange.kinds[kind])

    def fetch(self, kind: str = "message") -> None:
        exchange = self.agents["a"]._exchange
        exchange.fetch(self.link, "b", exchange.kinds[kind])

    def messages(self, site: str) -> Messages:
        kind = self.agents[site]._exchange.kinds["message"]
        assert isinstance(kind, Messages)
        return kind


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def whats(site: Site) -> list[str]:
    return [line["what"] for line in site.audited()]


def lists(agent: Agent, kind: str, *results: Result) -> list[str]:
    """The keys that an agent lists for its only peer, which says what became of those before."""
    peer = "b" if agent.site == "a" else "a"
    said = [one.model_dump(mode="json") for one in results]
    answer = json.loads(answered(agent, "List", json.dumps({"kind": kind, "results": said}).encode(), peer))
    return [item["key"] for group in answer["groups"] for item in group]


def test_of_a_body_that_is_here_already_nothing_has_crossed(pair: Pair) -> None:
    pair.b.send(1, DATA)
    sizes = []
    for _ in range(2):
        pair.fetch()
        [result] = pair.agents["a"]._exchange._results["b", "message"]
        sizes.append(result.size)
        pair.messages("b")._sent.clear()
        pair.agents["a"]._exchange._results.clear()
    assert sizes == [len(DATA), 0]


@pytest.mark.parametrize("answer", [b'{"took": null}', b'{"took": false}', b'{"took": "7"}', b"{", b"\xff"])
def test_what_was_pushed_counts_whatever_the_peer_says_of_it(pair: Pair, answer: bytes) -> None:
    pair.a.send(1, DATA)
    pair.link.answer = lambda call, found: answer if call == "Put" else found
    with suppress(CallError):
        pair.send()
    assert whats(pair.a) == ["sent"]
    assert pair.agents["a"]._audit.last_hour("b") == len(DATA)


def test_of_a_listed_item_one_result_counts(pair: Pair) -> None:
    pair.a.send(1, DATA)
    agent = pair.agents["a"]
    [key] = lists(agent, "message")
    refused = Result(key=key, code=grpc.StatusCode.FAILED_PRECONDITION.name)
    lists(agent, "message", *[refused] * 999)
    assert whats(pair.a) == ["not taken"] and len(agent._refusals.lines("b")) == 1


def test_lines_of_what_a_peer_does_not_take_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "MOST_REFUSED", 5)
    monkeypatch.setattr(refusals, "MOST_LINES", 5)
    log, found = Audit(tmp_path / "audit.jsonl"), Refusals()
    for number in range(20):
        log.add("not taken", who="b", why="x" * 10_000)
        found.never("b", f"round {number}", NotTaken("no"))
    lines = log.path.read_text().splitlines()
    assert len(lines) == 5 and len(lines[0]) < 1000 and len(found.lines("b")) == 5


def test_what_was_over_for_a_reader_is_sent_again_when_it_begins_anew(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lost its checkpoints; and what is offered again meanwhile has no line."""
    monkeypatch.setattr(messages, "OFFER_AGAIN_S", 0.0)
    pair.a.send(1, DATA)
    with monkeypatch.context() as patch:

        def over(*about: object) -> None:
            raise NotTaken("round 1 is over", "over")

        patch.setattr(Incoming, "judge", over)
        for _ in range(3):
            pair.send()
        assert whats(pair.a) == ["not taken"]
    pair.messages("a").begins_anew("b", TRAJECTORY)
    pair.send()
    assert pair.b.box.has(1, "a")


def test_notes_that_were_refused_are_listed_after_those_that_were_not(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "ROOM", 1)  # one note in a list
    monkeypatch.setattr(Notes, "early_s", 1e-6)
    desk, agent = OrderDesk(pair.a.mail), pair.agents["a"]
    for number in range(3):
        desk.put(order(nonce=str(number)))
    keys, seen = lists(agent, "note"), list[str]()
    for _ in range(3):
        seen += keys
        early = [Result(key=key, code=grpc.StatusCode.ABORTED.name) for key in keys]
        keys = lists(agent, "note", *early)
    assert len(set(seen)) == 3


def test_results_are_kept_until_the_peer_has_heard_them(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.b.send(1, DATA)
    pair.fetch()

    def lost(*about: object) -> bytes:
        raise CallError(grpc.StatusCode.UNAVAILABLE, "lost")

    with monkeypatch.context() as patch, pytest.raises(CallError):
        patch.setattr(Direct, "ask", lost)
        pair.fetch()
    pair.fetch()
    assert pair.messages("b")._sent["a", TRAJECTORY] == 1


def test_who_hears_no_results_has_no_damaged_body_fetched_at_every_look(pair: Pair) -> None:
    pair.b.send(1, DATA)
    body = Path(pair.b.box.folder(1, "b")) / BODY
    body.write_bytes(DATA[:-1] + b"!")
    for _ in range(4):
        with suppress(NotTaken):
            pair.fetch()
        pair.agents["a"]._exchange._results.clear()
    assert pair.link.calls.count("Get") == 1
    body.write_bytes(DATA)
    make_due(pair.agents["a"]._exchange.later["b"])
    pair.fetch()
    assert pair.a.box.has(1, "b") and not pair.agents["a"]._exchange.later["b"]._known


@pytest.mark.parametrize("kind", ["meeting", "file"])
def test_who_can_have_nothing_of_a_kind_is_not_asked_for_it(pair: Pair, kind: str) -> None:
    """Neither training has a membership that changes, and there is no order."""
    pair.fetch(kind)
    assert not pair.link.calls
    OrderDesk(pair.a.mail).put(order())
    pair.fetch(kind)
    assert pair.link.calls == (["List"] if kind == "file" else [])


def test_a_name_of_a_file_is_short_whatever_its_path(tmp_path: Path) -> None:
    made = Sites(tmp_path)
    entry = made.head().entry.model_copy(update={"path": "x" * 100_000})
    assert len(made.item(made.head(entry=entry)).name) < 200


def test_what_has_no_line_is_not_listed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    OrderDesk(pair.a.mail).put(order())
    add = Audit._add

    def full(audit: Audit, what: str, about: Any) -> None:
        if what == "fetched":
            raise OSError(errno.ENOSPC, "No space left on device")
        add(audit, what, about)

    monkeypatch.setattr(Audit, "_add", full)
    with pytest.raises(OSError, match="No space"):
        lists(pair.agents["a"], "note")


def test_the_key_of_a_message_says_nothing_of_its_file(pair: Pair) -> None:
    pair.a.send(1, DATA)
    [key] = lists(pair.agents["a"], "message")
    assert len(key) == 64 and "(" not in key


def test_what_was_too_early_and_comes_damaged_waits_as_long_as_what_is_damaged() -> None:
    later = RetrySchedule[str]()
    later.failed("one", 1.0, is_damaged=False)
    later.failed("one", 30.0, is_damaged=True)
    assert later._known["one"][1] == 30.0


def test_an_answer_that_is_none_has_its_body_pushed_again_only_later(pair: Pair) -> None:
    pair.a.send(1, DATA)
    pair.link.answer = lambda call, answer: b"{" if call == "Put" else answer
    with pytest.raises(CallError) as refused:
        pair.send()
    assert refused.value.code() == grpc.StatusCode.UNKNOWN
    pair.send()
    assert pair.link.calls.count("Put") == 1


def test_a_body_that_is_not_read_to_its_end_is_given_no_longer(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*about: object) -> None:
        next(iter(about[2].blocks))  # type: ignore[attr-defined]
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Incoming, "take", full)
    pair.b.send(1, DATA)
    with pytest.raises(OSError, match="No space"):
        pair.fetch()
    assert inspect.getgeneratorstate(pair.link.given[0]) == inspect.GEN_CLOSED
