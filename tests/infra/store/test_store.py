"""An artifact exists once, complete, and only with its record."""

import json
import multiprocessing
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from atelier.engine.config.error import DamageError
from atelier.engine.config.record import FileEntry, Record, identify
from atelier.engine.io.artifact import ArtifactOutput, open_input
from atelier.engine.io.storage import write_bytes
from atelier.infra.store.lease import EXPIRY_S, Holder, LeaseLog, LeaseLost, take
from atelier.infra.store.run_manifest import Row, RunManifest, write_manifest
from atelier.infra.store.store import RECORD, Store, read_body


def draft(name: str = "a", files: tuple[FileEntry, ...] = (), **identity: object) -> Record:
    parents = {"tokens": "f" * 64}
    fp = identify("model", 1, dict(identity), parents)
    return Record(
        kind="model",
        name=name,
        fingerprint=fp,
        version=1,
        identity=dict(identity),
        parents=parents,
        files=files,
    )


def test_nothing_exists_before_its_record_and_all_of_it_after(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    record = draft(x=1)
    payload = store.new_payload("model", record.fingerprint)
    output = ArtifactOutput(payload)
    output.add_bytes("weights.bin", b"123")
    output.close({"loss": 1.5})
    assert store.find("model", record.fingerprint) is None
    files, summary = read_body(payload)
    store.publish(record.model_copy(update={"files": files, "summary": summary}), Holder.me())
    found = store.find("model", record.fingerprint)
    assert found is not None and found.summary == {"loss": 1.5}
    opened = open_input(store.address("model", record.fingerprint))
    assert opened.file("weights.bin", tmp_path / "scratch").read_bytes() == b"123"


def test_a_flipped_bit_in_a_file_or_a_record_is_named(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    record = draft(x=1)
    payload = store.new_payload("model", record.fingerprint)
    output = ArtifactOutput(payload)
    output.add_bytes("weights.bin", b"123")
    output.close({})
    record = store.publish(record.model_copy(update={"files": read_body(payload)[0]}), Holder.me())
    file = Path(payload) / "weights.bin"
    file.write_bytes(b"122")
    assert [str(file) in damage for damage in store.check(record)] == [True]
    place = Path(store.address("model", record.fingerprint)) / RECORD
    place.write_text(place.read_text().replace('"name": "a"', '"name": "b"'))
    with pytest.raises(DamageError, match="digest"):
        Record.read(place.read_text(), str(place))
    again = store.find("model", record.fingerprint)  # the log still knows it
    assert again is not None and again.name == "a"


def test_a_path_that_leaves_its_artifact_is_refused() -> None:
    for path in ("../x", "/etc/passwd", "a/../../b", "a//b", ""):
        with pytest.raises(ValueError, match="leaves its artifact"):
            FileEntry(path=path, bytes=0, sha256="")


def test_a_publication_cut_off_between_log_and_copy_is_completed_by_a_reader(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    record = store.publish(draft(x=1), Holder.me())
    (Path(store.address("model", record.fingerprint)) / RECORD).unlink()
    assert store.find("model", record.fingerprint) == record


def _publish(root: str, name: str, start: float) -> None:
    while time.time() < start:
        pass
    Store(root).publish(draft(name, x=1), Holder.me())
    os._exit(
        0
    )  # at the interpreter's end libraries of other tests look for threads that a fork does not have


def test_an_entry_that_was_written_first_stays(tmp_path: Path) -> None:
    log = LeaseLog(str(tmp_path))
    assert log.append(1, "take", Holder.me("first"))
    assert not log.append(1, "take", Holder.me("second"))
    holder = log.entry(1).holder
    assert holder is not None and holder.what == "first"


def test_who_reads_while_all_is_removed_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path / "store"))
    address = Path(store.address("model", store.publish(draft(x=1), Holder.me()).fingerprint))
    (address / RECORD).unlink()
    log, numbers = LeaseLog(str(address)), LeaseLog.numbers

    def look_then_lose(self: LeaseLog) -> list[int]:
        found = numbers(self)
        if address.exists():
            address.rename(address.parent / ".aside")
        return found

    monkeypatch.setattr(LeaseLog, "numbers", look_then_lose)
    assert log.last() is None
    (address.parent / ".aside").rename(address)
    assert store.find("model", address.name) is None
    assert not address.exists()


def test_eight_racing_publishers_leave_one_record(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    start = time.time() + 0.5
    racers = [context.Process(target=_publish, args=(str(tmp_path), f"racer{i}", start)) for i in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
        assert racer.exitcode == 0
    store = Store(str(tmp_path))
    record = store.find("model", draft(x=1).fingerprint)
    assert record is not None
    log = LeaseLog(store.address("model", record.fingerprint))
    assert [log.entry(n).act for n in log.numbers()] == ["publish"]
    assert log.entry(1).record == json.loads(record.text())


def test_a_living_holder_is_waited_for_and_a_dead_one_is_not(tmp_path: Path) -> None:
    address = str(tmp_path / "trajectory" / "1234")
    context = multiprocessing.get_context("fork")
    child = context.Process(target=lambda: take(address, Holder.me()))
    child.start()
    child.join()
    lease = take(address, Holder.me())  # the child is gone: no wait
    assert lease is not None and lease.fence == 2
    waits: list[str] = []
    second = take(
        address, Holder.me(), expiry_s=0.5, on_wait=waits.append
    )  # this process lives, but is silent
    assert second is not None and second.fence == 3 and len(waits) == 1


class Clock:
    """What infra.store.lease knows of time: sleeping is free."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 2000.0, "waits for ever"


def test_who_holds_and_says_nothing_for_a_minute_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("atelier.infra.store.lease.time", clock)
    log = LeaseLog(str(tmp_path / "t"))
    assert log.append(1, "take", replace(Holder.me(), host="elsewhere"))
    lease = take(log.address, Holder.me())
    assert lease is not None and lease.fence == 2 and EXPIRY_S < clock.now - 1000.0 < EXPIRY_S + 1
    assert not lease.is_expired()
    clock.sleep(EXPIRY_S + 1)
    assert lease.is_expired(), "whoever could not renew for so long may have been taken over"


def test_a_lease_whose_newest_entry_cannot_be_read_is_taken_after_the_silence_of_whoever_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holders = ("[]", '{"pid":1}', '{"host":"h","boot":"b","pid":"../1","started":"1"}')
    odd = [f'{{"act":"take","holder":{holder}}}'.encode() for holder in holders]
    odd += [b"", b"[]", b"{}", b'{"act":"take"}', b"[" * 10**5, b"\xff"]
    for number, content in enumerate(odd):
        clock, waits = Clock(), list[str]()
        monkeypatch.setattr("atelier.infra.store.lease.time", clock)
        log = LeaseLog(str(tmp_path / str(number)))
        write_bytes(log.place(1), content)
        write_bytes(f"{log.folder}/beat-000001", b"\xff 1 2:3:4 x:y")
        lease = take(log.address, Holder.me(), on_wait=waits.append)
        assert lease is not None and lease.fence == 2 and clock.now - 1000.0 > EXPIRY_S
        assert len(waits) == 1 and "000001.json" in waits[0] and lease.is_mine()


def test_a_renewed_lease_is_not_judged_silent(tmp_path: Path) -> None:
    import threading

    from atelier.engine.config.error import StoppedError
    from atelier.infra.store.lease import Renewal

    address = str(tmp_path / "t")
    lease = take(address, Holder.me())
    assert lease is not None
    renewal = Renewal([lease], every_s=0.05)
    stop = threading.Event()
    threading.Timer(1.0, stop.set).start()
    with pytest.raises(StoppedError):
        take(address, Holder.me(), expiry_s=0.4, stopped=stop)
    renewal.stop()
    assert not renewal.lost.is_set()


def test_a_stale_holder_publishes_nothing(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    record = draft(x=1)
    address = store.address("model", record.fingerprint)
    first = take(address, Holder.me())
    assert first is not None
    second = take(address, Holder.me(), handover=first.fence)
    assert second is not None
    with pytest.raises(LeaseLost):
        store.publish(record, Holder.me(), fence=first.fence)
    assert store.find("model", record.fingerprint) is None
    assert store.publish(record, Holder.me(), fence=second.fence) == store.find("model", record.fingerprint)


def test_names_aliases_and_prefixes_find_the_newest(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.publish(draft("a", x=1).model_copy(update={"provenance": {"ended": 1.0}}), Holder.me())
    new = store.publish(draft("a", x=2).model_copy(update={"provenance": {"ended": 2.0}}), Holder.me())
    assert store.resolve("a") == new
    assert store.resolve(new.fingerprint[:8]) == new
    with pytest.raises(Exception, match="did you mean a"):
        store.resolve("aa", "model")


def test_what_a_run_reused_under_another_name_is_found_by_both(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    made = store.publish(draft("a", x=1), Holder.me())
    again = Row(fingerprint=made.fingerprint, model="b", kind=made.kind)
    gone = Row(fingerprint="0" * 64, model="b", kind=made.kind)
    for number, row in enumerate((again, gone)):
        write_manifest(store, RunManifest(id=f"run-{number}", started=float(number), tasks=(row,)))
    assert store.resolve("a") == store.resolve("b") == store.resolve("b", made.kind) == made
    with pytest.raises(Exception, match="no scores called"):
        store.resolve("b", "scores")
    own = store.publish(draft("b", x=2), Holder.me())
    assert store.resolve("b") == own
