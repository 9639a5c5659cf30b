"""The file of what a training reads: written once, verified, and replaced by identity when it is lost."""

from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.data_plan import DataPlan
from atelier.engine.config.error import DataError
from atelier.engine.config.mixture import Stream
from atelier.infra.store.data_plans import DATA, TrainingRead, plan_of, recorded_plan, write_data_plan
from atelier.infra.store.store import Store
from atelier.infra.store.trajectory import read_trajectory
from tests.engine.trainings import train
from tests.infra.records import Shelf

HOW: dict[str, Any] = {"global_batch": 4, "seed": 1, "sequence": 16, "objective": {"lm": {"kind": "lm"}}}


def plan(weight: float) -> DataPlan:
    return DataPlan.of(train(9), [Stream(input="tokens.main", weight=weight)], (), "blocks")


def read(trajectory: str) -> TrainingRead:
    return TrainingRead(trajectories=(trajectory,), planned=trajectory, start=0, end=9, source="tokens.main")


def test_the_first_plan_stays_and_a_damaged_one_counts_as_none(tmp_path: Path) -> None:
    store, fingerprint = Store(str(tmp_path)), "a" * 64
    Path(store.address("trajectory", fingerprint)).mkdir(parents=True)
    assert recorded_plan(store, fingerprint) is None
    write_data_plan(store, fingerprint, plan(2.0), train(9))
    write_data_plan(store, fingerprint, plan(3.0), train(9))
    assert recorded_plan(store, fingerprint) == plan(2.0)
    place = Path(store.address("trajectory", fingerprint), DATA)
    text = place.read_text()
    for damaged in (text[:-9], text.replace("2.0", "2.5"), "[]", "", '{"plan": NaN, "digest": 1}'):
        place.write_text(damaged)
        assert recorded_plan(store, fingerprint) is None


def test_trainings_at_several_sites_have_no_plan(tmp_path: Path) -> None:
    store, fingerprint = Store(str(tmp_path)), "a" * 64
    Path(store.address("trajectory", fingerprint)).mkdir(parents=True)
    link = {"site": "a", "mailbox": "/x", "roles": {"a": ["model"], "b": ["student"]}}
    linked = train(9, link=link)
    write_data_plan(store, fingerprint, plan(1.0), linked)
    assert recorded_plan(store, fingerprint) is None


def test_without_its_file_the_plan_follows_from_the_root_s_objectives(tmp_path: Path) -> None:
    shelf = Shelf(Store(str(tmp_path)))
    data = {"tokens.main": "b" * 64, "tokenizer": "c" * 64}
    teacher = shelf.trajectory("t", data, **HOW)
    own: dict[str, Any] = HOW | {"objective": {"logits": {"kind": "logits"}, "mlm": {"kind": "mlm"}}}
    student = shelf.trajectory("s", data | {"teacher": teacher.fingerprint}, **own)
    records = {fp: read_trajectory(shelf.store, fp) for fp in (teacher.fingerprint, student.fingerprint)}
    found = plan_of(shelf.store, records, {}, read(student.fingerprint))
    assert [stream.kind for stream in found.streams] == ["windows"]  # not its own mlm
    del records[teacher.fingerprint]
    with pytest.raises(DataError, match="a teacher, which may define its samples"):
        plan_of(shelf.store, records, {}, read(student.fingerprint))
    finished = {teacher.fingerprint: None}
    assert [
        each.kind for each in plan_of(shelf.store, records, finished, read(student.fingerprint)).streams
    ] == ["mlm"]
    write_data_plan(shelf.store, student.fingerprint, plan(1.0), train(9))
    assert plan_of(shelf.store, records, {}, read(student.fingerprint)) == plan(1.0)
    with pytest.raises(DataError, match="its record is missing or damaged"):
        plan_of(shelf.store, {}, {}, read(student.fingerprint))
