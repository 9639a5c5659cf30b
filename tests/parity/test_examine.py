"""What two ranks say to questions is what one says."""

import json
from pathlib import Path

import pytest
import torch

from atelier.engine.config.parallel import Parallel
from tests.engine.scored_models import Study
from tests.engine.test_examine import examined, posed
from tests.forks import start_gang

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Study:
    torch.set_num_threads(1)
    return Study(tmp_path_factory.mktemp("study"))


@pytest.mark.parametrize("layout", [{"replicate": 2}, {"tensor": 2}])
def test_two_ranks_answer_as_one(study, layout):
    model, sets = study.model(num_heads=4), {kind: posed(study, kind) for kind in ("choice", "text")}
    inputs = {"model": model} | {f"set.{kind}": of for kind, of in sets.items()}
    run = study.run_file("examine", {"examine": layout | {"prior": True}}, inputs, *sets)
    run = run.model_copy(update={"layout": Parallel(shard=1, threads=1, device="cpu", **layout)})
    path = study.folder / f"{next(iter(layout))}.json"
    path.write_text(run.model_dump_json(by_alias=True))
    start_gang("atelier.engine.examine", study.folder, 2, str(path))
    for kind, of in sets.items():
        lines = (Path(run.outputs[kind]) / "answers.jsonl").read_text().splitlines()
        for line, other in zip(
            map(json.loads, lines), examined(study, model, of, prior=True)[1], strict=True
        ):
            assert line["nats"] == pytest.approx(other["nats"], abs=1e-4)
            assert line.get("alone", []) == pytest.approx(other.get("alone", []), abs=1e-4)
            assert line.get("right") == other.get("right")


def test_two_ranks_write_the_answers_of_one(study):
    model, of = study.model(), posed(study, "free")
    run = study.run_file("examine", {"examine": {"replicate": 2}}, {"model": model, "set.one": of}, "one")
    run = run.model_copy(update={"layout": Parallel(replicate=2, shard=1, threads=1, device="cpu")})
    path = study.folder / "free.json"
    path.write_text(run.model_dump_json(by_alias=True))
    start_gang("atelier.engine.examine", study.folder, 2, str(path))
    lines = (Path(run.outputs["one"]) / "answers.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == examined(study, model, of)[1]
