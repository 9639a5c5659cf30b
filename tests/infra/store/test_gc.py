"""gc removes artifacts that nothing needs, says why, and never touches those that are needed or being
written.
"""

import hashlib
import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.document import with_digest
from atelier.engine.config.error import DamageError
from atelier.engine.config.record import Record, identify
from atelier.engine.config.trajectory import Segment
from atelier.engine.io.artifact import ArtifactOutput
from atelier.engine.io.storage import join, remove, write_bytes
from atelier.infra.launch.channel import Channel
from atelier.infra.store import removal
from atelier.infra.store.gc import ATTEMPT_S, JOB_FOLDER_TTL_S, UNKNOWN_S, Collector
from atelier.infra.store.lease import Holder, take
from atelier.infra.store.removal import discard
from atelier.infra.store.run_manifest import RunManifest, write_manifest
from atelier.infra.store.store import Store, read_body
from atelier.infra.store.trajectory import checkpoint_steps, register_trajectory

LATER = time.time() + 2 * UNKNOWN_S  # the collector's now: all is old by then, however long the tests take


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def publish(
    store: Store, kind: str, name: str, run: str, parents: dict[str, str] | None = None, **identity: Any
) -> Record:
    parents = parents or {}
    fp = identify(kind, 1, identity, parents)
    payload = store.new_payload(kind, fp)
    output = ArtifactOutput(payload)
    output.add_bytes("data.bin", name.encode() * 100)
    output.close({})
    draft = Record(
        kind=kind,
        name=name,
        fingerprint=fp,
        version=1,
        identity=identity,
        parents=parents,
        files=read_body(payload)[0],
        provenance={"run": run},
    )
    return store.publish(draft, Holder.me())


def manifest(store: Store, run: str, *records: Record, status: str = "finished", **more: Any) -> None:
    tasks = [{"name": r.name, "kind": r.kind, "fingerprint": r.fingerprint, "parents": {}} for r in records]
    write_manifest(
        store,
        RunManifest.model_validate(
            {"id": run, "flow": "pretrain", "status": status, "tasks": tasks, "config": {}, **more}
        ),
    )


def trajectory(
    store: Store,
    name: str,
    run: str,
    steps: tuple[int, ...],
    parents: dict[str, str] | None = None,
    **identity: Any,
) -> str:
    part = Segment(start=0, end=steps[-1], identity={"seed_name": name} | identity, parents=parents or {})
    register_trajectory(store, name, part, {"run": run})
    for step in steps:
        write_bytes(
            join(
                store.address("trajectory", part.fingerprint),
                "checkpoints",
                f"step-{step:08d}",
                "manifest.json",
            ),
            b"{}" * 500,
        )
    return part.fingerprint


def found(store: Store, **how: Any) -> dict[str, str]:
    return {one.what: one.why for one in Collector(store, now=LATER, **how).find().waste}


def gone_holder() -> dict[str, Any]:
    return {**vars(Holder.me()), "pid": 2**22 + 1}


def test_what_a_run_names_and_all_it_came_from_stays(store: Store) -> None:
    corpus = publish(store, "corpus", "main", "run-1")
    tokens = publish(store, "tokens", "main", "run-1", {"corpus": corpus.fingerprint})
    model = publish(store, "model", "model", "run-2", {"tokens.main": tokens.fingerprint})
    manifest(store, "run-2", model)  # run-1 left no manifest; run-2 reused its tokens
    assert found(store) == {}


def test_scratch_of_a_killed_run_is_not_said_to_be_running(store: Store) -> None:
    manifest(store, "run-1", status="running", holder=gone_holder())
    write_bytes(join(store.root, "scratch", "run-1", "out"), b"")
    write_bytes(join(store.root, "scratch", "run-0", "out"), b"")  # without a manifest
    assert set(found(store).values()) == {"the run has ended (killed)"}


def test_what_no_run_names_goes_with_its_files_and_leaves_nothing_behind(store: Store) -> None:
    kept = publish(store, "corpus", "kept", "run-1")
    lost = publish(store, "corpus", "lost", "run-0", {}, other=1)
    manifest(store, "run-1", kept)
    [waste] = Collector(store, now=LATER).find().waste
    assert (
        waste.what.startswith("corpus lost")
        and "no run or descendant needs it" in waste.why
        and waste.bytes > 400
    )
    assert discard(waste)
    assert store.find("corpus", lost.fingerprint) is None
    assert os.listdir(Path(store.root) / "corpus") == [kept.fingerprint[:16]]
    assert store.check(kept) == []


def test_what_is_removed_from_an_object_store_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store("memory://removed")
    record = publish(store, "corpus", "lost", "run-0")
    [waste] = Collector(store, now=LATER).find().waste
    between: list[bool] = []

    def remove_then_look(url: str) -> None:
        remove(url)
        between.append(store.find("corpus", record.fingerprint) is not None)

    monkeypatch.setattr(removal, "remove", remove_then_look)
    assert discard(waste)
    assert between[-1] is False and between == sorted(between, reverse=True), "it came back"
    assert between.count(False) > 1, "its last files go while somebody could still find it"


def _collect(root: str, start: float) -> None:
    while time.time() < start:
        pass
    for waste in Collector(Store(root), now=LATER).find().waste:
        discard(waste)
    os._exit(0)  # see tests/infra/store/test_store.py, _publish


def test_four_collectors_at_once_trip_over_none_of_their_removals(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for number in range(8):
        store = Store(str(tmp_path / str(number)))
        for each in range(30):
            publish(store, "corpus", f"c{each}", "gone", each=each)
        start = time.time() + 0.2
        racers = [context.Process(target=_collect, args=(store.root, start)) for _ in range(4)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        assert [racer.exitcode for racer in racers] == [0] * 4
        assert list(store.records()) == []


def test_a_forgotten_run_takes_with_it_what_only_it_needs(store: Store) -> None:
    corpus = publish(store, "corpus", "shared", "run-1")
    mine = publish(store, "tokens", "mine", "run-1", {"corpus": corpus.fingerprint})
    other = publish(store, "tokens", "other", "run-2", {"corpus": corpus.fingerprint}, x=1)
    manifest(store, "run-1", corpus, mine)
    manifest(store, "run-2", other)
    assert found(store) == {}
    what = found(store, forget=["run-1"])
    assert sorted(name.split(" ")[1] for name in what) == ["mine", "run-1"]


def test_files_of_an_attempt_that_the_record_does_not_list_go_and_the_record_stays_whole(
    store: Store,
) -> None:
    record = publish(store, "corpus", "main", "run-1")
    manifest(store, "run-1", record)
    stray = store.new_payload("corpus", record.fingerprint)
    write_bytes(join(stray, "half.bin"), b"x" * 999)
    [waste] = Collector(store, now=LATER).find().waste
    assert waste.bytes == 999 and discard(waste)
    assert not Path(stray).exists() and store.check(record) == []


def test_an_unfinished_artifact_goes_only_when_it_is_old_and_nobody_writes_it(store: Store) -> None:
    address = store.address("tokens", "ab" * 32)
    write_bytes(join(address, "payload-00000000", "half.bin"), b"x")
    assert Collector(store, now=time.time() + ATTEMPT_S / 2).find().waste == []
    lease = take(address, Holder.me("encode"))
    assert lease is not None
    finding = Collector(store, now=LATER).find()
    assert finding.waste == [] and "encode" in finding.left[0]
    lease.release()
    [waste] = Collector(store, now=LATER).find().waste
    assert discard(waste) and not Path(address).exists()


def test_what_is_taken_up_between_the_look_and_the_removal_stays(store: Store) -> None:
    address = store.address("tokens", "ab" * 32)
    write_bytes(join(address, "payload-00000000", "half.bin"), b"x")
    [waste] = Collector(store, now=LATER).find().waste
    lease = take(address, Holder.me("encode"))
    assert lease is not None and not discard(waste)
    assert Path(address, "payload-00000000", "half.bin").exists()


def test_a_finished_training_keeps_its_newest_its_best_its_marked_and_its_branch_points(store: Store) -> None:
    trunk = trajectory(store, "teacher", "run-1", (6, 8, 10, 12, 16, 18))
    branch = trajectory(store, "teacher", "run-1", (20, 24), {"trunk": trunk}, trunk_step=16)
    model = publish(store, "model", "teacher", "run-1", {"trajectory": branch}, step=24)
    address = store.address("trajectory", trunk)
    write_bytes(join(address, "kept", "12"), b"")
    write_bytes(join(address, "best", "8"), b"")
    manifest(store, "run-1", model)
    for waste in Collector(store, now=LATER).find().waste:
        assert discard(waste)
    assert checkpoint_steps(address) == [8, 12, 16, 18]
    assert checkpoint_steps(store.address("trajectory", branch)) == [24]


def test_a_stopped_training_keeps_every_checkpoint_as_long_as_its_run_is_known(store: Store) -> None:
    tokens = publish(store, "tokens", "main", "run-0")
    trajectory(store, "model", "run-1", (8, 16), {"tokens.main": tokens.fingerprint})
    manifest(store, "run-1", status="stopped")
    assert found(store) == {}
    what = found(store, forget=["run-1"])
    assert [name.split(" ")[0] for name in what] == ["tokens", "trajectory", "run"]


def test_while_a_run_goes_on_no_artifact_goes_and_when_its_process_is_gone_its_scratch_does(
    store: Store,
) -> None:
    publish(store, "corpus", "fresh", "run-1")
    write_bytes(join(store.root, "scratch", "run-1", "000-curate", "run.json"), b"{}")
    manifest(store, "run-1", status="running", holder=vars(Holder.me()))
    finding = Collector(store, now=LATER).find()
    assert finding.waste == [] and "run-1" in finding.left[0]
    manifest(store, "run-1", status="running", holder=gone_holder())
    assert sorted(name.split(" ")[0] for name in found(store)) == ["corpus", "scratch"]


def test_a_run_without_a_manifest_counts_as_living_while_its_scratch_is_young(store: Store) -> None:
    publish(store, "corpus", "fresh", "run-1")
    write_bytes(join(store.root, "scratch", "run-1", "000-curate", "run.json"), b"{}")
    assert Collector(store).find().waste == []
    assert sorted(name.split(" ")[0] for name in found(store)) == ["corpus", "scratch"]


def test_letters_of_a_gang_on_other_machines_go_when_nothing_came_or_went_for_a_month(store: Store) -> None:
    Channel(store.root, "away-1").put("orders", {})
    assert Collector(store, now=time.time() + 0.9 * JOB_FOLDER_TTL_S).find().waste == []
    [waste] = Collector(store, now=time.time() + 1.1 * JOB_FOLDER_TTL_S).find().waste
    assert waste.what == "messages of gang away-1" and discard(waste)
    assert Channel(store.root, "away-1").get("orders") is None


def test_damage_is_looked_for_only_when_asked_and_its_removal_lets_the_artifact_be_made_again(
    store: Store,
) -> None:
    record = publish(store, "corpus", "main", "run-1")
    manifest(store, "run-1", record)
    file = Path(store.address("corpus", record.fingerprint)) / record.files[0].path
    file.write_bytes(b"y" + file.read_bytes()[1:])
    assert found(store) == {}
    [waste] = Collector(store, now=LATER).find(damaged=True).waste
    assert waste.is_damage and "data.bin" in waste.why and "makes it again" in waste.why
    assert discard(waste) and store.find("corpus", record.fingerprint) is None
    assert publish(store, "corpus", "main", "run-2").fingerprint == record.fingerprint


def test_a_record_that_cannot_be_read_is_damage_too(store: Store) -> None:
    record = publish(store, "corpus", "main", "run-1")
    manifest(store, "run-1", record)
    address = Path(store.address("corpus", record.fingerprint))
    for entry in (address / "log").iterdir():
        entry.unlink()
    (address / "record.json").write_text("{")
    with pytest.raises(DamageError):
        store.find("corpus", record.fingerprint)
    assert found(store) == {}
    [waste] = Collector(store, now=LATER).find(damaged=True).waste
    assert discard(waste) and store.find("corpus", record.fingerprint) is None


def test_a_damaged_checkpoint_is_damage_too_and_goes_alone(store: Store) -> None:
    fingerprint = trajectory(store, "teacher", "run-1", (4, 8))
    manifest(store, "run-1", status="stopped")
    address = store.address("trajectory", fingerprint)
    folder = Path(address) / "checkpoints" / "step-00000004"
    body = {"files": [{"path": "a.bin", "bytes": 3, "sha256": hashlib.sha256(b"abc").hexdigest()}]}
    for file, data in (("manifest.json", with_digest(json.dumps(body).encode())), ("a.bin", b"abd")):
        (folder / file).write_bytes(data)
    assert found(store) == {}
    waste = Collector(store, now=LATER).find(damaged=True).waste
    assert [one.what.split(", ")[1] for one in waste] == ["step 4", "step 8"]
    assert "a.bin: content does not match" in waste[0].why and "the digest inside it" in waste[1].why
    (folder / "a.bin").write_bytes(b"abc")
    [waste] = Collector(store, now=LATER).find(damaged=True).waste
    assert discard(waste) and checkpoint_steps(address) == [4]
    held = take(address, Holder.me())
    (folder / "a.bin").unlink()
    finding = Collector(store, now=LATER).find(damaged=True)
    assert held is not None and finding.waste == [] and "is being written by" in finding.left[0]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        with_digest(b"[]"),
        with_digest(b'{"files": 3}'),
        with_digest(b'{"files": [3]}'),
        with_digest(
            b'{"files": [{"path": "../../../record.json", "bytes": 0, "sha256": "%s"}]}' % (b"0" * 64)
        ),
        with_digest(b'{"files": [{"path": "\\ud800", "bytes": 1e999, "sha256": ""}]}'),
    ],
)
def test_a_made_up_manifest_of_a_checkpoint_is_damage_and_no_fault(store: Store, text: bytes) -> None:
    fingerprint = trajectory(store, "teacher", "run-1", (4,))
    manifest(store, "run-1", status="stopped")
    folder = Path(store.address("trajectory", fingerprint)) / "checkpoints" / "step-00000004"
    (folder / "manifest.json").write_bytes(text)
    [waste] = Collector(store, now=LATER).find(damaged=True).waste
    assert "manifest.json" in waste.why and discard(waste)


def test_a_removal_that_was_cut_off_is_finished_by_the_next(store: Store) -> None:
    publish(store, "corpus", "main", "run-1")
    write_bytes(join(store.root, "corpus", ".tmp-gc-00000000", "record.json"), b"{}")
    manifest(store, "run-1", *store.records())
    [waste] = Collector(store, now=LATER).find().waste
    assert "interrupted" in waste.why and discard(waste)
    assert not (Path(store.root) / "corpus" / ".tmp-gc-00000000").exists()
