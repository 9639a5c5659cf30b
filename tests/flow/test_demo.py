"""The demo at about a tenth of its size shows the same results in kind."""

from pathlib import Path

import pytest

from tests.flow.command import Atelier

DEMO = (
    "distill", "experiment=demo", "tracker=none", "tokenizer.vocab=1024", "train.sequence=128",
    "train.steps=200", "train.checkpoint_every=100", "score.max_tokens=30000",
)  # fmt: skip
TENTH = (
    "titan", "experiment=laptop", "tracker=none", "tokenizer.vocab=1024", "train.sequence=128",
    "ahead.steps=200", "train.steps=120", "train.checkpoint_every=40", "score.max_tokens=30000",
    "finetune.num_labels=64", "finetune.draws=1", "finetune.scratch=false", "score.max_examples=40",
    "imitate.paragraphs=60", "imitate.tokens=48",
)  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


@pytest.mark.slow
def test_students_gain_from_a_chain_that_is_in_order(atelier: Atelier) -> None:
    said = atelier(*TENTH, "train.seed=21")
    assert said.code == 0, said.err
    [report] = atelier.records("report", "titan")
    rows = report["summary"]["table"]  # several of one name: its text, its heads
    gains = {row["name"]: row["delta"] for row in rows if "delta" in row}
    assert gains.keys() == {"assistant", "student_a", "student_b"}
    assert all(delta < -0.1 for delta in gains.values()), gains
    bits = {row["name"]: row["bits_per_byte"] for row in rows if "bits_per_byte" in row}
    assert bits["teacher"] < bits["assistant"] < min(bits["student_a"], bits["student_b"])


@pytest.mark.slow
def test_the_demos_student_is_below_its_control_and_all_is_reused(atelier: Atelier) -> None:
    said = atelier(*DEMO, "train.seed=21")
    assert said.code == 0, said.err
    [report] = atelier.records("report", "distill")
    [gain] = [row["delta"] for row in report["summary"]["table"] if "delta" in row]
    assert gain < -0.1
    assert "nothing to do (8 reused)" in atelier(*DEMO, "train.seed=21").out
