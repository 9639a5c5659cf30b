"""Two commands over one store: they share its cores, and what one of them decided before it waited for the
other is decided again.
"""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from engine.spec.pool import Pool
from flows.cli.compose import compose
from flows.cli.execute import open_house
from infra.dag import Node
from infra.house import House
from infra.slots import CoreSlots
from infra.store import Store

PROJECT = Path(__file__).resolve().parent.parent.parent
WORDS = ("experiment=tiny", "tracker=none")
HOLDER = """
import sys, threading, time
from flows.cli.compose import compose
from flows.cli.execute import open_house
from infra.lease import Holder
from infra.manifests import write_manifest
from infra.store import Store
store = Store(sys.argv[1])
house = open_house(compose("pretrain", sys.argv[3:]), store, "one", sys.argv[2], lambda node, message: None)
write_manifest(store, {"id": sys.argv[2], "started": time.time(), "holder": vars(Holder.me("one"))})
with house.slots.claim(house.slots.total, threading.Event()):
    print("held", flush=True)
    sys.stdin.read()
"""


def house_of(root: Path, run: str, heard: list[dict[str, Any]]) -> House:
    """A run of one command over the store."""
    frozen = compose("pretrain", list(WORDS))
    return open_house(frozen, Store(str(root)), "two", run, lambda node, message: heard.append(message))


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_second_command_over_a_store_waits_for_its_cores_and_names_the_run_that_has_them(
    tmp_path: Path, is_killed: bool
) -> None:
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "store"), "run-one", *WORDS],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    heard: list[dict[str, Any]] = []
    got, moved = threading.Event(), threading.Event()
    try:
        assert first.stdout is not None and first.stdout.readline() == b"held\n"
        house = house_of(tmp_path / "store", "run-two", heard)
        house.listener = lambda node, message: (heard.append(message), moved.set())

        def claim() -> None:
            with house._claim(Node(name="encode", task="encode", products={}), "engine.prepare", 1, 1):
                got.set()
                moved.set()

        thread = threading.Thread(target=claim)
        thread.start()
        assert moved.wait(60) and not got.is_set(), "it did not wait"
        [message] = heard
        assert (
            f"waits for 1 of {house.slots.total} cores; run run-one (process {first.pid}) has them"
            in (message["waiting"])
        )
    finally:
        if is_killed:
            first.kill()
        first.communicate()
    assert got.wait(60)
    thread.join(60)


def test_parallel_nodes_of_a_run_run_side_by_side(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    house = house_of(tmp_path / "store", "run", heard)
    house.slots = CoreSlots(Pool(slots=2), tmp_path / "slots")
    together = threading.Barrier(2, timeout=60)

    def node(name: str) -> None:
        with house._claim(Node(name=name, task="train", products={}), "engine.train", 1, 1):
            together.wait()

    threads = [threading.Thread(target=node, args=(name,)) for name in ("assistant", "teacher")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not together.broken and heard == []
