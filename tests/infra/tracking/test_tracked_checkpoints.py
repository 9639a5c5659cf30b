"""Exams of checkpoints are points of the training's curve, at the checkpoints' steps, once."""

from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.record import Record
from atelier.infra.tracking.about import Followed
from atelier.infra.tracking.curve import curves_of
from tests.infra.records import Shelf, family
from tests.infra.runs import client, publish_all, runs, tracker


def examined(shelf: Shelf, trajectory: str, step: int, **metrics: float) -> Record:
    found = [each for each in shelf.store.records("evaluation") if each.name == "q"]
    asked = found[0] if found else shelf.publish("evaluation", "q", {})
    parents = {"trajectory": trajectory, "set": asked.fingerprint}
    return shelf.publish("exam", f"step {step} on q", parents, summary=metrics | {"questions": 4}, step=step)


def points(root: Path, key: str = "exam/q/accuracy", role: str = "teacher") -> list[tuple[int, float]]:
    [run] = runs(root, f"tags.`atelier.kind` = 'trajectory' AND tags.`atelier.role` = '{role}'")
    return sorted((one.step, one.value) for one in client(root).get_metric_history(run.info.run_id, key))


def test_exams_are_points_of_the_curve_at_their_steps(root: Path) -> None:
    made = family(root)
    tracked = tracker(root)
    publish_all(tracked, made)
    trajectory = made.segments["teacher"].fingerprint
    exams = [examined(made.shelf, trajectory, step, accuracy=step / 1000) for step in (200, 400)]
    for record in [*exams, *exams]:
        tracked.record(record)
    assert tracked.close() == []
    later = tracker(root, run_id="run-2")
    later.record(exams[0])
    assert later.close() == []
    assert points(root) == [(200, 0.2), (400, 0.4)]


def test_an_exam_before_its_training_has_a_run_is_written_later(root: Path) -> None:
    made = family(root)
    first = tracker(root, run_id="watch-1", flow="watch")
    segment = made.shelf.trajectory("unfinished", {"tokens.main": made["tokens"].fingerprint})
    made.shelf.metrics(segment, range(1, 201))
    exam = examined(made.shelf, segment.fingerprint, 200, accuracy=0.5)
    first.record(exam)
    assert first.close() == []
    assert not runs(root, "tags.`atelier.kind` = 'trajectory'")
    training = tracker(root, run_id="run-2")
    training.follow(curves_of([Followed(segments=(segment,), role="unfinished")]), None).stop()
    assert training.close() == []
    second = tracker(root, run_id="watch-2", flow="watch")
    second.record(exam)
    assert second.close() == []
    assert points(root, role="unfinished") == [(200, 0.5)]
    assert len(points(root, "loss", "unfinished")) == 200


def test_of_a_finished_model_without_a_run_the_store_has_the_curve(root: Path) -> None:
    made = family(root)
    tracked = tracker(root, flow="watch")
    tracked.record(examined(made.shelf, made.segments["teacher"].fingerprint, 200, accuracy=0.25))
    assert tracked.close() == []
    assert points(root) == [(200, 0.25)]
    assert points(root, "loss")[-1][0] == 400


@pytest.mark.parametrize("damage", ["", "{}"])
def test_a_damaged_record_of_the_trajectory_loses_no_exam(root: Path, damage: str) -> None:
    made = family(root)
    tracked = tracker(root)
    publish_all(tracked, made)
    place: Any = Path(made.segments["teacher"].url) / "trajectory.json"
    place.write_text(damage)
    tracked.record(examined(made.shelf, made.segments["teacher"].fingerprint, 400, accuracy=0.5))
    assert tracked.close() == []
    assert points(root) == [(400, 0.5)]
