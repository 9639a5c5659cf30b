"""Artifacts of a run are kept, even if its manifest is damaged or it begins during a removal."""

import os
import random
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from atelier.engine.config.record import Record
from atelier.engine.io.storage import join, write_bytes
from atelier.flows.cli.main import run
from atelier.infra.store.gc import Collector
from atelier.infra.store.lease import Holder, LeaseLog
from atelier.infra.store.removal import discard, removing, wait_for_removals
from atelier.infra.store.run_manifest import RunManifest, read_manifests, write_manifest
from atelier.infra.store.store import Store
from tests.infra.records import Shelf

LATER = 4e9  # seconds since 1970: all is old by then
SEED = int(os.environ.get("ATELIER_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path / "store"))
    return Shelf(Store(str(tmp_path / "store")))


def stock(shelf: Shelf, num: int = 9) -> list[Record]:
    """Artifacts of runs that left no manifest: nobody needs them."""
    return [shelf.publish("corpus", f"c{n}", run="gone", n=n) for n in range(num)]


def begin(shelf: Shelf, *records: Record, status: str = "running", holder: Holder | None = None) -> Path:
    """The manifest of a run that makes or reuses the records."""
    rows = [{"name": r.name, "kind": r.kind, "fingerprint": r.fingerprint} for r in records]
    about = {"flow": "pretrain", "config": {}, "started": 5.0, "status": status}
    held = vars(holder or Holder.me())
    write_manifest(
        shelf.store, RunManifest.model_validate({"id": "run-2", "holder": held, "tasks": rows, **about})
    )
    return Path(shelf.store.root) / "runs" / "run-2.json"


def names(shelf: Shelf) -> set[str]:
    return {record.name for record in shelf.store.records()}


def test_no_flipped_bit_and_no_cut_of_a_manifest_lets_anything_go_that_its_run_needs(shelf: Shelf) -> None:
    print(f"ATELIER_SEED={SEED}", file=sys.stderr)
    rng, lost = random.Random(SEED), []
    needed = stock(shelf, 2)
    file = begin(shelf, *needed, status="finished")
    text = file.read_bytes()
    damages = []
    for position in rng.sample(range(len(text)), min(250, len(text))):
        data = bytearray(text)
        data[position] ^= 1 << rng.randrange(8)
        damages.append(bytes(data))
    damages += [text[:length] for length in rng.sample(range(len(text)), 60)]
    for data in damages:
        file.write_bytes(data)
        waste = Collector(shelf.store, now=LATER).find(damaged=True).waste
        if any(one.address for one in waste):
            lost.append(data)
    assert not lost, f"{len(lost)} of {len(damages)} damages let go what the run needs, such as {lost[0]!r}"


def test_a_damaged_manifest_is_named_with_the_way_out_and_the_way_out_works(
    shelf: Shelf, capsys: pytest.CaptureFixture[str]
) -> None:
    [one] = stock(shelf, 1)
    begin(shelf, one).write_bytes(b'{"id": "run-')
    assert run(["gc", "--yes"]) == 0 and names(shelf) == {"c0"}
    out, _ = capsys.readouterr()
    assert "runs/run-2.json: not a run's manifest" in out and "`atelier gc --forget run-2`" in out
    assert run(["runs"]) == 0 and "gc --forget run-2" in capsys.readouterr().err
    assert run(["gc", "--forget", "run-2", "--yes"]) == 0
    assert names(shelf) == set() and read_manifests(shelf.store) == ([], {})


def act_begin(shelf: Shelf, records: list[Record]) -> None:
    begin(shelf, *records)


def act_begin_and_end(shelf: Shelf, records: list[Record]) -> None:
    begin(shelf, *records, status="finished")


class Question:
    """Standard input on which something happens before the answer comes."""

    def __init__(self, happens: Callable[[], None]) -> None:
        self.happens = happens

    def readline(self) -> str:
        self.happens()
        return "y\n"


@pytest.mark.parametrize("happens", [act_begin, act_begin_and_end])
def test_what_a_run_begins_to_reuse_while_the_question_stands_stays(
    happens: Callable[[Shelf, list[Record]], None], shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = stock(shelf)
    monkeypatch.setattr(sys, "stdin", Question(lambda: happens(shelf, records)))
    assert run(["gc"]) == 0
    assert names(shelf) == {record.name for record in records}


def test_what_became_garbage_while_the_question_stood_is_not_removed_unasked(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock(shelf, 1)
    monkeypatch.setattr(sys, "stdin", Question(lambda: stock(shelf, 2) and None))
    assert run(["gc"]) == 0 and names(shelf) == {"c1"}


def test_a_run_that_begins_in_the_midst_of_a_removal_waits_for_its_end_and_sees_what_is_left(
    shelf: Shelf,
) -> None:
    [one] = stock(shelf, 1)
    waits: list[str] = []
    seen: list[Record | None] = []

    def start() -> None:
        begin(shelf, one)
        wait_for_removals(shelf.store.root, waits.append, threading.Event())
        seen.append(shelf.store.find(one.kind, one.fingerprint))

    with removing(shelf.store.root, waits.append):
        found = Collector(shelf.store).find().waste
        starting = threading.Thread(target=start)
        starting.start()
        while not waits and starting.is_alive():
            starting.join(0.01)
        assert starting.is_alive() and not seen
        assert [waste.address for waste in found] == [shelf.store.address(one.kind, one.fingerprint)]
        assert discard(found[0])
    starting.join(30)
    assert seen == [None] and "gc" in waits[0]


def test_a_run_that_began_before_a_removal_is_seen_by_it(shelf: Shelf) -> None:
    [one] = stock(shelf, 1)
    begin(shelf, one)
    wait_for_removals(shelf.store.root, lambda text: None, threading.Event())
    with removing(shelf.store.root, lambda text: None):
        assert Collector(shelf.store).find().waste == []


def test_removals_leave_no_more_than_the_newest_entries_of_their_lease(shelf: Shelf) -> None:
    for _ in range(3):
        with removing(shelf.store.root, lambda text: None):
            pass
    assert len(LeaseLog(join(shelf.store.root, "removal")).numbers()) <= 2


def test_a_run_cut_off_by_a_reboot_is_over_and_one_of_another_machine_is_let_go_by_name(
    shelf: Shelf, capsys: pytest.CaptureFixture[str]
) -> None:
    stock(shelf, 1)
    me = Holder.me()
    begin(shelf, holder=replace(me, boot=f"another-boot/{me.boot.partition('/')[2]}"))
    assert len(Collector(shelf.store).find().waste) == 1
    begin(shelf, holder=replace(me, host="elsewhere"))
    finding = Collector(shelf.store).find()
    assert finding.waste == [] and "`atelier gc --forget run-2`" in finding.left[0]
    assert run(["gc", "--forget", "run-2", "--yes"]) == 0 and names(shelf) == set()
    capsys.readouterr()
    begin(shelf, *stock(shelf, 1))
    assert run(["gc", "--forget", "run-2", "--yes"]) == 2, "a run that lives here"
    assert "stop it first" in capsys.readouterr().err and names(shelf) == {"c0"}


def test_an_unreadable_record_of_a_training_loses_none_of_its_checkpoints(shelf: Shelf) -> None:
    tokens = shelf.publish("tokens", "main", run="run-1")
    segment = shelf.trajectory("model", {"tokens.main": tokens.fingerprint})
    shelf.checkpoint(segment, 100)
    write_bytes(join(segment.url, "trajectory.json"), b"")
    finding = Collector(shelf.store, now=LATER).find()
    assert finding.waste == [] and "trajectory.json" in finding.left[0]
    asked = Collector(shelf.store, now=LATER).find(damaged=True).waste
    assert [one.url for one in asked] == [join(segment.url, "trajectory.json")]


def test_a_training_that_a_stopped_run_took_up_from_a_forgotten_one_stays(shelf: Shelf) -> None:
    segment = shelf.trajectory("model", {})
    shelf.checkpoint(segment, 100)
    row = {"name": "model", "kind": "model", "fingerprint": "a" * 64, "keeps": [segment.fingerprint]}
    write_manifest(
        shelf.store, RunManifest.model_validate({"id": "run-3", "status": "stopped", "tasks": [row]})
    )
    assert Collector(shelf.store, now=LATER).find().waste == []
