"""The nodes of the flow semoe: starting points, dependencies and refused students."""

from pathlib import Path

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.io.machine import num_cores
from atelier.flows.run.compose import compose
from atelier.flows.run.draw import collect_nodes
from atelier.flows.run.plan import make_plan
from atelier.infra.dag import Node
from atelier.infra.store.store import Store

TINY = ("experiment=tiny", "tracker=none")
DENSE = (  # the teacher, whose MLPs become experts
    "convert=upcycle", "roles.teacher.model.num_experts=0", "roles.teacher.model.ffn=192",
    "parallel.expert=1", "parallel.shard=2", "parallel.tiers.experts=device",
    "roles.student_few.model.experts.router.balance=none",
)  # fmt: skip


def nodes(root: Path, *words: str) -> dict[str, Node]:
    found = collect_nodes(compose("semoe", [*TINY, *words]), Store(str(root)))
    return {node.name: node for node in found}


def test_students_wait_for_what_they_start_from_and_for_the_finished_teacher(tmp_path: Path) -> None:
    found = nodes(tmp_path)
    students = found["train.students"]
    assert set(students.products) == {"student_few", "student_dense"}
    assert set(students.waits) >= {"train.teacher", "convert.student_few", "convert.student_dense"}
    teacher = found["train.teacher"].products["teacher"]
    assert students.inputs["frozen.teacher"] == ("model", teacher.fingerprint)
    for name, number in (("student_few", 4), ("student_dense", 0)):
        rule = found[f"convert.{name}"].config["rule"]
        assert rule["num_experts"] == number
        start = found[f"convert.{name}"].products["model"].fingerprint
        assert students.inputs[f"init.{name}"] == ("model", start)
        assert found[f"convert.{name}"].threads == max(1, num_cores() // 2)  # both at once
        segment = students.products[name].detail_parents | students.products[name].parents
        assert segment["init"] == start


def test_a_model_scored_in_less_memory_than_it_takes_says_what_a_pass_reads(tmp_path: Path) -> None:
    words = ["experiment=cpm2_198b", "pool=a100_80g", "pool.gpus=128", "pool.disk_gbps=12", "tracker=none"]
    [note] = [
        one for one in make_plan(compose("pretrain", words), Store(str(tmp_path))).notes if "score" in one
    ]
    assert "of 1536 experts of 0.503 GB in the 60 GB; 64 s at 12 GB/s" in note
    plan = make_plan(compose("pretrain", [*words, "score.memory_gb=0"]), Store(str(tmp_path)))
    assert not any("score" in one for one in plan.notes) and not plan.refusals


def test_the_paper_s_model_is_priced_with_tiers_on_its_gpus(tmp_path: Path) -> None:
    words = ["experiment=semoe_13b", "pool=a100_80g", "tracker=none"]
    plan = make_plan(compose("pretrain", words), Store(str(tmp_path)))
    [note] = [one for one in plan.notes if "experts of model on disk" in one]
    assert "back, 0.91 s at 32 GB/s" in note and "tiers on GPUs: not measured" in note
    assert "the copies set the pace" in note and not plan.refusals
    on_cpus = ["pool=cpu", "pool.gpus=8", "parallel.device=cpu"]
    plan = make_plan(compose("pretrain", [*words[::2], *on_cpus]), Store(str(tmp_path)))
    assert not any("not measured" in one for one in plan.notes)


def test_a_student_of_another_shape_starts_from_its_seed(tmp_path: Path) -> None:
    found = nodes(tmp_path, "roles.student_dense.model.hidden=64", "roles.student_few.model.num_layers=2")
    assert not any(name.startswith("convert") for name in found)
    assert not any(role.startswith("init.") for role in found["train.students"].inputs)


@pytest.mark.parametrize(
    "other",
    ["num_heads=8", "rope_theta=500", "experts.combine=sum", "num_experts=16"],
)
def test_a_model_of_the_same_weights_that_means_another_starts_from_its_seed(
    tmp_path: Path, other: str
) -> None:
    found = nodes(tmp_path, f"roles.student_few.model.{other}")
    assert [name for name in found if name.startswith("convert")] == ["convert.student_dense"]


def test_a_student_of_experts_starts_from_a_dense_teacher(tmp_path: Path) -> None:
    found = nodes(tmp_path, *DENSE)
    assert [name for name in found if name.startswith("convert")] == ["convert.student_few"]


def test_without_students_it_is_a_training(tmp_path: Path) -> None:
    found = nodes(tmp_path, "~roles.student_few", "~roles.student_dense")
    assert "train.students" not in found and "train.teacher" in found


def test_controls_start_where_their_students_do(tmp_path: Path) -> None:
    found = nodes(tmp_path, "score.controls=true")
    controls = found["train.controls"]
    start = found["convert.student_few"].products["model"].fingerprint
    assert controls.inputs["init.student_few-alone"] == ("model", start)


def test_the_teacher_is_the_same_training_whether_it_has_students_or_not(tmp_path: Path) -> None:
    alone, with_them = (
        nodes(tmp_path, *words)["train.teacher"].products["teacher"].fingerprint
        for words in (("~roles.student_few", "~roles.student_dense"), ())
    )
    assert alone == with_them


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("roles.student_few.attach=refuse",), "attach=frozen"),
        (("roles.student_dense.teacher=student_few",), "teacher=teacher"),
        (("roles.student_few.teacher=nobody",), "there is no role 'nobody'"),
        (("roles.student_few.model.num_experts=32",), "student_few.model.num_experts: 32.* nothing to merge"),
        (
            (*DENSE, "roles.student_few.model.num_experts=1", "roles.student_few.model.experts_per_token=1"),
            "student_few.model.num_experts: 1, which cannot",
        ),
    ],
)
def test_students_that_could_not_begin_or_learn_as_they_say_are_refused(
    tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        nodes(tmp_path, *words)


def test_the_plan_trains_the_teacher_once(tmp_path: Path) -> None:
    plan = make_plan(compose("semoe", list(TINY)), Store(str(tmp_path)))
    teachers = [row["name"] for row in plan.rows if row["kind"] == "model" and "teacher" in row["name"]]
    assert teachers == ["train.teacher"]
