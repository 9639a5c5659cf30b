"""Files of artifacts that are damaged, cannot be read or were cut off: they are named and asked for again,
and hold up no other.
"""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from atelier.engine.config.base import Json
from atelier.engine.config.error import DamageError
from atelier.infra.sites import file_calls, methods
from atelier.infra.sites.agent import Agent
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.desk import OrderDesk
from atelier.infra.sites.files import offer
from tests.infra.sites.agents import friends, make_due
from tests.infra.sites.test_files import BODY, Sites


def test_a_file_that_power_loss_has_emptied_is_made_anew(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    offer(sites.desks["b"], sites.order, sites.artifact, str(sites.address), sites.record)
    path = sites.files["b"].path(sites.head())
    os.truncate(path, 0)
    offer(sites.desks["b"], sites.order, sites.artifact, str(sites.address), sites.record)
    assert path.read_bytes() == BODY


def test_a_damaged_file_is_not_offered_and_its_order_ends_with_its_name(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    (sites.address / sites.head().entry.path).write_bytes(BODY[:-1] + b"!")
    with pytest.raises(DamageError, match=r"store/model/payload-1/model.safetensors: content does not match"):
        offer(sites.desks["b"], sites.order, sites.artifact, str(sites.address), sites.record)
    assert not [*sites.files["b"].outgoing("a")]


@pytest.mark.parametrize("of", ["other bytes", "unreadable"])
def test_a_file_that_cannot_be_fetched_is_asked_for_again_later_and_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """Damaged where it was made after it was offered; home, which only dials out, says it once."""
    made = Sites(tmp_path / "orders")
    a, b = friends(tmp_path, silent="a").values()
    a.mail, b.mail = (str(tmp_path / "orders" / name) for name in "ab")
    offer(made.desks["b"], made.order, made.artifact, str(made.address), made.record)
    there, here = ([made.files[name].path(made.head(number)) for number in (0, 1)] for name in "ba")
    there[0].write_bytes(BODY[:-1] + b"!")
    monkeypatch.setattr("atelier.infra.sites.refusals.LASTS_S", 0.0)
    given: list[Path] = []
    blocks_of = file_calls.blocks_of

    def counted(path: Path, offset: int) -> Iterator[bytes]:
        given.append(path)
        if path == there[0] and of == "unreadable":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return blocks_of(path, offset)

    with b.served():
        agent = Agent(a.keys, a.mail)
        with monkeypatch.context() as patch:
            patch.setattr(file_calls, "blocks_of", counted)
            for _ in range(3):
                agent.exchange("b")
        assert here[1].read_bytes() == b"{}" and given == there
        there[0].write_bytes(BODY)
        later = agent._files._later["b"]
        make_due(later)
        agent.exchange("b")
    assert here[0].read_bytes() == BODY and not later._known
    said = agent._refusals.lines("b")
    assert len(said) == 2 and "is not taken here: " in said[0] and said[1].endswith(" goes on")


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
    path = agent._files._files.path(made.head())
    path.parent.mkdir(parents=True)
    path.write_bytes(BODY[:-1] + b"!")
    pushes: list[str] = []
    push = file_calls.push

    def counted(channel: object, call: str, begin: bytes, blocks: Iterator[bytes], size: int) -> None:
        pushes.append(call)
        push(channel, call, begin, blocks, size)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(file_calls, "push", counted)
    with a.served():
        for _ in range(3):
            agent.exchange("a")
        assert len(pushes) == 1 and agent._refusals._early
        path.write_bytes(BODY)
        later = agent._files._later["a"]
        make_due(later)
        agent.exchange("a")
    assert not later._known
    assert Path(str(Agent(a.keys, a.mail)._files._files.path(made.head()))).read_bytes() == BODY


def test_a_file_that_cannot_be_read_where_it_is_sent_holds_up_no_other(tmp_path: Path) -> None:
    made = Sites(tmp_path / "orders")
    a, b = friends(tmp_path).values()
    a.mail, b.mail = (str(tmp_path / "orders" / name) for name in "ab")
    offer(made.desks["b"], made.order, made.artifact, str(made.address), made.record)
    there, here = ([made.files[name].path(made.head(number)) for number in (0, 1)] for name in "ba")
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
        agent._files._later.clear()
        agent.exchange("a")
    assert here[0].read_bytes() == BODY


def test_home_hears_of_the_files_that_it_waits_for_however_many_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_calls, "MOST_HEADS", 2)
    made = Sites(tmp_path / "orders")
    agent = Agent(friends(tmp_path)["b"].keys, str(tmp_path / "orders" / "b"))
    offer(made.desks["b"], made.order, made.artifact, str(made.address), made.record)

    def heads(orders: list[str]) -> Json:
        return agent._files.heads(json.dumps({"orders": orders}).encode(), "a")["heads"]

    assert heads([made.order.id]) and not heads(["00" * 32])
    assert made.files["a"].waiting("b") == [made.order.id]


def test_an_answer_has_no_more_than_a_message_carries() -> None:
    found = ["\u0436" * (1 << 19)] * 9
    assert len(methods.fitting(found, 9)) == 2 and len(methods.fitting(found, 1)) == 1
    assert methods.fitting(["x" * (4 << 20)] * 2, 9) == ["x" * (4 << 20)]


def test_a_home_that_only_dials_out_fetches_more_files_than_are_in_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the first is not given; when all have come nothing more is asked."""
    monkeypatch.setattr(file_calls, "MOST_HEADS", 1)
    made = Sites(tmp_path / "orders")
    a, b = friends(tmp_path, silent="a").values()
    a.mail, b.mail = (str(tmp_path / "orders" / name) for name in "ab")
    offer(made.desks["b"], made.order, made.artifact, str(made.address), made.record)
    first, second = (made.files["a"].path(made.head(number)) for number in (0, 1))
    agent = Agent(a.keys, a.mail)
    fetch = agent._files._fetch
    monkeypatch.setattr(
        agent._files, "_fetch", lambda *given: None if given[2] == made.head() else fetch(*given)
    )
    with b.served():
        for _ in range(2):
            agent.exchange("b")
        assert second.exists() and not first.exists()
        monkeypatch.setattr(agent._files, "_fetch", fetch)
        for _ in range(2):
            agent.exchange("b")
    assert first.exists() and not made.files["a"].waiting("b")


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
