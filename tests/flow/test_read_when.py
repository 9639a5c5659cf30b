"""When a distilled and a fine-tuned model of a real store, and their teachers, read a document."""

from pathlib import Path

import numpy as np
import pytest

from atelier.engine.data.audit.readings import DocumentSpans, PlannedData
from atelier.engine.data.tokens import TokenText
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput, open_input
from atelier.infra.report.ancestry import routes
from atelier.infra.report.lineage import Index
from atelier.infra.store.data_plans import DATA, TrainingRead, plan_of
from atelier.infra.store.store import Store
from tests.flow.command import Atelier, done

pytestmark = pytest.mark.slow
IS_STORY = True  # each test goes on from the store that the one before has left
TINY = ("experiment=tiny", "tracker=none", "score.baselines=false")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("when")


def inputs_of(index: Index, read: TrainingRead) -> dict[str, ArtifactInput]:
    last = index.trajectory_records[read.planned]
    found = {key: index.records[fp] for key, fp in last.parents.items() if fp in index.records}
    return {key: open_input(index.store.address(one.kind, one.fingerprint)) for key, one in found.items()}


def trainings(index: Index, name: str) -> dict[tuple[str, ...], TrainingRead]:
    [model] = [one for one in index.records.values() if (one.kind, one.name) == ("model", name)]
    return {each.via: each.training for each in routes(index, model) if each.training is not None}


def data_of(index: Index, read: TrainingRead, scratch: Path) -> PlannedData:
    plan = plan_of(index.store, index.trajectory_records, index.records, read)
    return PlannedData(plan, inputs_of(index, read), scratch)


def steps_with(data: PlannedData, text: TokenText, begin: int, end: int, last: int) -> list[int]:
    """The steps in which a row of windows overlaps a range, found by each row's place in the text."""
    whole, width, found = text.tokens_N.tobytes(), text.tokens_N.itemsize, []
    blend, size = data.blend(data.plan.sequence), data.plan.global_batch
    for step in range(last):
        for row in blend.batch(step * size, size)["tokens_BT"]:
            place = whole.find(row.astype(text.tokens_N.dtype).tobytes())
            assert place >= 0 and place % width == 0
            if place // width < end and begin < place // width + len(row):
                found.append(step)
    return found


def test_plans_agree_with_the_records_with_and_without_their_file(atelier: Atelier, tmp_path: Path) -> None:
    done(atelier("distill", *TINY))
    done(atelier("finetune", "init=student_a", "experiment=tiny", "tracker=none"))
    index = Index(Store(str(atelier.root)))
    found = [
        (each, each.training)
        for model in list(index.records.values())
        if model.kind == "model"
        for each in routes(index, model)
        if each.training
    ]
    assert {route.kind for route, _ in found} == {"own", "teacher", "init"}
    plans = {}
    for _, read in found:
        data = data_of(index, read, tmp_path)
        plans[read] = data.plan
        assert not data.disagreement(read.consumed, read.start, read.counted_to, read.all_left_out)
    for place in atelier.root.glob(f"trajectory/*/{DATA}"):
        place.unlink()
    for read, plan in plans.items():
        data = data_of(index, read, tmp_path)
        assert data.plan.model_copy(update={"last": plan.last}) == plan
        assert not data.disagreement(read.consumed, read.start, read.counted_to, read.all_left_out)


def test_documents_were_read_at_the_steps_whose_rows_hold_them(atelier: Atelier, tmp_path: Path) -> None:
    index = Index(Store(str(atelier.root)))
    tuned = trainings(index, "student_a/pretrained-0")
    own, teacher = tuned["init",], tuned["init", "teacher"]
    assert (own.start, own.end, teacher.start) == (12, 24, 0) and teacher.end == 23
    inputs = inputs_of(index, own)
    spans = DocumentSpans(inputs["tokens.main"], Vocabulary.of(inputs["tokenizer"], tmp_path), tmp_path)
    ranges = spans.documents(range(len(spans)))
    text = TokenText(inputs["tokens.main"], tmp_path, "train")
    sizes = ranges[:, 1] - ranges[:, 0]
    some = np.argsort(sizes)[[-1, -2, -3, len(sizes) // 2, 0, 1]]
    for read in (own, teacher):
        data = data_of(index, read, tmp_path)
        readings = data.readings("tokens.main", ranges[some], read.start, read.end)
        assert any(each.times for each in readings)
        for each, (begin, end) in zip(readings, ranges[some].tolist(), strict=True):
            steps = [one for one in steps_with(data, text, begin, end, read.end) if one >= read.start]
            assert (each.times, each.steps) == (len(steps), tuple(sorted({*steps})))


def test_labels_were_drawn_as_many_as_were_asked_for(atelier: Atelier, tmp_path: Path) -> None:
    index = Index(Store(str(atelier.root)))
    read = trainings(index, "student_a/pretrained-0")[()]
    assert read.source == "labels"
    data = data_of(index, read, tmp_path)
    lines = Path(inputs_of(index, read)["labels"].file("train.jsonl", tmp_path))
    count = len(lines.read_text().splitlines())
    ranges = np.stack([np.arange(count), np.arange(count) + 1], axis=1)
    found = data.readings("labels", ranges, read.start, read.end)
    assert sum(each.times or 0 for each in found) == 64
    assert sum(bool(each.times) for each in found) == 32


def test_a_teacher_whose_model_is_removed_is_still_a_route(atelier: Atelier) -> None:
    index = Index(Store(str(atelier.root)))
    [teacher] = [one for one in index.records.values() if (one.kind, one.name) == ("model", "teacher")]
    del index.records[teacher.fingerprint]
    [model] = [one for one in index.records.values() if (one.kind, one.name) == ("model", "student_a")]
    [route] = [each for each in routes(index, model) if each.via == ("teacher",)]
    assert route.training is not None and not route.training.has_record
    assert route.training.end == 23
