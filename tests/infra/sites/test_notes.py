"""Notes of orders between sites: permitted senders, policies, and invalid notes."""

import json
import random
from pathlib import Path
from typing import Any

import grpc
import pytest

from atelier.engine.config.base import Json, canonical
from atelier.engine.config.error import AtelierError
from atelier.engine.io.storage import names
from atelier.infra.sites import desk as desk_module
from atelier.infra.sites import note_cache, notes
from atelier.infra.sites.agent import Agent
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.desk import (
    Note,
    OrderDesk,
    OrderedProduct,
    OrderedTask,
    Reply,
    text_of,
)
from atelier.infra.sites.incoming import Arrival, NotTaken
from atelier.infra.sites.kinds import Item
from atelier.infra.sites.notes import MOST_OPEN, MOST_UNKNOWN, Notes
from atelier.infra.sites.policy import EVERYTHING, Policies, SitePolicy, is_below
from tests.infra.sites.agents import friends
from tests.infra.sites.orders import cancellation, large, order, reply


def audit(folder: Path, name: str) -> Audit:
    (folder / f"{name}-log").mkdir(parents=True, exist_ok=True)
    return Audit(folder / f"{name}-log" / "audit.jsonl")


def taken(notes: Notes, data: bytes, sender: str) -> bool | None:
    noted = list[bool]()
    notes.take(notes.item(data, sender), Arrival(sender, noted.append))
    return noted[-1] if noted else None


class Two:
    """The notes at home `a` and at `b`, carried by hand."""

    def __init__(self, folder: Path) -> None:
        self.desks = {name: OrderDesk(str(folder / name)) for name in "ab"}
        self.notes = {name: Notes(str(folder / name), name, audit(folder, name)) for name in "ab"}

    def take(self, reader: str, data: bytes, sender: str) -> bool | None:
        """Whether it is new; None where a newer one is here."""
        return taken(self.notes[reader], data, sender)

    def waiting(self, sender: str, reader: str, *known: str) -> list[Item[Note]]:
        groups = self.notes[sender].groups(reader, lambda key: key not in known)
        return [item for group in groups for item in group]

    def carry(self, sender: str, reader: str) -> None:
        for item in self.waiting(sender, reader):
            self.take(reader, item.text, sender)


def test_an_order_crosses_its_answers_come_back_and_the_last_one_counts(tmp_path: Path) -> None:
    two, asked = Two(tmp_path), order()
    two.desks["a"].put(asked)
    two.carry("a", "b")
    assert [*two.desks["b"].orders()] == [asked]
    for number, state in enumerate(("running", "running", "finished"), start=1):
        two.desks["b"].put(reply(asked, number, state))
        two.carry("b", "a")
        two.carry("b", "a")  # again: nothing happens
    two.take("a", text_of(reply(asked, 2)), "b")  # an old one comes late
    found = two.desks["a"].reply(asked.id)
    assert found is not None and (found.number, found.state) == (3, "finished")
    assert not two.waiting("a", "b")  # what has ended is not sent again


def test_a_cancellation_follows_its_order(tmp_path: Path) -> None:
    two, asked = Two(tmp_path), order()
    two.desks["a"].put(asked)
    two.desks["a"].put(cancellation(asked))
    two.carry("a", "b")
    assert two.desks["b"].is_cancelled(asked.id)


@pytest.mark.parametrize(
    ("note", "sender", "why"),
    [
        (order(), "c", "the order is of a to b, and c sends it"),
        (order("a", "c"), "a", "the order is of a to c, and a sends it"),
        (reply(order("a", "b", "known")), "a", "is not an order between a and b"),  # b replies, not home
        (reply(order("a", "b", "other")), "a", "there is no order"),
        (cancellation(order("a", "b", "known")), "c", "is not an order between c and b"),
        (cancellation(order("a", "b", "other")), "a", "there is no order"),  # it may come before the order
        (order("a", "b", "known").model_copy(update={"flow": "distill"}), "a", "differs from the one here"),
    ],
)
def test_a_note_that_is_not_its_senders_is_not_taken(
    tmp_path: Path, note: Note, sender: str, why: str
) -> None:
    two, known = Two(tmp_path), order("a", "b", "known")
    two.desks["b"].put(known)
    with pytest.raises(NotTaken, match=why):
        two.take("b", text_of(note), sender)
    assert [*two.desks["b"].orders()] == [known] and two.desks["b"].reply(known.id) is None
    assert not two.desks["b"].is_cancelled(known.id)


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_or_hostile_note_is_one_line_and_leaves_nothing(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    two = Two(tmp_path)
    document: dict[str, Any] = json.loads(text_of(order()))
    hostile: list[Json] = [
        "../../etc", "x" * 64, -1, 1e400, None, [], {"a": {"b": 1}}, "\ud800", True, "Z" * 64, "a/b", 10**30,
    ]  # fmt: skip
    key = draw.choice([*document, "more"])
    if key == "tasks":
        document[key] = draw.choice([{"t": {"task": 1}}, [], {"t": {"task": "curate", "products": {"a": 1}}}])
    elif key == "document":
        document[key] = draw.choice([[], "x", 3])
    elif key == "parallel":
        document[key] = draw.choice([{"shard": -1}, {"strange": 1}, "x"])
    else:
        document[key] = draw.choice([one for one in hostile if one not in (None, document.get(key))])
    text = json.dumps(document).encode()
    if draw.random() < 0.3:
        place = draw.randrange(len(text))
        text = text[:place]
    try:
        two.take("b", text, "a")
    except AtelierError as error:
        assert "\n" not in str(error) and len(str(error)) < 400
        assert not names(str(tmp_path / "b"))
    else:  # text is any text, and a version any version: judged when it runs
        assert key in ("version", "accept_code", "flow"), (key, document[key])


def test_an_order_asks_for_something(tmp_path: Path) -> None:
    document = json.loads(text_of(order())) | {"tasks": {}}
    with pytest.raises(AtelierError, match="tasks: "):
        Two(tmp_path).take("b", json.dumps(document).encode(), "a")


def test_a_note_that_grows_when_it_is_written_out_is_not_taken(tmp_path: Path) -> None:
    """A task state of three bytes is a hundred with its defaults."""
    two, asked = Two(tmp_path), order()
    two.desks["a"].put(asked)
    document = json.loads(text_of(reply(asked))) | {"tasks": {f"t{n}": {} for n in range(40_000)}}
    with pytest.raises(AtelierError, match="bytes"):
        two.take("a", json.dumps(document).encode(), "b")
    with pytest.raises(AtelierError, match="bytes"):
        two.desks["a"].put(Reply.model_validate(document))
    (tmp_path / "a" / "orders" / asked.id / "reply.json").write_bytes(b" " * (3 << 20))
    assert two.desks["a"].reply(asked.id) is None and [*two.desks["a"].orders()] == [asked]


@pytest.mark.parametrize("letter", ["\u0436", '"', "\x01"])
def test_a_large_note_comes_to_a_site_that_is_not_called_whatever_its_letters(
    tmp_path: Path, letter: str
) -> None:
    a, b = friends(tmp_path, silent="b").values()
    size = (desk_module.MOST - 10_000) // len(canonical(letter)[1:-1])
    asked = order(document={"note": letter * size})
    OrderDesk(a.mail).put(asked)
    Policies(b.keys.folder).set(SitePolicy(site="a", tasks=("all",)))
    with a.served():
        Agent(b.keys, b.mail).exchange("a")
    assert OrderDesk(b.mail).order(asked.id) == asked


def test_a_site_that_is_not_called_hears_the_newest_answer_among_many_old_ones(tmp_path: Path) -> None:
    two = Two(tmp_path)
    for number in range(150):
        old = order(nonce=str(number))
        for desk in two.desks.values():
            desk.put(old)
            desk.put(reply(old, 1, "finished"))
    new = order(nonce="new")
    for desk in two.desks.values():
        desk.put(new)
    two.desks["b"].put(reply(new, 1, "finished"))
    two.carry("b", "a")
    assert two.desks["a"].is_over(new.id)


def test_a_peer_has_a_limited_number_of_open_orders(tmp_path: Path) -> None:
    two = Two(tmp_path)
    for number in range(MOST_OPEN):
        two.take("b", text_of(order(nonce=str(number))), "a")
    with pytest.raises(NotTaken, match=f"{MOST_OPEN} of them open"):
        two.take("b", text_of(order(nonce="more")), "a")


def test_the_orders_of_a_peer_have_a_limited_number_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that have ended count as well; one that is here takes no more room."""
    two, first = Two(tmp_path), large("first", 1000)
    size = len(text_of(first))
    monkeypatch.setattr(notes, "MOST_BYTES", 3 * size)
    for one in (first, large("2", 1000), large("3", 1000)):
        two.take("b", text_of(one), "a")
        two.desks["b"].put(reply(one, 1, "refused"))
    assert two.take("b", text_of(first), "a") is False
    why = f"{3 * size} bytes of orders of a are kept here, {size} more would be above {3 * size}; .* a week"
    with pytest.raises(NotTaken, match=why) as refused:
        two.take("b", text_of(large("4", 1000)), "a")
    assert refused.value.when == "early"
    assert two.take("b", text_of(order("c", "b")), "c")  # of another peer


def test_a_site_that_runs_nothing_for_a_peer_takes_no_large_order_of_it(tmp_path: Path) -> None:
    policies, small = Policies(tmp_path / "keys"), large("small", 1000)
    policies.set(SitePolicy(site="a", hourly=1.0))  # lets nothing run
    found = Notes(str(tmp_path / "b"), "b", audit(tmp_path, "b"), policies.runs_any)
    big = large("big", MOST_UNKNOWN)
    with pytest.raises(NotTaken, match=r"at most 65536 are taken .* at b: atelier site allow a --tasks"):
        taken(found, text_of(big), "a")
    assert taken(found, text_of(small), "a")  # it gets its refusal
    policies.set(SitePolicy(site="a", tasks=("curate",)))
    assert taken(found, text_of(big), "a")


def test_of_an_order_that_is_over_and_of_many_that_are_not_little_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two, read = Two(tmp_path), list[str]()
    desk, take = OrderDesk(str(tmp_path / "b")), desk_module.note_of
    monkeypatch.setattr(desk_module, "note_of", lambda *about: read.append(about[2]) or take(*about))
    for number in range(30):
        two.take("b", text_of(large(str(number), 200_000)), "a")
    assert len([*desk.listed()]) == 30
    assert 200_000 < desk._cache._bytes <= note_cache.MOST_HELD
    for about in desk.listed():
        asked = desk.order(about.order)
        assert asked is not None and asked.id == about.order
        desk.put(reply(asked, 1, "refused"))
        assert desk.is_over(about.order)
    assert desk._cache._bytes == 0
    read.clear()
    assert all(desk.is_over(about.order) for about in desk.listed()) and not read
    assert not two.waiting("b", "a", *(about.digest for _, about in desk.waiting_for("a")))
    assert len([*desk.orders()]) == 30


def test_what_was_removed_is_remembered_no_more(tmp_path: Path) -> None:
    two, asked = Two(tmp_path), order()
    desk = two.desks["b"]
    desk.put(asked)
    assert [about.order for about in desk.listed()] == [asked.id] and desk.order(asked.id) == asked
    desk.forget(asked.id)
    assert not [*desk.listed()]
    assert not desk._cache._known and desk._cache._bytes == 0
    assert desk.order(asked.id) is None


def test_an_equal_note_has_one_line_in_the_audit_log_however_often_it_is_sent(tmp_path: Path) -> None:
    """Also where the agent that sends it begins anew."""
    a, b = friends(tmp_path).values()
    asked = order()
    OrderDesk(a.mail).put(asked)
    OrderDesk(a.mail).put(cancellation(asked))
    with b.served():
        for _ in range(3):
            Agent(a.keys, a.mail).exchange("b")
    there = OrderDesk(b.mail)
    assert there.order(asked.id) == asked and there.is_cancelled(asked.id)
    for site, what in ((a, "sent"), (b, "received")):
        lines = site.audited()
        kinds = [line["kind"] for line in lines if line["what"] == what]
        assert kinds == ["order", "cancellation"]


@pytest.mark.parametrize("silent", ["", "a"])
def test_the_replies_to_an_order_have_a_line_for_each_state_of_its_tasks(tmp_path: Path, silent: str) -> None:
    """Not one each time that a step was made; the same number at both sites, whichever begins anew."""
    a, b = friends(tmp_path, silent=silent).values()
    asked = order()
    for site in (a, b):
        OrderDesk(site.mail).put(asked)
    at, peer = (a, b) if silent else (b, a)
    tasks = [
        {"curate": {"state": state, "progress": step}} for state in ("running", "done") for step in (1, 2)
    ]
    for number, each in enumerate(tasks, start=1):
        OrderDesk(b.mail).put(reply(asked, number, tasks=each))
        with peer.served():
            Agent(at.keys, at.mail).exchange(peer.name)
        there = OrderDesk(a.mail).reply(asked.id)
        assert there is not None and there.number == number
    sent, received = (
        [line["sha256"] for line in site.audited() if line["kind"] == "reply"] for site in (b, a)
    )
    assert sent == received and len({*sent}) == len(sent) == 2


@pytest.mark.parametrize("what", ["sent", "received"])
def test_a_note_that_arrived_before_an_agent_was_killed_has_its_lines_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Killed before it wrote the line; it is told once more, and begins anew again and again."""
    a, b = friends(tmp_path).values()
    asked, add = order(), Audit.add

    def killed(audit: Audit, happened: str, **about: Json) -> None:
        if happened == what:
            raise InterruptedError
        add(audit, happened, **about)

    OrderDesk(a.mail).put(asked)
    with b.served():
        with monkeypatch.context() as patch, pytest.raises((InterruptedError, grpc.RpcError)):
            patch.setattr(Audit, "add", killed)
            Agent(a.keys, a.mail).exchange("b")
        assert OrderDesk(b.mail).order(asked.id) == asked
        for _ in range(3):
            Agent(a.keys, a.mail).exchange("b")
    for site, line_of in ((a, "sent"), (b, "received")):
        lines = site.audited()
        assert [line["kind"] for line in lines if line["what"] == line_of] == ["order"]


def test_an_order_that_a_peer_does_not_take_is_said(tmp_path: Path) -> None:
    a, b = friends(tmp_path).values()
    asked = large("big", MOST_UNKNOWN)
    OrderDesk(a.mail).put(asked)
    agent = Agent(a.keys, a.mail)
    with b.served():
        agent.exchange("b")
    [line] = agent._refusals.lines("b")
    assert line.startswith(f"b does not take the order {asked.id[:16]}: ") and "site allow a" in line


def test_without_a_policy_a_site_runs_nothing_and_says_what_would_let_it(tmp_path: Path) -> None:
    """All of it, in one line that can be typed: what it has stays."""
    product = OrderedProduct(kind="corpus", fingerprint="f" * 64, is_sent=True)
    curate = OrderedTask(task="curate", products={"corpus": product})
    two = {"curate": curate, "fit": OrderedTask(task="train", products={})}
    asked = order().model_copy(update={"tasks": two})
    assert SitePolicy(site="a", tasks=("encode",), sends=("model",)).refusal(asked) == (
        "b runs no task curate or train, sends no files of a corpus, for a; at b: atelier site allow a"
        " --tasks encode,curate,train --send model,corpus"
    )
    policy = SitePolicy(site="a", tasks=("curate", "train"), sends=(EVERYTHING,))
    assert policy.refusal(asked) == ""


@pytest.mark.parametrize(
    "value",
    [
        "/etc/passwd", "~/x", "./x", "../x", "a/../../x", "file:///etc", "s3://bucket",
        "simplecache::file:///x", "stdlib:../../x", "file:~/x", "local:~/x", "https://h/%2e%2e/x",
        "s3://open/%252e%252e/x", "stdlib:/etc", "\\\\host\\x", "C:\\x", "a\\..\\b", "hf://datasets/x",
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", ["value", "list", "key", "deep"])
def test_a_configuration_names_no_place_that_a_policy_does_not_have(value: str, place: str) -> None:
    documents: dict[str, Json] = {
        "value": {"data": {"source": value}},
        "list": {"data": {"files": ["stdlib", value]}},
        "key": {"data": {value: 1}},
        "deep": {"data": {"all": [{"x": [value]}]}},
    }
    policy = SitePolicy(site="a", tasks=(EVERYTHING,), reads=("/data/text", "s3://open"))
    found = policy.refusal(order(document=documents[place]))
    assert "b reads no such place: " in found and "--read" in found and "/data/text" not in found


def test_what_a_policy_has_and_what_is_no_place_is_let_through() -> None:
    policy = SitePolicy(site="a", tasks=(EVERYTHING,), reads=("/data/text", "s3://open"))
    fine = [
        "/data/text/*.txt",
        "s3://open/x",
        "stdlib-prose:json,email",
        "def f(x): return x / 2",
        "a: b",
        "",
    ]
    assert not policy.refusal(order(document={"x": fine}))
    assert not is_below("/data/text/../secret", "/data/text") and not is_below("/data/textile", "/data/text")
