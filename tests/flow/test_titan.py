"""The whole titan flow, tiny, with MLflow: its results on the pages and in the store."""

import json
import random
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from tests.flow.command import Atelier

pytestmark = pytest.mark.slow

ARGUMENTS = ("titan", "experiment=tiny")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("titan")


def client(root: Path) -> MlflowClient:
    return MlflowClient(tracking_uri=f"sqlite:///{root}/mlflow.db")


def test_the_dag_ends_with_a_table_a_lineage_and_what_to_type_next(atelier: Atelier) -> None:
    said = atelier(*ARGUMENTS)
    assert said.code == 0, said.err
    for name in (
        "teacher",
        "assistant",
        "student_a",
        "student_b",
        "student_a-alone",
        "gzip -9",
        "xz -9e",
        "majority class",
    ):
        assert name in said.out
    assert "atelier generate" in said.out and "report.html" in said.out
    [report] = atelier.records("report", "titan")
    rows = {row["name"]: row for row in report["summary"]["table"]}
    assert rows["student_a"]["tokens"] == rows["student_a-alone"]["tokens"]  # the control saw the same
    assert rows["student_a"]["delta"] == rows["student_a"]["loss"] - rows["student_a-alone"]["loss"]
    for name in ("teacher", "assistant", "student_a", "student_b"):
        assert rows[f"{name} fine-tuned"]["draws"] == 1
        for way in ("zero-shot", "few-shot"):
            assert 0 <= rows[f"{name} {way}"]["accuracy"] <= 1


def test_again_every_task_is_reused_and_no_process_is_started(atelier: Atelier) -> None:
    gangs = atelier.gangs()
    said = atelier(*ARGUMENTS)
    assert said.code == 0, said.err
    assert "nothing to do (18 reused)" in said.out
    assert atelier.gangs() == gangs


def test_a_plan_names_the_changed_key_and_exactly_what_follows(atelier: Atelier) -> None:
    plan = atelier.plan(*ARGUMENTS, "roles.teacher.optim.lr=1e-3")
    untouched = ("curate", "learn_tokenizer", "encode", "describe", "extract", "imitate", "label")
    kept = ("train.ahead", "-alone", "scratch-", "score.baselines")
    for row in plan.rows:
        is_kept = row["name"] in untouched or any(part in row["name"] for part in kept)
        assert row["state"] == ("reuse" if is_kept else "run"), row["name"]
    reasons = {row["name"]: row["reasons"] for row in plan.rows}
    assert reasons["train.teacher"] == [{"key": "roles.teacher.optim.lr", "old": 0.002, "new": 0.001}]


def test_without_controls_no_student_is_trained_twice(atelier: Atelier) -> None:
    plan = atelier.plan(*ARGUMENTS, "score.controls=false")
    assert not any("-alone" in row["name"] for row in plan.rows)
    assert {row["name"] for row in plan.rows if row["state"] == "run"} == {"report", "register"}


@pytest.mark.parametrize(
    ("name", "students"), [("teacher", {"assistant"}), ("assistant", {"student_a", "student_b"})]
)
def test_one_query_finds_the_students_of_a_teacher(atelier: Atelier, name: str, students: set[str]) -> None:
    [teacher] = atelier.records("model", name)
    digest = teacher["parents"]["trajectory"][:36]
    mlflow_client = client(atelier.root)
    experiments = [e.experiment_id for e in mlflow_client.search_experiments()]
    query = f"dataset.digest = '{digest}' AND dataset.context = 'teacher'"
    runs = mlflow_client.search_runs(experiments, query)
    assert {run.data.tags["atelier.role"] for run in runs} == students


def test_lineage_of_a_student_names_all_that_it_came_from(atelier: Atelier) -> None:
    """Teacher and assistant with their steps, the generator of the imitations, corpus and tokenizer."""
    said = atelier("lineage", "student_a")
    assert said.code == 0, said.err
    for name in ("teacher", "assistant", "teacher-ahead", "imitations", "corpus", "tokenizer"):
        assert name in said.out, name


def test_a_registered_student_answers(atelier: Atelier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")  # which the next line sets for the whole process
    mlflow.set_tracking_uri(f"sqlite:///{atelier.root}/mlflow.db")
    model = mlflow.pyfunc.load_model("models:/student_a@latest")
    [text] = model.predict(["def "])
    assert isinstance(text, str) and text


def test_the_manifest_names_what_the_run_made(atelier: Atelier) -> None:
    manifests = [json.loads(path.read_text()) for path in sorted((atelier.root / "runs").iterdir())]
    assert [m["status"] for m in manifests] == ["finished", "finished"]
    assert {"train.teacher", "train.controls.student_a-alone"} <= {
        task["name"] for task in manifests[0]["tasks"]
    }


def test_text_in_another_language_is_refused_without_it_and_trains_with_it(
    atelier: Atelier, tmp_path: Path
) -> None:
    draw = random.Random(1)

    def paragraph() -> str:
        """A sentence that states a triple, and four that state none."""
        name = draw.choice("王李张刘陈杨赵黄周吴") + "".join(
            draw.sample("伟芳娜敏静丽强磊军洋勇艳杰娟涛明", 2)
        )
        stated = (
            f"{name}是一位{draw.choice(('古老', '美丽', '著名', '安静'))}的{draw.choice(('诗人', '画家'))}。"
        )
        place = draw.choice(("南京", "成都", "北京", "上海"))
        return stated + "".join(f"{draw.randint(1900, 2020)}年，人们在{place}写了很多书。" for _ in range(4))

    texts = ["\n\n".join(paragraph() for _ in range(4)) for _ in range(400)]
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    (tmp_path / "zh.jsonl").write_text("\n".join(lines) + "\n")
    words = (*ARGUMENTS, f"data.source={tmp_path}/zh.jsonl", "tracker=none")
    without = atelier(*words)
    assert without.code == 2 and "+language=chinese" in without.err
    said = atelier(*words, "+language=chinese", "data.units.entities=triples")
    assert said.code == 0, said.err
    [triples] = atelier.records("triples", "zh")
    assert triples["summary"]["relations"].keys() == {"是"} and triples["summary"]["train"] > 50
    tokens = atelier.records("tokens", "zh")
    assert any(record["summary"].get("names_found", 0) > 50 for record in tokens)
    attributes = atelier.records("attributes", "zh")
    assert any(record["summary"]["sentiments"].get("positive", 0) > 50 for record in attributes)
