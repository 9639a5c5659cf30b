"""Files of artifacts that are damaged, unreadable or cut off: they are named, retried, and block no other."""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from atelier.engine.config.base import Json
from atelier.engine.config.error import DamageError
from atelier.infra.sites import exchange
from atelier.infra.sites.agent import Agent
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.desk import MOST, OrderDesk
from atelier.infra.sites.file_items import FileHead, Files
from atelier.infra.sites.files import offer
from atelier.infra.sites.incoming import NotTaken
from atelier.infra.sites.kinds import Item
from tests.infra.sites.agents import answered, asked, friends, make_due
from tests.infra.sites.orders import large
from tests.infra.sites.test_files import BODY, Sites


def place(agent: Agent, made: Sites) -> Path:
    files = agent._exchange.kinds["file"]
    assert isinstance(files, Files)
    return files.place(made.head())


def test_a_file_that_power_loss_has_emptied_is_made_anew(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    offer(sites.desks["b"], sites.order, sites.artifact, str(sites.address), sites.record)
    path = sites.files["b"].place(sites.head())
    os.truncate(path, 0)
    offer(sites.desks["b"], sites.order, sites.artifact, str(sites.address), sites.record)
    assert path.read_bytes() == BODY


def test_a_damaged_file_is_not_offered_and_its_order_ends_with_its_name(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    (sites.address / sites.head().entry.path).write_bytes(BODY[:-1] + b"!")
    with pytest.raises(DamageError, match=r"store/model/payload-1/model.safetensors: content does not match"):
        offer(sites.desks["b"], sites.order, sites.artifact, str(sites.address), sites.record)
    assert not sites.outgoing()


@pytest.mark.parametrize("of", ["other bytes", "unreadable"])
def test_a_file_that_cannot_be_fetched_is_asked_for_again_later_and_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """Damaged where it was made after it was offered; home, which only dials out, says it once."""
    made = Sites(tmp_path / "orders")
    a, b = friends(tmp_path, silent="a").values()
    a.mail, b.mail = (str(tmp_path / "orders" / name) for name in "ab")
    offer(made.desks["b"], made.order, made.artifact, str(made.address), made.record)
    there, here = ([made.files[name].place(made.head(number)) for number in (0, 1)] for name in "ba")
    there[0].write_bytes(BODY[:-1] + b"!")
    monkeypatch.setattr("atelier.infra.sites.refusals.LASTS_S", 0.0)
    given: list[Path] = []
    blocks_of = exchange.blocks_of

    def counted(path: Path, *place: int) -> Iterator[bytes]:
        given.append(path)
        if path == there[0] and of == "unreadable":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return blocks_of(path, *place)

    with b.served() as at_b:
        agent = Agent(a.keys, a.mail)
        with monkeypatch.context() as patch:
            patch.setattr(exchange, "blocks_of", counted)
            with pytest.raises((NotTaken, grpc.RpcError)):
                agent.exchange("b")
            for _ in range(2):
                agent.exchange("b")
        assert here[1].read_bytes() == b"{}" and given == there
        there[0].write_bytes(BODY)
        later = at_b._exchange.later["a"]
        make_due(later)
        make_due(agent._exchange.later["b"])
        for _ in range(2):
            agent.exchange("b")
    assert here[0].read_bytes() == BODY and not later._known
    said = agent._refusals.lines("b")
    assert len(said) == 2 and "is not taken here: " in said[0] and said[1].endswith(" is accepted now")


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
    path = place(agent, made)
    path.parent.mkdir(parents=True)
    path.write_bytes(BODY[:-1] + b"!")
    pushes, take = list[str](), Files.take

    def counted(files: Files, item: Item[FileHead], *given: Any) -> Json:
        pushes.append(item.head.entry.path)
        return take(files, item, *given)

    monkeypatch.setattr(Files, "take", counted)
    with a.served():
        for _ in range(3):
            agent.exchange("a")
        assert len(pushes) == 1 and len(agent._refusals.lines("a")) == 1
        path.write_bytes(BODY)
        later = agent._exchange.later["a"]
        make_due(later)
        agent.exchange("a")
    assert not later._known
    assert place(Agent(a.keys, a.mail), made).read_bytes() == BODY


def test_a_file_that_cannot_be_read_where_it_is_sent_holds_up_no_other(tmp_path: Path) -> None:
    made = Sites(tmp_path / "orders")
    a, b = friends(tmp_path).values()
    a.mail, b.mail = (str(tmp_path / "orders" / name) for name in "ab")
    offer(made.desks["b"], made.order, made.artifact, str(made.address), made.record)
    there, here = ([made.files[name].place(made.head(number)) for number in (0, 1)] for name in "ba")
    there[0].unlink()
    there[0].mkdir()
    agent = Agent(b.keys, b.mail)
    with a.served():
        with pytest.raises((OSError, grpc.RpcError)):
            agent.exchange("a")
        assert here[1].read_bytes() == b"{}" and not here[0].exists()
        agent.exchange("a")  # not asked for again at once
        there[0].rmdir()
        there[0].write_bytes(BODY)
        make_due(agent._exchange.later["a"])
        agent.exchange("a")
    assert here[0].read_bytes() == BODY


def test_a_list_has_no_more_than_a_frame_carries(tmp_path: Path) -> None:
    """And at least one item."""
    a, _ = friends(tmp_path, silent="b").values()
    desk, agent = OrderDesk(a.mail), Agent(a.keys, a.mail)
    for number in range(3):
        desk.put(large(str(number), MOST - 10_000))
    (found,) = json.loads(answered(agent, "List", asked("note"), "b"))["groups"]
    assert len(found) == 1
    [line] = a.audited()
    assert line["what"] == "fetched"


def test_a_home_that_only_dials_out_fetches_more_files_than_are_in_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the first is not given; when all have come nothing more is listed, however many are kept."""
    monkeypatch.setattr(exchange, "MOST_ITEMS", 1)
    made = Sites(tmp_path / "orders")
    a, b = friends(tmp_path, silent="a").values()
    a.mail, b.mail = (str(tmp_path / "orders" / name) for name in "ab")
    offer(made.desks["b"], made.order, made.artifact, str(made.address), made.record)
    first, second = (made.files["a"].place(made.head(number)) for number in (0, 1))
    agent, path = Agent(a.keys, a.mail), Files.path

    def failing(files: Files, item: Item[FileHead], peer: str) -> Path:
        if item.head == made.head():
            raise NotTaken("no such file")
        return path(files, item, peer)

    with b.served() as at_b:
        with monkeypatch.context() as patch:
            patch.setattr(Files, "path", failing)
            with pytest.raises(grpc.RpcError):
                agent.exchange("b")
            agent.exchange("b")
            assert second.exists() and not first.exists()
        make_due(at_b._exchange.later["a"])
        for _ in range(3):
            agent.exchange("b")
        assert first.exists()
        assert json.loads(answered(at_b, "List", asked("file"), "a")) == {"groups": []}


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
        found = [
            line["path"] for line in site.audited() if line["what"] == line_of and line["kind"] == "file"
        ]
        assert sorted(found) == sorted(entry.path for entry in made.record.files)
