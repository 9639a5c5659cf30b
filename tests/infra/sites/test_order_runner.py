"""Many orders at an agent, processes that die, and old orders."""

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atelier.infra.sites import order_runner
from atelier.infra.sites.desk import ENDED, OrderDesk, Reply, SiteOrder
from atelier.infra.sites.order_runner import (
    KEPT_S,
    LOCK,
    LOG,
    MOST_AT_ONCE,
    MOST_STARTS,
    WORK,
    OrderRunner,
    holder_of,
)
from atelier.infra.sites.policy import EVERYTHING, Policies, SitePolicy
from tests.infra.sites.agents import friends, until
from tests.infra.sites.orders import cancellation, order, reply

LASTS, DIES, FAILS = "exec sleep 600", "kill -9 $$", "echo it cannot; exit 3"
HOLDS = f"""exec {sys.executable} -c '
import fcntl, os, time
with open("../{LOCK}", "a+") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    file.write(str(os.getpid()))
    file.flush()
    time.sleep(600)
'"""


class Orders:
    """The orders at a site `b`, whose processes are shell scripts in place of the fixed command."""

    def __init__(self, folder: Path, homes: str) -> None:
        self.site, self.said, self._folder = friends(folder, f"b{homes}")["b"], list[str](), folder
        for home in homes:
            Policies(self.site.keys.folder).set(SitePolicy(site=home, tasks=(EVERYTHING,)))
        self.desk, self._command = OrderDesk(self.site.mail), folder / "command"
        store = str(folder / "store")
        self.runner = OrderRunner(self.site.keys, self.site.mail, store, self.said.append)

    def does(self, script: str) -> str:
        """What processes do from now on; the command."""
        self._command.write_text(f'#!/bin/sh\necho "$*" >> "{self._folder}/starts"\n{script}\n')
        self._command.chmod(0o755)
        return str(self._command)

    @property
    def starts(self) -> list[str]:
        """The words that each process got, in the order in which they began."""
        path = self._folder / "starts"
        return path.read_text().splitlines() if path.exists() else []

    def put(self, number: int = 1, **more: str) -> list[SiteOrder]:
        found = [order(nonce=str(each), **more) for each in range(number)]
        for each in found:
            self.desk.put(each)
        return found

    def reply(self, asked: SiteOrder) -> Reply:
        found = self.desk.reply(asked.id)
        assert found is not None
        return found

    def look_until(self, is_so: Callable[[], bool], what: str) -> None:
        until(lambda: (self.runner.look(), is_so())[1], what)

    def running(self, asked: list[SiteOrder]) -> list[SiteOrder]:
        return [each for each in asked if each.id in self.runner._running]

    def end(self) -> None:
        for process in self.runner._running.values():
            process.kill()
            process.wait()


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Orders]:
    found = Orders(tmp_path, "ac")
    monkeypatch.setattr(order_runner.sys, "executable", found.does(LASTS))
    yield found
    found.end()


def test_a_process_gets_the_id_of_its_order_and_a_folder_of_its_own(orders: Orders) -> None:
    [asked] = orders.put()
    orders.does("pwd; echo $ATELIER_ROOT; exit 3")
    orders.look_until(lambda: orders.desk.is_over(asked.id), "an end")
    keys, folder = orders.site.keys.folder, Path(orders.desk.folder(asked.id))
    words = f"-m atelier site work {asked.id} --keys {keys} --mailbox {orders.site.mail}"
    assert orders.starts == [words]
    assert (folder / LOG).read_text().split() == [str(folder / WORK), str(keys.parents[1] / "store")]


def test_an_order_whose_processes_die_is_begun_again_a_few_times(orders: Orders) -> None:
    [asked] = orders.put()
    orders.does(DIES)
    orders.look_until(lambda: orders.desk.is_over(asked.id), "an end")
    assert len(orders.starts) == MOST_STARTS == 4
    again = [line for line in orders.said if "was killed; it continues in another" in line]
    assert len(again) == MOST_STARTS - 1
    found = orders.reply(asked)
    assert (found.state, found.problem) == ("failed", "ended with -9")
    orders.runner.look()
    assert len(orders.starts) == MOST_STARTS and not orders.runner._running


def test_a_process_that_ends_by_itself_is_not_begun_again_and_its_last_line_is_said(orders: Orders) -> None:
    [asked] = orders.put()
    orders.does(FAILS)
    orders.look_until(lambda: orders.desk.is_over(asked.id), "an end")
    found = orders.reply(asked)
    assert (len(orders.starts), found.state, found.problem) == (1, "failed", "it cannot")


def test_one_that_is_cancelled_and_killed_is_stopped(orders: Orders) -> None:
    [asked] = orders.put()
    orders.runner.look()
    orders.desk.put(cancellation(asked))
    os.kill(orders.runner._running[asked.id].pid, signal.SIGKILL)
    orders.look_until(lambda: orders.desk.is_over(asked.id), "an end")
    assert orders.reply(asked).state == "stopped"
    orders.runner.look()
    assert not orders.runner._running


def test_a_site_that_is_revoked_has_its_orders_ended_and_no_other_site(orders: Orders) -> None:
    """Those whose processes run, and those that wait."""
    orders.does(HOLDS)
    asked, others = orders.put(MOST_AT_ONCE + 1), orders.put(home="c")
    orders.look_until(
        lambda: sum(holder_of(orders.desk, each.id) > 0 for each in (*asked, *others)) > MOST_AT_ONCE,
        "processes",
    )
    orders.site.keys.revoke("a")
    orders.look_until(lambda: all(orders.desk.is_over(each.id) for each in asked), "an end")
    assert {orders.reply(each).state for each in asked} == {"stopped"}
    assert orders.running(others) == others and not orders.running(asked)
    assert len(orders.starts) == MOST_AT_ONCE + 1 and not any("in another" in line for line in orders.said)


def test_an_order_is_said_to_run_before_its_process_may_say_how_it_ended(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    [asked] = orders.put()
    popen, told = order_runner.subprocess.Popen, list[str]()

    def begun(*words: object, **more: object) -> object:
        told.append(orders.reply(asked).state)
        return popen(*words, **more)  # pyright: ignore

    monkeypatch.setattr(order_runner.subprocess, "Popen", begun)
    orders.runner.look()
    assert told == ["running"] and orders.running([asked]) and not orders.said[1:]


def test_an_order_that_nobody_can_look_at_is_said_once_and_holds_up_no_other(orders: Orders) -> None:
    asked = orders.put(2)
    lock = Path(orders.desk.folder(asked[0].id)) / LOCK
    lock.write_bytes(b"\xff")
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for _ in range(3):
            orders.runner.look()
    assert orders.running(asked) == asked[1:]
    assert sum(f"order {asked[0].id[:8]} of a: " in line and "decode" in line for line in orders.said) == 1


def test_of_many_orders_a_few_run_at_once_and_the_next_one_when_one_has_ended(orders: Orders) -> None:
    asked = orders.put(MOST_AT_ONCE + 2)
    for _ in range(2):
        orders.runner.look()
    first = orders.running(asked)
    assert len(first) == MOST_AT_ONCE == 4
    late = [each for each in asked if each not in first]
    for each in late:
        found = orders.reply(each)
        told = (found.state, found.problem, found.number)
        assert told == ("running", "waits for other orders here", 1)  # said once
    orders.desk.put(reply(first[0], 9, "finished"))
    orders.runner._running[first[0].id].kill()
    orders.look_until(lambda: len(orders.running(late)) == 1, "the next one")
    assert len(orders.running(asked)) == MOST_AT_ONCE


def test_neither_a_plan_nor_another_home_waits_for_runs(orders: Orders) -> None:
    runs, plans, others = (
        orders.put(MOST_AT_ONCE + 1, **more) for more in ({}, {"act": "plan"}, {"home": "c"})
    )
    orders.runner.look()
    assert [len(orders.running(each)) for each in (runs, plans, others)] == [MOST_AT_ONCE] * 3


def aged(desk: OrderDesk, asked: SiteOrder, seconds: float) -> None:
    """Have all notes of an order written so long ago."""
    then = time.time() - seconds
    for path in Path(desk.folder(asked.id)).glob("*.json"):
        os.utime(path, (then, then))


@pytest.mark.parametrize("state", ENDED)
@pytest.mark.parametrize("home", ["a", "b"])
def test_an_order_that_ended_a_week_ago_is_removed_at_both_of_its_sites(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, state: str, home: str
) -> None:
    """Not before, and none that has not ended."""
    monkeypatch.setattr(orders.runner, "_start", lambda order: None)
    site = "ab".replace(home, "")
    old, young, going = (order(home, site, nonce=name) for name in ("old", "young", "going"))
    for each in (old, young, going):
        orders.desk.put(each)
        orders.desk.put(reply(each, 1, "running" if each is going else state))
        (Path(orders.desk.folder(each.id)) / "files").mkdir()
        (Path(orders.desk.folder(each.id)) / "files" / "body").write_bytes(b"1")
    assert KEPT_S == 7 * 24 * 3600
    for each, seconds in ((old, KEPT_S + 60), (young, KEPT_S - 60), (going, 10 * KEPT_S)):
        aged(orders.desk, each, seconds)
    orders.runner.look()
    assert len([*orders.desk.orders()]) == 3  # that is looked at once in a while
    monkeypatch.setattr(order_runner, "TIDY_S", 0.0)
    orders.runner.look()
    assert {each.id for each in orders.desk.orders()} == {young.id, going.id}
    assert not Path(orders.desk.folder(old.id)).exists()
    begun = list[SiteOrder]()
    monkeypatch.setattr(orders.runner, "_start", begun.append)
    orders.desk.put(old)  # it is asked for again
    orders.runner.look()
    assert (old in begun) == (site == "b")


def test_what_cannot_be_removed_is_said_once_and_nothing_else_waits_for_it(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = order(nonce="old")
    orders.desk.put(old)
    orders.desk.put(reply(old, 1, "finished"))
    aged(orders.desk, old, KEPT_S + 60)
    [asked] = orders.put()
    monkeypatch.setattr(order_runner, "TIDY_S", 0.0)

    def refuse(number: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(orders.runner._desk, "forget", refuse)
    for _ in range(3):
        orders.runner.look()
    assert orders.running([asked]) and sum("Permission denied" in line for line in orders.said) == 1
