"""Slots shared by all processes of a machine: never more than there are, none lost, none starved."""

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atelier.engine.config.error import StoppedError
from atelier.engine.config.pool import Pool
from atelier.infra.launch.locks import holder
from atelier.infra.launch.slots import Slots, num_slots

HOLDER = """
import sys, threading
from pathlib import Path
from atelier.infra.launch.slots import Slots
total, folder, count = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
with Slots(total, folder).claim(count, threading.Event()):
    print("held", flush=True)
    sys.stdin.read()
"""
BUSY = """
import os, random, sys, threading
from pathlib import Path
from atelier.infra.launch.slots import Slots
total, folder, seed = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
slots, dice = Slots(total, folder), random.Random(seed)
log = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
for _ in range(15):
    count = dice.randint(1, total)
    with slots.claim(count, threading.Event()):
        os.write(log, b"%d\\n" % count)
        sum(range(300_000))  # something to do, so that those who may not be here together would be
        os.write(log, b"%d\\n" % -count)
"""


class Holder:
    """Another process that holds slots until it is told to let go."""

    def __init__(self, total: int, folder: Path, count: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(total), str(folder), str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_held(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "held\n"

    def let_go(self) -> None:
        self.process.communicate(timeout=60)

    def kill(self) -> None:
        self.process.kill()
        self.let_go()


@pytest.fixture
def holders() -> Iterator[Callable[[int, Path, int], Holder]]:
    made: list[Holder] = []

    def make(total: int, folder: Path, count: int) -> Holder:
        made.append(Holder(total, folder, count))
        return made[-1]

    yield make
    for one in made:
        if one.process.returncode is None:
            one.kill()


def is_taken(folder: Path, name: str) -> bool:
    """Whether somebody holds the lock. To try it would take it, and a claim in that moment another one."""
    return (folder / name).exists() and holder(folder / name) is not None


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def claiming(slots: Slots, count: int, then: Callable[[], object]) -> threading.Thread:
    """A thread that claims, does `then` and lets go."""

    def run() -> None:
        with slots.claim(count, threading.Event()):
            then()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_several_processes_never_hold_more_than_there_are(tmp_path: Path) -> None:
    total = 3
    command = [sys.executable, "-c", BUSY, str(total), str(tmp_path)]
    workers = [subprocess.Popen([*command, str(seed)]) for seed in range(3)]
    assert [worker.wait(120) for worker in workers] == [0, 0, 0]
    changes = [int(line) for line in (tmp_path / "log").read_text().split()]
    held = [sum(changes[: number + 1]) for number in range(len(changes))]
    assert len(changes) == 3 * 15 * 2 and held[-1] == 0
    assert max(held) <= total


def test_threads_of_one_process_share_the_same_slots(tmp_path: Path) -> None:
    slots, lock, held, most = Slots(2, tmp_path), threading.Lock(), [0], [0]
    dice = random.Random(1)

    def hold(count: int) -> None:
        with lock:
            held[0] += count
            most[0] = max(most[0], held[0])
        with lock:
            held[0] -= count

    counts = [dice.randint(1, 2) for _ in range(12)]
    threads = [claiming(slots, count, lambda count=count: hold(count)) for count in counts]
    for thread in threads:
        thread.join(60)
    assert held == [0] and 0 < most[0] <= 2


def test_the_slots_of_a_killed_process_are_free_at_once(
    tmp_path: Path, holders: Callable[[int, Path, int], Holder]
) -> None:
    holder = holders(2, tmp_path, 2)
    holder.wait_held()
    assert is_taken(tmp_path, "slot-0") and is_taken(tmp_path, "slot-1")
    holder.kill()
    assert not is_taken(tmp_path, "slot-0") and not is_taken(tmp_path, "slot-1")
    with Slots(2, tmp_path).claim(2, threading.Event()):
        assert is_taken(tmp_path, "slot-0") and is_taken(tmp_path, "slot-1")


def test_one_that_died_in_the_wait_holds_nobody_up(
    tmp_path: Path, holders: Callable[[int, Path, int], Holder]
) -> None:
    slots = Slots(2, tmp_path)
    with slots.claim(1, threading.Event()):
        waiting = holders(2, tmp_path, 2)  # has one slot and waits for the other
        wait_until(lambda: is_taken(tmp_path, "slot-1"))
        waiting.kill()
        with slots.claim(1, threading.Event()):
            pass


def test_a_wide_claim_is_not_starved_by_narrow_ones(
    tmp_path: Path, holders: Callable[[int, Path, int], Holder]
) -> None:
    order: list[str] = []
    first, second = threading.Event(), threading.Event()
    slots = Slots(2, tmp_path)
    held = [claiming(slots, 1, first.wait)]
    wait_until(lambda: is_taken(tmp_path, "slot-0"))
    held.append(claiming(slots, 1, second.wait))
    wait_until(lambda: is_taken(tmp_path, "slot-1"))
    wide = claiming(slots, 2, lambda: order.append("wide"))
    wait_until(lambda: is_taken(tmp_path, "door"))
    narrow = [claiming(slots, 1, lambda: order.append("narrow")) for _ in range(3)]
    other = holders(2, tmp_path, 1)
    came = threading.Thread(target=lambda: (other.wait_held(), order.append("narrow"), other.let_go()))
    came.start()
    first.set()
    held[0].join(60)
    wait_until(lambda: is_taken(tmp_path, "slot-0"))  # by whoever waits
    second.set()
    for thread in (*held, wide, *narrow, came):
        thread.join(60)
    assert order == ["wide", *["narrow"] * 4]


def test_a_stop_ends_the_wait_and_leaves_nothing_behind(tmp_path: Path) -> None:
    slots, stop = Slots(2, tmp_path), threading.Event()
    caught: list[BaseException] = []

    def wait(count: int) -> None:
        try:
            with slots.claim(count, stop):
                pass
        except StoppedError as error:
            caught.append(error)

    with slots.claim(1, threading.Event()):
        threads = [threading.Thread(target=wait, args=(2,)) for _ in range(2)]  # at the door, and before it
        for thread in threads:
            thread.start()
        wait_until(lambda: is_taken(tmp_path, "slot-1"))
        stop.set()
        for thread in threads:
            thread.join(60)
        assert len(caught) == 2 and not is_taken(tmp_path, "door") and not is_taken(tmp_path, "slot-1")
    with slots.claim(2, threading.Event()):
        pass


def test_an_error_of_the_block_frees_its_slots(tmp_path: Path) -> None:
    slots = Slots(2, tmp_path)
    with pytest.raises(RuntimeError), slots.claim(2, threading.Event()):
        raise RuntimeError
    assert not is_taken(tmp_path, "slot-0") and not is_taken(tmp_path, "slot-1")


def test_more_ranks_than_slots_take_all_of_them(tmp_path: Path) -> None:
    with Slots(2, tmp_path).claim(5, threading.Event()):
        assert is_taken(tmp_path, "slot-0") and is_taken(tmp_path, "slot-1")


def test_a_pool_has_as_many_slots_as_it_says_or_as_its_machine_has_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("atelier.infra.launch.slots.num_cores", lambda: 6)
    assert num_slots(Pool()) == 6
    assert num_slots(Pool(slots=3)) == 3
    assert num_slots(Pool(gpu="h200", gpus=16, gpus_per_node=8)) == 8
    assert num_slots(Pool(gpu="h200", gpus=1)) == 1
