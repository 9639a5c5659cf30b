"""Processes are killed at random, for minutes, while flows run: the results are as without kills.

6 kills in 3 minutes; ATELIER_STORM=60/30 makes that 60 in 30. The seed of their choice is printed, and
ATELIER_STORM_SEED gives it.
"""

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.flow.served import Served, processes, wait_for
from tests.service.training import (
    DATA,
    ENDS,
    PATIENCE_S,
    WORDS,
    copy_data,
    digests,
    flow_processes,
    kill,
    parent_of,
    rate,
    run_here,
    stale,
    values,
)

pytestmark = [pytest.mark.service, pytest.mark.slow]
KILLS, MINUTES = map(int, os.environ.get("ATELIER_STORM", "6/3").split("/"))
AT_ONCE = 2
KINDS = ("rank", "supervisor", "child flow", "parent flow", "worker")
TRAINING_S = 60.0  # of one seed, when nothing happens


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with corpus, tokenizer, tokens and a short training that tells how fast this machine is."""
    root = tmp_path_factory.mktemp("data") / "store"
    run_here(root, "pretrain", "experiment=tiny", *WORDS, "train.steps=300", "tracker=none")
    return root


@pytest.fixture
def stack(tmp_path: Path, data: Path) -> Iterator[Served]:
    served = Served(tmp_path / "store")
    copy_data(data, served.root)
    served.up()
    try:
        yield served
    finally:
        served.down()


def test_after_random_kills_every_flow_is_complete_bit_identical_and_alone(
    stack: Served, data: Path, tmp_path: Path
) -> None:
    seed = int(os.environ.get("ATELIER_STORM_SEED", random.randrange(10**6)))
    print(f"ATELIER_STORM_SEED={seed} ATELIER_STORM={KILLS}/{MINUTES}")
    length = max(300, int(rate(data) * TRAINING_S / AT_ONCE))
    storm = Storm(stack, [*WORDS, f"train.steps={length}", "train.checkpoint_every=50", "tracker=none"])
    storm.run(random.Random(seed))
    storm.until_all_complete()
    print(f"{sum(storm.killed.values())} kills {dict(storm.killed)}, {storm.submitted} submissions")
    assert sum(storm.killed.values()) == KILLS and not storm.troubles, storm.troubles
    wait_for(lambda: not stack.ranks() and not flow_processes(stack.root), 60, "the end of all processes")
    assert stale(stack) == stale(stack, "light") == []
    calm = tmp_path / "calm"
    copy_data(data, calm)
    words = ["pretrain", "experiment=tiny", *storm.words]
    with ThreadPoolExecutor(AT_ONCE) as runs:
        list(runs.map(lambda number: run_here(calm, *words, f"train.seed={number}"), storm.seeds))
    assert digests(stack.root) == digests(calm)
    assert values(stack.root) == values(calm)
    steps = Counter(line[0] for lines in values(stack.root).values() for line in lines)
    assert steps == dict.fromkeys(range(1, length + 1), len(storm.seeds))
    assert set(published(stack.root).values()) == {1}
    assert published(stack.root).keys() == published(calm).keys()


class Storm:
    """Trainings of several seeds, two at a time. A run that ends badly is submitted again; what is missing of
    the stack is started again by `atelier up`.
    """

    def __init__(self, stack: Served, words: list[str]) -> None:
        self.stack, self.words = stack, words
        self.seeds: dict[int, str] = {}  # -> the last run
        self.complete: set[int] = set()
        self.submitted = 0
        self.killed: Counter[str] = Counter()
        self.troubles: list[str] = []
        self._ended = threading.Event()

    def run(self, choice: random.Random) -> None:
        """Kill KILLS processes in MINUTES minutes, at random moments."""
        began = time.monotonic()
        supervisor = threading.Thread(target=self._supervise)
        supervisor.start()
        try:
            for moment in sorted(choice.uniform(20, 60 * MINUTES) for _ in range(KILLS)):
                while time.monotonic() - began < moment or not self._strike(choice):
                    self._tend(more=True)
                    time.sleep(1.0)  # the moments are the storm's, not a condition's
        finally:
            self._ended.set()
            supervisor.join()

    def until_all_complete(self) -> None:
        self.stack.up()
        wait_for(lambda: not self._tend(more=False), 3 * PATIENCE_S, "the end of all flows")

    def _supervise(self) -> None:
        while not self._ended.wait(15.0):
            try:
                self.stack.up()
            except AssertionError as error:
                self.troubles.append(str(error))

    def _strike(self, choice: random.Random) -> bool:
        victims = {kind: pids for kind, pids in self._victims().items() if pids}
        if not victims:
            return False
        kind = choice.choice(sorted(victims))
        pid = choice.choice(victims[kind])
        kill(pid)
        self.killed[kind] += 1
        print(f"{time.strftime('%H:%M:%S')} killed {kind} {pid}", flush=True)
        return True

    def _victims(self) -> dict[str, list[int]]:
        there = processes()
        workers = {
            name: self.stack.pid(f"worker-{name}")
            for name in ("light", "local")
            if self.stack.pid(f"worker-{name}") in there
        }
        flows = sorted(flow_processes(self.stack.root).values())
        gangs = self.stack.ranks()
        return {
            "rank": [pid for pid in gangs if "atelier.infra.launch.supervisor" not in there.get(pid, ())],
            "supervisor": [pid for pid in gangs if "atelier.infra.launch.supervisor" in there.get(pid, ())],
            "child flow": [pid for pid in flows if is_child(pid, workers.get("local"))],
            "parent flow": [pid for pid in flows if is_child(pid, workers.get("light"))],
            "worker": sorted(workers.values()),
        }

    def _tend(self, *, more: bool) -> list[int]:
        """Submit what ended badly again, and new seeds while `more`; the seeds that are under way."""
        active = []
        for number in self.seeds.keys() - self.complete:
            state = self.stack.state(self.seeds[number])["type"]
            if state == "COMPLETED":
                self.complete.add(number)
                continue
            active.append(number)
            if state in ENDS:
                self._submit(number)
        while more and len(active) < AT_ONCE:
            active.append(len(self.seeds) + 1)
            self._submit(active[-1])
        return active

    def _submit(self, number: int) -> None:
        overrides = [*self.words, f"train.seed={number}"]
        self.seeds[number] = self.stack.submit("pretrain", experiment="tiny", overrides=overrides)
        self.submitted += 1


def is_child(pid: int, worker: int | None) -> bool:
    try:
        return parent_of(pid) == worker
    except OSError:
        return False


def published(root: Path) -> dict[str, int]:
    """Artifact -> how often it was published; a report, which tells of a run, and the data left out."""
    found = {}
    for log in root.glob("*/*/log"):
        kind = log.parent.parent.name
        if kind not in (*DATA, "report", "registration", "trajectory"):
            acts = [json.loads(entry.read_text())["act"] for entry in log.glob("*.json")]
            found[f"{kind}/{log.parent.name}"] = acts.count("publish")
    return found
