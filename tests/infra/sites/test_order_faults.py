"""Orders and notes that cannot be read, stored or accepted yet: none is lost, none ends an agent, and each is
reported.
"""

from pathlib import Path

import pytest

from atelier.infra.sites import notes
from atelier.infra.sites.agent import Agent
from atelier.infra.sites.desk import OrderDesk
from atelier.infra.sites.keys import PEERS
from atelier.infra.sites.notes import MOST_UNKNOWN
from atelier.infra.sites.order_runner import OrderRunner
from atelier.infra.sites.policy import EVERYTHING, Policies, SitePolicy
from tests.infra.sites.agents import friends, make_due
from tests.infra.sites.orders import cancellation, large, order


def test_a_full_disk_ends_no_agent_and_its_orders_end_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of an order has ended, and its reply cannot be written."""
    b = friends(tmp_path)["b"]
    Policies(b.keys.folder).set(SitePolicy(site="a", tasks=(EVERYTHING,)))
    desk, said, asked = OrderDesk(b.mail), list[str](), order()
    desk.put(asked)
    runner = OrderRunner(b.keys, b.mail, str(tmp_path / "store"), said.append)

    class Ended:
        returncode = 3

        def poll(self) -> int:
            return 3

    def full(note: object) -> None:
        raise OSError(28, "No space left on device")

    runner._running[asked.id] = Ended()  # pyright: ignore[reportArgumentType]
    runner._starts[asked.id] = 1
    with monkeypatch.context() as patch:
        patch.setattr(runner._desk, "put", full)
        for _ in range(3):
            runner.look()
        assert len(said) == 1 and "No space left" in said[0]
    runner.look()
    reply = desk.reply(asked.id)
    assert reply is not None and reply.state == "failed" and not runner._running


def test_an_order_that_cannot_be_read_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = friends(tmp_path)["b"]
    desk, asked = OrderDesk(b.mail), order()
    desk.put(asked)
    desk.put(order(nonce="2"))
    about = desk._about

    def failing(number: str, kind: str) -> object:
        if number == asked.id:
            raise PermissionError(13, "Permission denied")
        return about(number, kind)

    monkeypatch.setattr(desk, "_about", failing)
    assert len([*desk.listed()]) == 1


def test_an_order_that_is_not_taken_yet_is_said_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = friends(tmp_path).values()
    asked = order()
    OrderDesk(a.mail).put(asked)
    monkeypatch.setattr("atelier.infra.sites.refusals.LASTS_S", 0.0)
    monkeypatch.setattr("atelier.infra.sites.notes.MOST_KEPT", 0)
    agent = Agent(a.keys, a.mail)
    with b.served():
        for _ in range(2):
            agent.exchange("b")
    [line] = agent._refusals.lines("b")
    assert line.startswith(f"b does not take the order {asked.id[:16]}: ") and "orders here" in line


@pytest.mark.parametrize("of", ["no room", "a damaged order"])
def test_a_note_that_a_site_which_only_dials_out_cannot_take_yet_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """After a pause, as its cancellation; it is said once, and another one comes meanwhile."""
    a, b = friends(tmp_path, silent="b").values()
    Policies(b.keys.folder).set(SitePolicy(site="a", tasks=(EVERYTHING,)))
    asked, small = large("big", MOST_UNKNOWN), order(nonce="small")
    home, there = OrderDesk(a.mail), OrderDesk(b.mail)
    damaged = Path(there.folder(asked.id)) / "order.json"
    for note in (asked, cancellation(asked), small):
        home.put(note)
    monkeypatch.setattr("atelier.infra.sites.refusals.LASTS_S", 0.0)
    with a.served() as at_a, monkeypatch.context() as patch:
        if of == "no room":
            patch.setattr(notes, "MOST_BYTES", MOST_UNKNOWN)
        else:
            damaged.parent.mkdir(parents=True)
            damaged.write_bytes(b"{")
        agent = Agent(b.keys, b.mail)
        for _ in range(8):
            agent.exchange("a")
        assert [*there.orders()] == [small]
        assert [line["kind"] for line in a.audited()].count("order") == 2  # no more was fetched
        damaged.unlink(missing_ok=True)
        patch.setattr(notes, "MOST_BYTES", 1 << 20)
        make_due(at_a._exchange.later["b"])
        agent.exchange("a")
        assert there.order(asked.id) == asked and there.is_cancelled(asked.id)
    said, name = agent._refusals.lines("a"), f"the order {asked.id[:16]}"
    assert sum(line.startswith(f"a: {name} is not taken here: ") for line in said) == 1
    assert f"a: {name} is accepted now" in said


@pytest.mark.parametrize("silent", ["", "b"])
def test_a_large_order_waits_while_the_policy_for_its_home_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    """Its home is told nothing of the policy."""
    monkeypatch.setattr("atelier.infra.sites.refusals.LASTS_S", 0.0)
    a, b = friends(tmp_path, silent=silent).values()
    Policies(b.keys.folder).set(SitePolicy(site="a", tasks=(EVERYTHING,)))
    policy = next(path for path in b.keys.folder.rglob("a.json") if PEERS not in path.parts)
    before, asked = policy.read_bytes(), large("big", MOST_UNKNOWN)
    policy.write_bytes(b"{")
    OrderDesk(a.mail).put(asked)
    at, peer = (b, a) if silent else (a, b)
    agent = Agent(at.keys, at.mail)
    with peer.served() as there:
        for is_damaged in (True, False):
            agent.exchange(peer.name)
            assert (OrderDesk(b.mail).order(asked.id) is None) == is_damaged
            policy.write_bytes(before)
            agent.exchange(peer.name)  # what became of the list before is said with the next one
            for each, other in ((agent, peer), (there, at)):
                make_due(each._exchange.later[other.name])
        told = (there if silent else agent)._refusals.lines("b")
    assert [line["what"] for line in b.audited()].count("damaged") == 1
    assert "a file is damaged at this site" in told[0] and str(tmp_path) not in "".join(told)


def test_a_note_that_is_never_taken_is_asked_for_once(tmp_path: Path) -> None:
    a, b = friends(tmp_path, silent="b").values()
    OrderDesk(a.mail).put(large("big", MOST_UNKNOWN))
    agent = Agent(b.keys, b.mail)
    with a.served():
        for _ in range(3):
            agent.exchange("a")
    assert [line["what"] for line in b.audited()] == ["refused"]
    assert [line["what"] for line in a.audited()] == ["fetched", "not taken"]
