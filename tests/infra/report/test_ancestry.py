"""Every route of text to a model, from hand-made records."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.record import Record
from atelier.engine.config.run_file import SegmentAddress
from atelier.engine.config.trajectory import Segment
from atelier.infra.report.ancestry import TextRoute, routes
from atelier.infra.report.lineage import Index
from atelier.infra.store.store import Store
from atelier.infra.store.trajectory import BIRTH, register_trajectory
from tests.infra.records import Shelf

TAUGHT: dict[str, Any] = {"gate_step": 100, "teacher_steps": [100, 399], "period": 1, "left_at": 400}


class Bench:
    """Records of a small world: one text each for the teacher, its init and the tokenizer."""

    def __init__(self, root: Path) -> None:
        self.shelf = Shelf(Store(str(root)))
        self.learned = self.shelf.publish("corpus", "learned", source="a")
        self.tokenizer = self.shelf.publish("tokenizer", "bpe", {"corpus.main": self.learned.fingerprint})

    def corpus(self, name: str, parents: dict[str, str] | None = None) -> Record:
        return self.shelf.publish("corpus", name, parents, source=name)

    def tokens(self, corpus: Record) -> dict[str, str]:
        parents = {"corpus": corpus.fingerprint, "tokenizer": self.tokenizer.fingerprint}
        made = self.shelf.publish("tokens", corpus.name, parents)
        return {"tokens.main": made.fingerprint, "tokenizer": self.tokenizer.fingerprint}

    def trained(
        self, name: str, parents: dict[str, str], *, start: int = 0, step: int = 400, **more: Any
    ) -> Record:
        """A model of one trajectory from `start`."""
        identity = {"seed_name": name, **({"start": start} if start else {}), **more.pop("how", {})}
        part = Segment(start=start, end=step, identity=identity, parents=parents)
        register_trajectory(self.shelf.store, name, part, {})
        url = self.shelf.store.address("trajectory", part.fingerprint)
        segment = SegmentAddress(fingerprint=part.fingerprint, url=url, start=start, end=step)
        return self.shelf.model(name, segment, parents, step=step, started_at=start, **more)

    def routes(self, model: Record) -> list[TextRoute]:
        return routes(Index(Store(self.shelf.store.root)), model)

    def told(self, model: Record) -> set[tuple[str, str]]:
        """Kind and end of each route."""
        return {
            (each.kind, each.end.record.name if each.end.record else each.unknown)
            for each in self.routes(model)
        }


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def trajectory_of(model: Record) -> str:
    return model.parents["trajectory"]


def test_text_of_a_training_of_its_trunk_and_of_its_tokenizer(bench: Bench) -> None:
    data = bench.tokens(bench.corpus("sea"))
    trunk = bench.shelf.trajectory("m", data, end=300)
    branch = bench.shelf.trajectory("m", data | {"trunk": trunk.fingerprint}, trunk_step=300)
    model = bench.shelf.model("m", branch, data, step=400)
    assert bench.told(model) == {("own", "sea"), ("tokenizer", "learned")}
    [own] = [each for each in bench.routes(model) if each.kind == "own"]
    assert [(link.label, link.record and link.record.kind) for link in own.chain] == [
        ("model", "model"), ("tokens.main", "tokens"), ("corpus", "corpus"),
    ]  # fmt: skip
    assert own.training is not None
    assert own.training.trajectories == (trunk.fingerprint, branch.fingerprint)
    assert (own.training.start, own.training.end, own.training.source) == (0, 400, "tokens.main")


def test_a_teacher_counts_as_far_as_it_had_come_at_the_last_lesson(bench: Bench) -> None:
    data = bench.tokens(bench.corpus("sea"))
    base = bench.trained("base", bench.tokens(bench.corpus("land")))
    teacher = bench.trained("teacher", data | {"init": base.fingerprint}, rolled_back=[40, 390], pass_over=2)
    taught = data | {"teacher": trajectory_of(teacher)}
    student = bench.trained("student", taught, start=100, step=380, **TAUGHT | {"teacher_steps": [120, 379]})
    found = {each.via: each for each in bench.routes(student)}
    assert {via: each.end.record and each.end.record.name for via, each in found.items()} == {
        (): "sea", ("tokenizer",): "learned", ("teacher",): "sea", ("teacher", "tokenizer"): "learned",
        ("teacher", "init"): "land", ("teacher", "init", "tokenizer"): "learned",
    }  # fmt: skip
    training = found["teacher",].training
    assert training is not None
    assert (training.start, training.end, training.left_out) == (0, 379, (38, 39))
    assert training.all_left_out == (38, 39, 388, 389)
    [lesson] = found["teacher",].lessons
    assert (lesson.student, lesson.first, lesson.teacher_end) == ("student", 100, 379)
    own = found[()].training
    assert own is not None and own.start == 100


def test_a_frozen_teacher_had_read_all_and_one_behind_a_closed_gate_taught_nothing(bench: Bench) -> None:
    data = bench.tokens(bench.corpus("sea"))
    teacher = bench.trained("teacher", data)
    taught = data | {"teacher": trajectory_of(teacher)}
    frozen = bench.trained("frozen", taught, step=50, how={"attach": "frozen"}, gate_step=0, left_at=50)
    [route] = [each for each in bench.routes(frozen) if each.via == ("teacher",)]
    assert route.training is not None and route.training.end == 400
    closed = bench.trained("closed", taught, step=60, gate_step=None, teacher_steps=[])
    assert {each.kind for each in bench.routes(closed)} == {"own", "tokenizer"}
    finished = bench.trained("finished", data | {"teacher": teacher.fingerprint}, step=70, gate_step=0)
    [route] = [each for each in bench.routes(finished) if each.via == ("teacher",)]
    assert route.training is not None and route.training.end == 400
    assert route.lessons[0].teacher_end is None


def test_lessons_of_a_teacher_that_is_a_student_end_with_what_it_had_learned(bench: Bench) -> None:
    data = bench.tokens(bench.corpus("sea"))
    teacher = bench.trained("teacher", data)
    middle = bench.trained("middle", data | {"teacher": trajectory_of(teacher)}, **TAUGHT)
    taught = data | {"teacher": trajectory_of(middle)}
    late = bench.trained("late", taught, start=150, step=200, gate_step=150, teacher_steps=[150, 199])
    found = {each.via: each.training for each in bench.routes(late)}
    assert [each and each.end for each in (found["teacher",], found["teacher", "teacher"])] == [199, 198]
    early = bench.trained("early", taught, step=90, gate_step=0, teacher_steps=[0, 89])
    assert ("teacher", "teacher") not in {each.via for each in bench.routes(early)}  # before its gate


def test_writers_imitators_parents_of_conversions_and_labels(bench: Bench) -> None:
    writer = bench.trained("writer", bench.tokens(bench.corpus("sea")))
    begun = bench.corpus("begun")
    parents = {"corpus": begun.fingerprint, "model": writer.fingerprint}
    data = bench.tokens(bench.shelf.publish("corpus", "by writer", parents))
    critic = {"model": writer.fingerprint, "tokens": data["tokens.main"], "tokenizer": "c" * 64}
    copies = bench.shelf.publish("imitations", "copies", critic)
    model = bench.trained("m", data | {"imitations.main": copies.fingerprint})
    grown = bench.shelf.publish("model", "grown", {"model": model.fingerprint}, rule={"kind": "depth"})
    labels = bench.shelf.publish("labels", "quiz")
    tuning = {"init": grown.fingerprint, "labels": labels.fingerprint, "tokenizer": data["tokenizer"]}
    tuned = bench.trained("tuned", tuning, step=4, how={"num_labels": 8})
    adapter = bench.shelf.publish("adapter", "small", {"base": grown.fingerprint, "model": tuned.fingerprint})
    for end in (tuned, adapter):
        found = {(each.via, each.end.record and each.end.record.name) for each in bench.routes(end)}
        assert ((), "quiz") in found
        assert {(("init", "init"), "by writer"), (("init", "init"), "copies")} <= found
        assert {(("init", "init", way), "sea") for way in ("written", "imitated")} <= found
        assert "begun" not in {name for _, name in found}


def test_what_comes_from_outside_is_unknown_and_never_nothing(bench: Bench) -> None:
    loaded = bench.shelf.publish("tokenizer", "loaded", sha256="0")
    guest = bench.shelf.publish(
        "model", "guest", {"tokenizer": loaded.fingerprint}, summary={"source": "hub"}, family="llama"
    )
    ours = bench.trained("ours", bench.tokens(bench.corpus("sea")) | {"init": guest.fingerprint})
    found = {(each.kind, each.via): each.unknown for each in bench.routes(ours)}
    assert found["adopted", ("init",)] == "model guest comes from outside (hub); what it had read is unknown"
    assert "not learned here" in found["adopted", ("init", "tokenizer")]
    parents = {"init": guest.fingerprint, "adapter": "a" * 64, "tokenizer": loaded.fingerprint}
    worn = bench.shelf.publish("model", "worn", parents)
    assert {(each.kind, each.via) for each in bench.routes(worn)} == {
        ("adopted", ()), ("adopted", ("init",)), ("adopted", ("tokenizer",)),
        ("adopted", ("init", "tokenizer")),
    }  # fmt: skip


@pytest.mark.parametrize("damage", ["missing", "damaged"])
@pytest.mark.parametrize("what", ["tokens", "init", "teacher", "corpus"])
def test_each_record_that_is_gone_or_damaged_is_a_route(bench: Bench, what: str, damage: str) -> None:
    corpus = bench.corpus("sea")
    data = bench.tokens(corpus)
    base, teacher = (bench.trained(name, data) for name in ("base", "teacher"))
    model = bench.trained("m", data | {"init": base.fingerprint, "teacher": teacher.fingerprint}, step=9)
    lost = {"tokens": data["tokens.main"], "init": base.fingerprint, "teacher": teacher.fingerprint}
    fingerprint = (lost | {"corpus": corpus.fingerprint})[what]
    kind = {"tokens": "tokens", "corpus": "corpus"}.get(what, "model")
    place = Path(bench.shelf.store.address(kind, fingerprint))
    shutil.rmtree(place)  # its log too, from which the store would restore the record
    if damage == "damaged":
        place.mkdir()
        (place / "record.json").write_text("{}")
    gone = [each for each in bench.routes(model) if each.kind == "unreadable"]
    assert {each.end.fingerprint for each in gone} == {fingerprint}
    assert all("is missing or damaged" in each.unknown and each.end.record is None for each in gone)
    assert len([each for each in bench.routes(model) if each.kind == "own"]) == (what in ("init", "teacher"))


def test_a_trajectory_that_is_gone_leaves_the_text_and_takes_the_steps(bench: Bench) -> None:
    data = bench.tokens(bench.corpus("sea"))
    trunk = bench.shelf.trajectory("m", data, end=300)
    branch = bench.shelf.trajectory("m", data | {"trunk": trunk.fingerprint}, trunk_step=300)
    model = bench.shelf.model("m", branch, data, step=400)
    Path(trunk.url, BIRTH).unlink()
    found = bench.routes(model)
    assert [each.end.fingerprint for each in found if each.kind == "unreadable"] == [trunk.fingerprint]
    [own] = [each for each in found if each.kind == "own"]
    assert own.training is not None and own.training.trajectories == (trunk.fingerprint, branch.fingerprint)
    Path(branch.url, BIRTH).unlink()
    [own] = [each for each in bench.routes(model) if each.kind == "own"]
    assert own.training is None and own.end.record is not None
