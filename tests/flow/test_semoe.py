"""SE-MoE's flow, tiny: experts on disk, merged, distilled, scored in a memory smaller than the teacher;
killed without warning it ends with the same bits.
"""

from pathlib import Path

import pytest

from tests.faults.command import CommandStore
from tests.flow.command import Atelier
from tests.flow.kills import killed_and_finished, weights_of

ARGUMENTS = ("semoe", "experiment=tiny", "tracker=none")
STUDENTS = ("student_few", "student_dense")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("semoe")


def test_students_come_from_the_merged_teacher_and_learn_from_it(atelier: Atelier, root: Path) -> None:
    said = atelier(*ARGUMENTS)
    assert said.code == 0, said.err
    records = {record["name"]: record for record in CommandStore(root).records("model")}
    assert set(records) == {"teacher", *STUDENTS, *(f"{name}-start" for name in STUDENTS)}
    for name in STUDENTS:
        start = records[f"{name}-start"]
        assert records[name]["parents"]["init"] == start["fingerprint"]
        assert start["parents"]["model"] == records["teacher"]["fingerprint"]
        assert start["summary"]["params"] == records[name]["summary"]["params"]
        assert records[name]["summary"]["teacher_forwards"] > 0
        assert records["teacher"]["fingerprint"][:8] in atelier("lineage", name).out
    [report] = atelier.records("report", "semoe")
    rows = {row["name"]: row for row in report["summary"]["table"]}
    assert {"teacher", *STUDENTS} < set(rows)
    assert rows["student_few"]["tokens"] > rows["student_few-start"]["tokens"] == rows["teacher"]["tokens"]


def test_again_nothing_is_left_to_do(atelier: Atelier) -> None:
    said = atelier(*ARGUMENTS)
    assert said.code == 0 and "nothing to do" in said.out


def test_text_from_a_memory_smaller_than_the_teacher_is_the_same(atelier: Atelier) -> None:
    words = ("generate", "teacher", "--prompt", "def ", "--max-tokens", "30")
    whole, streamed = (atelier(*words, *more).out for more in ((), ("--memory", "3MB")))
    assert whole == streamed and len(whole) > len("def ")
    refused = atelier(*words, "--memory", "10kB")
    assert refused.code == 2 and "is the minimum for this model" in refused.err


def test_too_little_memory_is_refused_before_anything_is_made(atelier: Atelier) -> None:
    for key in ("score.memory_gb", "parallel.tiers.frozen_gb"):
        refused = atelier("plan", *ARGUMENTS, f"{key}=0.001")
        assert refused.code == 2
        assert refused.err.startswith(
            f"{key}: 0.001 GB cannot hold two blocks, two experts and the resident weights of teacher"
        )
        enough = refused.err.split(";")[1].split()[0]
        assert atelier("plan", *ARGUMENTS, f"{key}={enough}").code == 0


def test_killed_without_warning_it_ends_with_the_same_bits(root: Path, tmp_path: Path) -> None:
    whole, store = CommandStore(root), CommandStore(tmp_path / "store").copy_data(CommandStore(root))
    killed_and_finished(store, ARGUMENTS, ("teacher", "student_few"))  # in each of the two trainings
    assert weights_of(store) == weights_of(whole)
