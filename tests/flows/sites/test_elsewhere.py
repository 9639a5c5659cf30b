"""Waiting for replies of other sites, and notices about silent ones."""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import AtelierError, StoppedError
from atelier.engine.config.message import Message
from atelier.flows.run import execute
from atelier.flows.run.compose import RunConfig, compose
from atelier.flows.run.outcome import RunOutcome
from atelier.flows.run.plan import Plan, make_plan
from atelier.flows.sites import elsewhere as module
from atelier.flows.sites.elsewhere import LOOK_EVERY, PATIENCE_S, PLANNING_S, STOPPING_S, Elsewhere
from atelier.infra.launch.slots import Slots
from atelier.infra.run.context import RunContext
from atelier.infra.sites.desk import Note, OrderDesk, SiteOrder
from atelier.infra.sites.peer_problems import PeerProblems
from atelier.infra.store.store import Store
from tests.infra.sites.orders import reply

WORDS = (
    "experiment=tiny", "sites=[a,b]", "sites.loopback=true", "train.link.every=6", "score.baselines=false",
)  # fmt: skip


class Clock:
    """In place of the module `time`: it goes on where a run sleeps, and what is due then happens."""

    time, time_ns = staticmethod(time.time), staticmethod(time.time_ns)

    def __init__(self) -> None:
        self.now, self._due = 0.0, list[tuple[float, Callable[[], None]]]()

    def at(self, seconds: float, do: Callable[[], None]) -> None:
        self._due.append((seconds, do))

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 10_000, "it waits for ever"
        for each in [each for each in self._due if each[0] <= self.now]:
            self._due.remove(each)
            each[1]()


class Home:
    """A run at `a` whose first task at `b` is waited for; what `b` says, and what is said here and when."""

    def __init__(self, folder: Path, plan: Plan, clock: Clock) -> None:
        self.clock, self.plan, self.said = clock, plan, list[tuple[float, Message]]()
        store, frozen = Store(str(folder)), compose("pretrain", [*WORDS])
        assert frozen.here is not None
        self.desk, self.elsewhere = OrderDesk(frozen.here.mailbox), Elsewhere(frozen, plan, store, "run")
        self.node = next(node for node in plan.there["b"] if node.given_name == "curate")
        self.states, self.errors = dict[str, str](), dict[str, Exception]()
        self.context = RunContext(
            store=store, slots=Slots(1, folder / "slots"), scratch=folder / "scratch", run_id="run-1",
            flow="pretrain", command="", listener=lambda _, said: self.said.append((clock.now, said)),
            stop=threading.Event(),
        )  # fmt: skip

    @property
    def order(self) -> SiteOrder:
        [found] = self.desk.orders()
        return found

    def says(self, seconds: float, number: int, state: str = "running", **more: Any) -> None:
        """`b` does, so many seconds after the beginning."""
        self.clock.at(seconds, lambda: self.desk.put(reply(self.order, number, state, **more)))

    def tells(self, seconds: float, number: int, state: str) -> None:
        """`b` says how far the task is."""
        self.says(seconds, number, tasks={"curate": {"state": state}})

    def make(self) -> None:
        self.elsewhere.begin()
        self.elsewhere.make(self.node, self.context, self.states, self.errors)

    def waits(self) -> list[tuple[int, str]]:
        return [(round(when), said["waiting"]) for when, said in self.said if "waiting" in said]

    def cancelled(self) -> bool:
        return self.desk.is_cancelled(self.order.id)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    plan, clock = make_plan(compose("pretrain", [*WORDS]), Store(str(tmp_path))), Clock()
    monkeypatch.setattr(module, "time", clock)
    found = Home(tmp_path, plan, clock)
    yield found
    for file in found.elsewhere._owned:  # else as long as this process lives
        file.close()


@pytest.mark.parametrize(
    ("problem", "why", "said_at"),
    [
        (None, "no agent runs here; atelier site serve", 8),
        ("b: the certificate of b is not valid now", "b: the certificate of b is not valid now", 8),
        ("", "the agent here is well; is `atelier site serve` running at b?", 2),
    ],
)
def test_a_plan_is_refused_where_a_site_does_not_answer(
    home: Home, capsys: pytest.CaptureFixture[str], problem: str | None, why: str, said_at: int
) -> None:
    """And before it is, what is waited for is said, once, with what its own agent knows of it."""
    if problem is not None:
        PeerProblems(home.desk.url).write({"b": problem})
    said: list[str] = []
    for second in (said_at - 1, said_at + 1):
        home.clock.at(second, lambda: said.append(capsys.readouterr().err))
    [refused] = home.elsewhere.planned(home.plan).refusals
    assert refused == f"b has not answered for 60 s: {why}"
    assert said == ["", f"waiting for b to plan its part: {why}\n"] and capsys.readouterr().err == ""
    assert PATIENCE_S < home.clock.now < PATIENCE_S + 2 * LOOK_EVERY and home.cancelled()


def test_a_plan_that_is_broken_off_is_not_made_elsewhere(home: Home) -> None:
    def broken_off() -> None:
        raise KeyboardInterrupt

    home.clock.at(10, broken_off)
    with pytest.raises(KeyboardInterrupt):
        home.elsewhere.planned(home.plan)
    assert home.cancelled()


def test_no_site_goes_on_with_a_run_whose_next_order_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    store, frozen = Store(str(tmp_path)), compose("pretrain", [*WORDS, "sites=[a,b,c]"])
    plan, put = make_plan(frozen, store), OrderDesk.put
    assert frozen.here is not None and [*plan.there] == ["b", "c"]

    def full(desk: OrderDesk, note: Note) -> None:
        if isinstance(note, SiteOrder) and note.site == "c":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        put(desk, note)

    def host(frozen: RunConfig, context: RunContext, outcome: RunOutcome, inside: Callable[[], None]) -> None:
        inside()

    monkeypatch.setattr(OrderDesk, "put", full)
    monkeypatch.setattr(execute, "show_plan", lambda *_: None)  # on Prefect's page
    monkeypatch.setattr(module, "showing_sites", lambda *_: nullcontext())
    elsewhere = Elsewhere(frozen, plan, store, "run")
    with pytest.raises(OSError, match="No space left"):
        execute.run_flow(frozen, plan, store, "", lambda *_: None, host=host, elsewhere=elsewhere)
    for file in elsewhere._owned:
        file.close()
    desk = OrderDesk(frozen.here.mailbox)
    assert [(order.site, desk.is_cancelled(order.id)) for order in desk.orders()] == [("b", True)]


def test_a_plan_is_refused_where_a_site_falls_silent_and_is_not_made_there_any_more(home: Home) -> None:
    home.says(50, 1, problem="waits for other orders here")
    [refused] = home.elsewhere.planned(home.plan).refusals
    assert refused.startswith("b has not replied for 600 s after 'waits for other orders here'; is its agent")
    assert PLANNING_S < home.clock.now - 50 < PLANNING_S + 2 * LOOK_EVERY and home.cancelled()


@pytest.mark.parametrize(("state", "problem"), [("finished", ""), ("refused", "no such text")])
def test_a_plan_may_take_as_long_as_a_site_says_something(home: Home, state: str, problem: str) -> None:
    for number, seconds in enumerate((40, 600, 1150), start=1):
        home.says(seconds, number)
    home.says(1700, 4, state, problem=problem)
    refusals = home.elsewhere.planned(home.plan).refusals
    assert refusals == ([f"b: {problem}"] if problem else []) and round(home.clock.now) == 1700
    assert not home.cancelled()


def test_a_task_of_a_site_that_does_not_answer_ends_the_run(home: Home) -> None:
    with pytest.raises(AtelierError, match=r"^b has not answered for 60 s: no agent runs here"):
        home.make()
    assert PATIENCE_S < home.clock.now < PATIENCE_S + 2 * LOOK_EVERY
    assert home.states == {"curate@b": "failed"} and [*home.errors] == ["curate@b"]
    assert home.context.stop.is_set() and home.cancelled()


def test_of_a_task_whose_site_falls_silent_it_is_said_once_and_again_when_it_falls_silent_again(
    home: Home,
) -> None:
    """It is waited for however long that takes."""
    home.tells(30, 1, "running")
    home.tells(300, 2, "running")
    home.tells(1000, 3, "done")
    home.make()
    silent = "b has not replied for 60 s"
    assert home.waits() == [(90, silent), (360, silent)]
    assert home.states == {"curate@b": "done"} and not home.errors and not home.cancelled()


def test_of_a_task_whose_site_took_the_order_and_does_not_begin_it_is_said_where_to_look(home: Home) -> None:
    home.says(30, 1, problem="waits for other orders here")
    home.tells(1000, 2, "done")
    home.make()
    assert home.waits() == [(90, "b has not replied for 60 s; there: atelier site orders")]


def test_of_a_task_whose_site_says_something_all_the_time_nothing_is_said(home: Home) -> None:
    for number in range(1, 8):
        home.tells(50 * number, number, "running" if number < 7 else "done")
    home.make()
    assert home.waits() == [] and home.states == {"curate@b": "done"}


def test_that_files_of_another_site_are_waited_for_is_said_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Elsewhere, "_lacks", lambda self, product: True)
    home.tells(30, 1, "done")
    home.clock.at(1500, home.context.stop.set)
    with pytest.raises(StoppedError):
        home.make()
    assert home.waits() == [(at, "waits for its files from b") for at in (30, 630, 1230)]


def test_a_run_that_is_stopped_waits_a_while_for_a_silent_site(home: Home) -> None:
    home.tells(30, 1, "running")
    home.clock.at(40, home.context.stop.set)
    with pytest.raises(StoppedError, match="b has not confirmed the stop; its agent will stop it"):
        home.make()
    assert STOPPING_S < home.clock.now - 40 < STOPPING_S + 2 * LOOK_EVERY and home.cancelled()
    assert home.states == {"curate@b": "stopped"}


@pytest.mark.parametrize(
    ("is_stopped", "kind", "why"),
    [(True, StoppedError, r"^stopped$"), (False, AtelierError, r"^b: its process was killed$")],
)
def test_the_last_reply_ends_a_task(home: Home, is_stopped: bool, kind: type[AtelierError], why: str) -> None:
    home.tells(30, 1, "running")
    if is_stopped:
        home.clock.at(40, home.context.stop.set)
    home.says(70, 2, "failed", problem="its process was killed")
    with pytest.raises(kind, match=why):
        home.make()
    assert round(home.clock.now) == 70
