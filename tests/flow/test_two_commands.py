"""Two commands over one store share its cores. After a wait, a command decides again about work that the
other did.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.config.pool import Pool
from atelier.engine.config.record import FileEntry, Record
from atelier.engine.io.storage import join, write_bytes
from atelier.flows.run.compose import compose
from atelier.flows.run.contexts import open_context
from atelier.flows.run.draw import collect_nodes
from atelier.infra.dag import Node
from atelier.infra.launch.slots import CoreSlots
from atelier.infra.run.context import RunContext
from atelier.infra.store.lease import Holder, take
from atelier.infra.store.store import Store
from atelier.tasks import train
from tests.checkout import TOP

WORDS = ("experiment=tiny", "tracker=none")
HOLDER = """
import sys, threading, time
from atelier.flows.run.compose import compose
from atelier.flows.run.contexts import open_context
from atelier.flows.run.draw import collect_nodes
from atelier.infra.store.lease import Holder
from atelier.infra.store.run_manifest import RunManifest, write_manifest
from atelier.infra.store.store import Store
store = Store(sys.argv[1])
frozen = compose("pretrain", sys.argv[3:])
context = open_context(frozen, store, "one", sys.argv[2], lambda node, message: None)
holder = vars(Holder.me("one"))
write_manifest(store, RunManifest(id=sys.argv[2], started=time.time(), holder=holder))
with context.slots.claim(context.slots.total, threading.Event()):
    print("held", flush=True)
    sys.stdin.read()
"""


def context_of(root: Path, run: str, heard: list[dict[str, Any]]) -> RunContext:
    """A run of one command over the store."""
    frozen = compose("pretrain", list(WORDS))
    return open_context(frozen, Store(str(root)), "two", run, lambda node, message: heard.append(message))


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_second_command_over_a_store_waits_for_its_cores_and_names_the_run_that_has_them(
    tmp_path: Path, is_killed: bool
) -> None:
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "store"), "run-one", *WORDS],
        cwd=TOP,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    heard: list[dict[str, Any]] = []
    got, moved = threading.Event(), threading.Event()
    try:
        assert first.stdout is not None and first.stdout.readline() == b"held\n"
        context = context_of(tmp_path / "store", "run-two", heard)

        def on_message(node: str, message: dict[str, Any]) -> None:
            heard.append(message)
            moved.set()

        context.listener = on_message

        def claim() -> None:
            with context._claim(
                Node(name="encode", task="encode", products={}), "atelier.engine.prepare", 1, 1
            ):
                got.set()
                moved.set()

        thread = threading.Thread(target=claim)
        thread.start()
        assert moved.wait(60) and not got.is_set(), "it did not wait"
        [message] = heard
        assert (
            f"waits for 1 of {context.slots.total} cores; run run-one (process {first.pid}) has them"
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
    context = context_of(tmp_path / "store", "run", heard)
    context.slots = CoreSlots(Pool(slots=2), tmp_path / "slots")
    together = threading.Barrier(2, timeout=60)

    def node(name: str) -> None:
        with context._claim(Node(name=name, task="train", products={}), "atelier.engine.train", 1, 1):
            together.wait()

    threads = [threading.Thread(target=node, args=(name,)) for name in ("assistant", "teacher")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not together.broken and heard == []


def student(store: Store, *words: str) -> Node:
    """The training of a teacher and of a student that no other command has."""
    nodes = collect_nodes(compose("distill", [*WORDS, "roles.student_a.optim.lr=7e-3", *words]), store)
    return next(node for node in nodes if node.task == "train" and "teacher" in node.products)


@pytest.mark.parametrize("how", ["half-way", "finished"])
@pytest.mark.parametrize("attach", ["refuse", "replay"])
def test_a_student_whose_teacher_went_on_during_the_wait_is_refused_as_it_would_have_been_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attach: str, how: str
) -> None:
    """Another command trains the same teacher for a student of its own and is killed half-way, or ends."""
    store = Store(str(tmp_path / "store"))
    node = student(store, f"roles.student_a.attach={attach}")
    heard: list[dict[str, Any]] = []
    context = context_of(tmp_path / "store", "run-two", heard)
    started: list[Any] = []
    monkeypatch.setattr("atelier.infra.run.context.start_gang", lambda orders, *more: started.append(orders))
    monkeypatch.setattr(RunContext, "vocab", lambda self, node: 512)
    ended: list[BaseException | None] = []

    def second() -> None:
        try:
            train.run(node, context)
            ended.append(None)
        except AtelierError as error:
            ended.append(error)

    _, _, parts = train.unpack(node)
    addresses = sorted(store.address("trajectory", part.fingerprint) for part in parts["teacher"])
    with subprocess.Popen(["sleep", "600"]) as first:
        try:
            leases = [take(address, Holder.of(first.pid, "one")) for address in addresses]
            assert all(leases)
            thread = threading.Thread(target=second)
            thread.start()
            until(lambda: any("is being written by" in m.get("waiting", "") for m in heard) or ended)
            assert not ended, ended
            advance(store, node, how)
        finally:
            first.kill()
    thread.join(60)
    if attach == "replay":
        assert ended == [None] and len(started) == 1
        [training] = started[0].run.config["trainings"]
        mode = training["members"]["teacher"]["mode"]
        assert mode == ("replay" if how == "finished" else "train")
        return
    [error] = ended
    assert isinstance(error, ConfigError) and not started, "it trained the teacher again, unasked"
    with pytest.raises(ConfigError) as before:
        train.run(node, context_of(tmp_path / "store", "run-three", heard))
    assert str(error) == str(before.value)
    assert "attach=replay trains" in str(error) and "attach=frozen learns" in str(error)


def advance(store: Store, node: Node, how: str) -> None:
    """The teacher is past the start of the student; and, when it is finished, a model."""
    _, _, parts = train.unpack(node)
    product = node.products["teacher"]
    if how == "finished":
        step = parts["teacher"][-1].end
        record = Record(
            kind="model",
            name="teacher",
            fingerprint=product.fingerprint,
            version=product.version,
            identity=product.identity,
            parents=product.parents,
            files=(FileEntry(path="payload-1/model.safetensors", bytes=1, sha256="0" * 64),),
        )
        store.publish(record, Holder.me())
    else:
        step = parts["student_a"][0].start + 1
    part = next(part for part in parts["teacher"] if part.start < step <= part.end)
    folder = join(store.address("trajectory", part.fingerprint), "checkpoints", f"step-{step:08d}")
    write_bytes(join(folder, "manifest.json"), b"")


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
