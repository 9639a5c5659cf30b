"""Which tasks a change of the configuration reruns, through the life of an experiment."""

import json
from pathlib import Path

import pytest

from atelier.engine.config.direction import declared
from atelier.infra.store.run_manifest import manifests
from atelier.infra.store.store import Store
from atelier.infra.store.trajectory import read_trajectory
from tests.flow.command import Atelier

IS_STORY = True  # each test goes on from the store that the ones before have left
TINY = ("experiment=tiny", "tracker=none", "score.baselines=false")
WALK = (*TINY, "train.steps=16", "train.checkpoint_every=4", "roles.student_a.start=8")
STUDENT_B = ("+role@roles.student_b=student", "roles.student_b.start=8", "roles.student_b.optim.lr=1e-3")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("walk")


def test_the_first_run_makes_everything_and_the_second_starts_no_process(atelier: Atelier) -> None:
    said = atelier("distill", *WALK)
    assert said.code == 0, said.err
    gangs = atelier.gangs()
    assert gangs == ["curate", "learn_tokenizer", "encode", "train", "score"]
    said = atelier("distill", *WALK)
    assert said.code == 0, said.err
    assert "nothing to do (7 reused)" in said.out
    assert atelier.gangs() == gangs
    newest = manifests(Store(str(atelier.root)))[-1]
    assert set(newest.states.values()) == {"reused"} and newest.status == "finished"
    assert newest.links == {}  # neither a server nor a tracker was asked
    birth = next(atelier.root.glob("trajectory/*/trajectory.json"))
    whole = birth.read_bytes()
    birth.write_bytes(whole[:40])
    assert atelier("distill", *WALK).code == 0
    assert json.loads(birth.read_bytes())["fingerprint"] == json.loads(whole)["fingerprint"]


def test_a_plan_shows_what_was_measured_and_later_plans_have_learned_from_it(atelier: Atelier) -> None:
    said = atelier("plan", "distill", *WALK, "--json")
    document = json.loads(said.out)
    [seen] = document["measured"]
    assert seen["task"] == "train" and 0 < seen["effective_time"] < 1 and document["pace"] != 1
    assert seen["step_s"] == pytest.approx(seen["planned_step_s"], rel=0.3)
    other = json.loads(atelier("plan", "distill", *WALK, "train.seed=9", "--json").out)
    planned = sum(row["step_s"] for row in other["tasks"] if row["task"] == "train")
    assert planned == pytest.approx(seen["planned_step_s"])
    assert "effective time" in atelier("plan", "distill", *WALK).out


def test_every_measured_number_of_a_record_has_a_direction(atelier: Atelier) -> None:
    records = Store(str(atelier.root)).records()
    numbers = [pair for record in records for pair in record.summary.items()]
    measured = {word for word, one in numbers if isinstance(one, float)}
    assert {"loss", "bits_per_byte"} < measured and not [word for word in measured if not declared(word)]


def test_a_student_record_names_its_teacher_and_the_steps_it_learned_at(atelier: Atelier) -> None:
    [student], [teacher] = atelier.records("model", "student_a"), atelier.records("model", "teacher")
    assert student["parents"]["teacher"] == teacher["parents"]["trajectory"]
    assert student["summary"]["teacher_steps"] == [8, 15]
    assert student["summary"]["started_at"] == 8


def test_a_changed_teacher_names_the_key_and_what_follows_from_it(atelier: Atelier) -> None:
    plan = atelier.plan("distill", *WALK, "roles.teacher.model.num_layers=5")
    states = {row["name"]: row["state"] for row in plan.rows}
    assert {name for name, state in states.items() if state == "reuse"} == {
        "curate",
        "learn_tokenizer",
        "encode",
    }
    reasons = {row["name"]: row["reasons"] for row in plan.rows}
    assert reasons["train.teacher"] == [{"key": "roles.teacher.model.num_layers", "old": 4, "new": 5}]
    assert reasons["train.student_a"] == [{"parent": "teacher"}]


def test_a_changed_student_leaves_the_teacher_alone(atelier: Atelier) -> None:
    states = atelier.states(
        "distill", *WALK, "roles.student_a.optim.lr=5e-3", "roles.student_a.attach=replay"
    )
    assert states["train.teacher"] == "reuse" and states["train.student_a"] == "run"


@pytest.mark.parametrize(
    "change", ["parallel.shard=2", "train.checkpoint_every=5", "train.micro_batch=2", "pool.slots=4"]
)
def test_a_layout_invalidates_nothing(atelier: Atelier, change: str) -> None:
    assert set(atelier.states("distill", *WALK, change).values()) == {"reuse"}


def test_a_late_student_is_refused_with_the_costs_of_both_ways_out(atelier: Atelier) -> None:
    gangs = atelier.gangs()
    said = atelier("distill", *WALK, *STUDENT_B)
    assert said.code == 2
    assert (
        "student_b" in said.err
        and "replay" in said.err
        and "frozen" in said.err
        and "8 steps of the teacher" in said.err
    )
    assert atelier.gangs() == gangs


def test_a_replayed_teacher_gives_its_digest_again_and_is_not_published_twice(atelier: Atelier) -> None:
    before = atelier.records("model", "teacher")
    said = atelier("distill", *WALK, *STUDENT_B, "roles.student_b.attach=replay")
    assert said.code == 0, said.err
    assert atelier.records("model", "teacher") == before
    [student] = atelier.records("model", "student_b")
    assert student["parents"]["teacher"] == before[0]["parents"]["trajectory"]
    assert set(atelier.states("distill", *WALK, *STUDENT_B).values()) == {"reuse"}  # replay is not identity


def test_a_frozen_teacher_makes_another_identity(atelier: Atelier) -> None:
    args = (*WALK, *STUDENT_B, "roles.student_b.attach=frozen")
    assert atelier.states("distill", *args)["train.student_b"] == "run"
    said = atelier("distill", *args)
    assert said.code == 0, said.err
    assert len(atelier.records("model", "student_b")) == 2


def test_a_role_begins_from_the_finished_model_that_it_names(atelier: Atelier) -> None:
    args = (*WALK, "+role@roles.pupil=student", "roles.pupil.start=8", "roles.pupil.attach=frozen")
    bare = {row["name"]: row for row in atelier.plan("distill", *args).rows}["train.pupil"]
    said = atelier("distill", *args, "roles.pupil.init=nobody")
    assert said.code == 2 and "roles.pupil.init: " in said.err and "nobody" in said.err
    said = atelier("distill", *args, "roles.pupil.init=student_a", "roles.pupil.model.num_layers=1")
    assert said.code == 2 and "the weights of student_a do not fit roles.pupil.model" in said.err
    said = atelier("distill", *args, "roles.pupil.init=student_a", "tokenizer.vocab=400")
    assert said.code == 2 and "roles.pupil.init: the tokenizer of student_a is" in said.err
    said = atelier("distill", *args, "roles.pupil.init=student_a")
    assert said.code == 0, said.err
    [pupil] = atelier.records("model", "pupil")
    [first, *_] = sorted(atelier.records("model", "student_a"), key=lambda r: r["provenance"]["ended"])
    assert pupil["fingerprint"] != bare["fingerprint"]
    assert pupil["parents"]["init"] in {r["fingerprint"] for r in atelier.records("model", "student_a")}
    assert first_loss(atelier, pupil) < first_loss(atelier, first) - 0.1


def first_loss(atelier: Atelier, model: dict) -> float:
    """Of the first step of the trajectory's first segment."""
    fingerprint = model["parents"]["trajectory"]
    while trunk := read_trajectory(Store(str(atelier.root)), fingerprint).parents.get("trunk"):
        fingerprint = trunk
    found = (atelier.root / "trajectory" / fingerprint[:16] / "metrics").iterdir()
    lines = [json.loads(line) for path in found for line in path.read_text().splitlines()]
    return min(lines, key=lambda line: line["step"])["values"]["loss"]


def test_a_longer_run_goes_on_from_the_trunk_of_its_wsd_schedule(atelier: Atelier) -> None:
    longer = (*WALK, "train.steps=24")
    rows = {row["name"]: row for row in atelier.plan("distill", *longer).rows}
    assert rows["train.teacher"]["from_step"] == 12  # the decay of 16 steps began there
    said = atelier("distill", *longer)
    assert said.code == 0, said.err
    assert "train: continues from step 12" in said.out


def test_a_branch_whose_trunk_is_damaged_at_its_end_says_so_and_is_trained_after_the_removal(
    atelier: Atelier,
) -> None:
    """The trunk is another run's as well: whoever has no lease of it may not train it again."""
    args = (
        "pretrain",
        *TINY,
        "name=forks",
        "train.seed=11",
        "optim.schedule.kind=wsd",
        "train.checkpoint_every=4",
    )
    assert atelier(*args, "train.steps=8", "optim.schedule.decay=0.25").code == 0
    [model] = atelier.records("model", "forks")
    trunk = read_trajectory(Store(str(atelier.root)), model["parents"]["trajectory"]).parents["trunk"]
    checkpoints = atelier.root / "trajectory" / trunk[:16] / "checkpoints"
    newest = max(checkpoints.iterdir())
    next(newest.glob("rank*")).write_bytes(b"")
    branch = (*args, "train.steps=10", "optim.schedule.decay=0.4")  # begins its decay at step 6 as well
    said = atelier(*branch)
    assert said.code == 1 and "no good checkpoint of step" in said.err and "gc --damaged" in said.err
    assert [path.name for path in checkpoints.iterdir() if path > newest] == []
    said = atelier("gc", "--damaged", "--yes")
    assert said.code == 0 and newest.name[-1] in said.out and not newest.exists(), said.out
    said = atelier(*branch)
    assert said.code == 0, said.err
    assert len(atelier.records("model", "forks")) == 2


def test_a_longer_run_under_cosine_begins_again(atelier: Atelier) -> None:
    cosine = (*TINY, "roles.student_a.start=4", "roles.teacher.optim.schedule.kind=cosine")
    assert atelier("distill", *cosine, "train.steps=8", "train.checkpoint_every=4").code == 0
    rows = {row["name"]: row for row in atelier.plan("distill", *cosine, "train.steps=12").rows}
    assert rows["train.teacher"]["state"] == "run" and rows["train.teacher"]["from_step"] == 0


@pytest.mark.slow
def test_a_sweep_over_a_student_trains_its_teacher_once(atelier: Atelier) -> None:
    seed = (*TINY, "train.steps=8", "train.checkpoint_every=4", "roles.student_a.start=4", "train.seed=7")
    before = atelier.gangs().count("train")
    said = atelier("distill", *seed, "-m", "roles.student_a.optim.lr=1e-3,2e-3,3e-3")
    assert said.code == 0, said.err
    assert "3 of 3 points finished" in said.out
    assert atelier.gangs().count("train") == before + 1


def test_a_control_is_the_same_thing_wherever_it_was_trained(atelier: Atelier) -> None:
    """A role without a teacher has the same fingerprint beside a teacher and beside other controls."""
    alone = {"objective": "lm", "teacher": "''", "start": "8", "seed_name": "student_a"}
    controls = [f"roles.control.{key}={value}" for key, value in alone.items() if key != "objective"]
    one = atelier.plan(
        "distill", *WALK, "+role@roles.control=teacher", "model@roles.control.model=gpt_nano", *controls
    )
    ride = next(row["fingerprint"] for row in one.rows if row["name"] == "train.control")
    two = atelier.plan(
        "titan",
        *WALK[:-1],
        *("role@roles.teacher=teacher", "~roles.assistant", "ahead=none"),
        *("role@roles.student_a=student_mini", "role@roles.student_b=student"),
        "roles.student_b.start=8",
        "roles.student_a.start=8",
        "roles.student_b.seed_name=student_a",
    )
    control = next(row["fingerprint"] for row in two.rows if row["name"] == "train.controls.student_b-alone")
    assert ride == control


def test_distill_shows_what_the_teacher_brought_when_it_is_asked(atelier: Atelier) -> None:
    without = {row["name"] for row in atelier.plan("distill", *WALK).rows}
    asked = atelier.plan("distill", *WALK, "score.controls=true")
    added = {row["name"] for row in asked.rows} - without
    assert added == {"train.controls", "score.student_a-alone"} or added == {
        "train.controls.student_a-alone",
        "score.student_a-alone",
    }
    said = atelier("distill", *WALK, "score.controls=true")
    assert said.code == 0, said.err
    assert "its same-seed control" in said.out and "student_a-alone" in said.out


def test_a_run_goes_on_under_another_layout(atelier: Atelier) -> None:
    short = (*TINY, "optim.schedule.kind=constant", "train.checkpoint_every=4", "name=layouts")
    assert atelier("pretrain", *short, "train.steps=8").code == 0
    rows = {
        row["name"]: row
        for row in atelier.plan("pretrain", *short, "train.steps=12", "parallel.shard=2").rows
    }
    assert rows["train"]["from_step"] == 8
    said = atelier("pretrain", *short, "train.steps=12", "parallel.shard=2")
    assert said.code == 0, said.err
    [model] = [record for record in atelier.records("model", "layouts") if record["identity"]["step"] == 12]
    folder = atelier.root / "trajectory" / model["parents"]["trajectory"][:16] / "metrics"
    by_attempt = {name.name.split("-")[1]: name for name in sorted(folder.iterdir())}
    first = json.loads(by_attempt[max(by_attempt)].read_text().splitlines()[0])
    assert len(by_attempt) == 2 and first["step"] == 9


def test_braces_in_what_is_given_are_nobodys_fields(atelier: Atelier, tmp_path: Path) -> None:
    for name in ("{a}", "}"):
        folder = tmp_path / name
        folder.mkdir()
        for number in range(9):
            (folder / f"{number}.txt").write_text(f"Poem {number}: the sea, and {number} boats. " * 9)
        source = f"data.source='{folder}/*.txt'"  # last: the end of a long title is seen
        said = atelier("corpus", "experiment=tiny", "tokenizer.vocab=300", "tracker=none", source)
        assert said.code == 0, said.err
