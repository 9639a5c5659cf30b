"""A teacher at another site: its students learn the same as beside it, killed or not."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load, load_file

from atelier.engine.config.error import ConfigError, DataError, StoppedError
from atelier.engine.config.objective.attention import Attention
from atelier.engine.config.objective.hidden import Hidden
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.objective.logits import Logits
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import Training
from atelier.engine.config.schedule import Schedule
from atelier.engine.config.train import Train
from atelier.engine.extensions.sites.checks import check_everybody
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.loop.stop import StopRequest
from tests.engine.extensions.sites.apart import ANSWERS, STEPS, Apart, sent, taught
from tests.engine.extensions.sites.at_sites import (
    all_at_once,
    beside_a_gang,
    check_sites,
    killed_until_they_end,
)
from tests.engine.trainings import AfterSteps, TrainingSetup, role, student, tokens, train
from tests.parity.cases import layout as layout_of

ALL = {"top": "all", "values": "exact"}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"tokens": tokens(tmp_path_factory.mktemp("text"))}


def apart(one: list[float], other: list[float]) -> float:
    assert len(one) == len(other) > 0
    return max(abs(mine - theirs) for mine, theirs in zip(one, other, strict=True))


@pytest.mark.parametrize("frozen", [True, False])
def test_with_the_whole_vocabulary_a_student_learns_what_it_would_beside_its_teacher(
    tmp_path: Path, text: dict[str, str], frozen: bool
) -> None:
    sites = Apart(tmp_path, text, students={"student": taught()}, frozen=frozen, **ALL)
    sites.train()
    beside = sites.whole(tmp_path / "beside", text)
    assert apart(sites.losses("student"), sites.losses("student", beside)) < 1e-10
    mine, theirs = load(sites.setups["b"].weights("student")), load(beside.weights("student"))
    assert max((mine[name] - theirs[name]).abs().max() for name in mine) < 1e-10
    told = [setup.summary("student") for setup in (sites.setups["b"], beside)]
    assert told[0]["teacher_forwards"] == told[1]["teacher_forwards"] > 0
    if not frozen:
        assert sites.setups["a"].weights("teacher") == beside.weights("teacher")
        assert not sites.setups["b"].output("teacher").exists()
    assert not sites.setups["a"].output("student").exists()


def test_a_few_tokens_of_each_answer_in_8_bits_teach_nearly_the_same(
    tmp_path: Path, text: dict[str, str]
) -> None:
    sites = Apart(tmp_path, text, students={"student": taught()}, frozen=False, top=32)
    sites.train(steps=20)
    beside = sites.whole(tmp_path / "beside", text, steps=20)
    mine, theirs = sites.losses("student")[-8:], sites.losses("student", beside)[-8:]
    print(f"{sum(mine) / 8:.5f} and {sum(theirs) / 8:.5f} nats")
    assert apart(mine, theirs) > 0 and abs(sum(mine) - sum(theirs)) / 8 < 0.01


def test_a_teacher_has_the_same_bits_whoever_learns_from_it(tmp_path: Path, text: dict[str, str]) -> None:
    setup = TrainingSetup(tmp_path / "alone", dict(text))
    setup.train(setup.training({"teacher": role(32, lr=1e-2)}, train(STEPS, precision="fp64")))
    found = {setup.weights("teacher")}
    students = {"student": taught(), "other": taught(start=3)}
    for number in (1, 2):
        some = dict(list(students.items())[:number])
        sites = Apart(tmp_path / str(number), text, students=some, frozen=False)
        sites.train()
        found.add(sites.setups["a"].weights("teacher"))
        assert sites.setups["b"].curve("student")[-1]["step"] == STEPS
    assert len(found) == 1


def test_start_and_gate_are_decided_as_beside_the_teacher(tmp_path: Path, text: dict[str, str]) -> None:
    late = Schedule(kind="constant", warmup=1)
    spec = taught(start=2, gate=0.05, schedule=late, period=2)
    sites = Apart(tmp_path, text, students={"student": spec}, frozen=False, **ALL)
    sites.train(steps=16)
    beside = sites.whole(tmp_path / "beside", text, steps=16)
    mine, theirs = (each.summary("student") for each in (sites.setups["b"], beside))
    assert mine["gate_step"] == theirs["gate_step"] and 2 < mine["gate_step"] < 16
    assert apart(sites.losses("student"), sites.losses("student", beside)) < 1e-10


def test_a_token_of_32_costs_98_bytes(tmp_path: Path, text: dict[str, str]) -> None:
    sites = Apart(tmp_path, text, students={"student": taught()}, frozen=True, top=32)
    sites.setups["a"].train(sites.training("a", steps=4, global_batch=8, sequence=128))
    bodies = [folder / "a" / "tensors.safetensors" for folder in sent(sites)]
    tensors = load_file(bodies[0])
    scored = int(tensors["scored_B"].sum())
    assert 900 < scored <= 8 * 128 and len(bodies) == 4  # documents' last tokens have no next one
    own = sum(tensors[name].nbytes for name in ("ids_NK", "values_NK", "others_N"))
    whole = sum(file.stat().st_size for file in sent(sites)[0].glob("a/*"))
    print(f"{own / scored:.1f} bytes a token, {whole / scored:.2f} with heads and row numbers")
    assert own == 98 * scored and whole < 99 * scored


@pytest.mark.parametrize(
    ("frozen", "seed"),
    [
        pytest.param(True, 0, marks=pytest.mark.slow),
        pytest.param(False, 1, marks=pytest.mark.slow),
        (False, 2),
    ],
)
def test_killed_sites_go_on_to_the_same_bits(
    tmp_path: Path, text: dict[str, str], frozen: bool, seed: int
) -> None:
    draw = random.Random(seed)
    students = {"student": taught(), "other": taught(start=4)}
    more: dict[str, Any] = {"steps": 12, "checkpoint_every": draw.choice([3, 4, 5])}
    whole, killed = (
        Apart(tmp_path / name, text, students=students, frozen=frozen, ahead=3)
        for name in ("whole", "killed")
    )
    whole.train(**more)
    paths = {site: killed.write(site, **more) for site in killed.setups}

    kills = killed_until_they_end(paths, tmp_path, draw, 8)
    assert kills >= 2
    for site, setup in killed.setups.items():
        for name in ("teacher", *students):
            if (whole.setups[site].folder / "outputs" / name).exists():
                assert setup.weights(name) == whole.setups[site].weights(name)
                assert setup.curve(name) == whole.setups[site].curve(name)


def test_a_teacher_waits_for_the_slowest_site(tmp_path: Path, text: dict[str, str]) -> None:
    """Not before it is `ahead` steps before it; stopped, it goes on."""
    students = {"student": taught(), "other": taught(start=2)}
    sites = Apart(tmp_path, text, students=students, frozen=False, ahead=3)
    first = sites.setups["a"]
    with pytest.raises(StoppedError, match="stopped at step 3"):
        first.train(sites.training("a"), stop=AfterSteps(first.folder, 20))
    assert len(sent(sites)) == 3 and first.steps("teacher")[-1] == 3
    sites.train()
    assert sites.setups["b"].curve("student")[-1]["step"] == STEPS


def test_a_student_waits_for_its_teacher(tmp_path: Path, text: dict[str, str]) -> None:
    sites = Apart(tmp_path, text, students={"student": taught()}, frozen=True)
    second = sites.setups["b"]
    with pytest.raises(StoppedError, match="stopped at step 0"):
        second.train(sites.training("b"), stop=AfterSteps(second.folder, 5))
    sites.train()
    assert second.curve("student")[-1]["step"] == STEPS


def test_answers_are_removed_once_nobody_will_ask_for_them(tmp_path: Path, text: dict[str, str]) -> None:
    sites = Apart(tmp_path, text, students={"student": taught()}, frozen=False, ahead=2)
    sites.train(steps=15)
    assert len(sent(sites)) <= 2 + 2 * 3 + 2


@pytest.mark.parametrize("where", ["a", "b"])
def test_sites_may_have_other_layouts(tmp_path: Path, text: dict[str, str], where: str) -> None:
    alike, other = (
        Apart(tmp_path / name, text, students={"student": taught()}, frozen=False, **ALL) for name in "xy"
    )
    alike.train(micro_batch=1)
    path = other.write(where, layout_of(shard=2), micro_batch=1)
    rest = "b" if where == "a" else "a"
    beside_a_gang(tmp_path, path, lambda: other.setups[rest].train(other.training(rest, micro_batch=1)))
    assert apart(alike.losses("student"), other.losses("student")) < 1e-10


def test_no_student_learns_from_two_versions_of_a_step(tmp_path: Path, text: dict[str, str]) -> None:
    sites = Apart(tmp_path, text, students={"student": taught()}, frozen=False, ahead=3, values="exact")
    first = sites.setups["a"]
    with pytest.raises(StoppedError):
        first.train(sites.training("a"), stop=AfterSteps(first.folder, 20))
    for step in (1, 2, 3):
        for folder in (first.folder / "trajectory").glob(f"teacher/checkpoints/step-*{step}"):
            (folder / "manifest.json").unlink(missing_ok=True)
    with pytest.raises(DataError, match=r"round-000001/a: this site sent other answers to step 1 before"):
        first.train(sites.training("a", precision="fp32"), stop=AfterSteps(first.folder, 40))


def with_another_teacher(sites: Apart, steps: int = STEPS) -> Training:
    """Of site a: one whose store is lost, and which is made again by other code, has its name, and other
    weights.
    """
    shutil.rmtree(sites.setups["a"].folder / "trajectory")
    training = sites.training("a", steps)
    other = training.members["teacher"].model_copy(update={"role": role(32, lr=2e-2)})
    return training.model_copy(update={"members": {**training.members, "teacher": other}})


def test_a_student_goes_on_with_no_other_teacher_than_it_began_with(
    tmp_path: Path, text: dict[str, str]
) -> None:
    sites = Apart(tmp_path, text, students={"student": taught()}, frozen=False, ahead=2)
    teacher, student = sites.setups.values()
    box = Mailbox(str(tmp_path / "mail"), ANSWERS)

    class Halfway(StopRequest):
        @property
        def is_asked(self) -> bool:
            said = box.progress("b")
            return said is not None and said.step > 2

    def halfway(site: str) -> None:
        setup = sites.setups[site]
        with pytest.raises(StoppedError):
            setup.train(sites.training(site), stop=Halfway(setup.folder))

    all_at_once("ab", halfway)
    shutil.rmtree(tmp_path / "mail")
    stop, training = StopRequest(teacher.folder), with_another_teacher(sites)

    def go_on(site: str) -> None:
        if site == "a":
            with pytest.raises(StoppedError):
                teacher.train(training, stop=stop)
            return
        try:
            with pytest.raises(
                DataError, match=r"round-00000\d/a: .* from those that student learned from .*; remove "
            ):
                student.train(sites.training(site))
        finally:
            stop.ask()

    all_at_once("ab", go_on)
    assert not student.output("student").exists()


def test_a_longer_training_has_the_teacher_of_the_shorter_one(tmp_path: Path, text: dict[str, str]) -> None:
    """Of which the last message is left, whoever ends last."""
    sites = Apart(tmp_path, text, students={"student": taught()}, frozen=False)
    sites.train()
    teacher = sites.setups["a"]
    teacher.train(sites.training("a"))  # again, when the student has ended
    with pytest.raises(DataError, match=r"round-000008/a: this site sent other answers to step 8 before"):
        teacher.train(with_another_teacher(sites, 2 * STEPS), stop=AfterSteps(teacher.folder, 100))


def test_after_both_stores_are_lost_an_old_mailbox_is_named(tmp_path: Path, text: dict[str, str]) -> None:
    """The teacher comes first, and takes what the student said once for what it says now."""
    sites = Apart(tmp_path, text, students={"student": taught()}, frozen=False)
    sites.train()
    teacher, student = sites.setups.values()
    shutil.rmtree(student.folder / "trajectory")
    training, place = with_another_teacher(sites), str(tmp_path / "mail" / ANSWERS[:16])
    with pytest.raises(DataError, match=rf"other answers to step {STEPS} before.* remove {place}"):
        teacher.train(training, stop=AfterSteps(teacher.folder, 100))
    with pytest.raises(DataError, match=rf"round-000001/a: is gone, .*; remove {place}"):
        student.train(sites.training("b"), stop=AfterSteps(student.folder, 100))


def test_a_teacher_that_is_past_its_students_is_refused(tmp_path: Path, text: dict[str, str]) -> None:
    sites = Apart(tmp_path, text, students={"student": taught()}, frozen=False)
    first = sites.setups["a"]
    alone = first.training({"teacher": role(32, lr=1e-2)}, train(STEPS, checkpoint_every=3, precision="fp64"))
    with pytest.raises(StoppedError):
        first.train(alone, stop=AfterSteps(first.folder, 5))
    with pytest.raises(DataError, match=r"roles.teacher: is at step 5, and its answers to step 1"):
        first.train(sites.training("a"))


@pytest.mark.parametrize(
    ("roles", "link", "layout", "problem"),
    [
        ({}, {"roles": {"a": ["teacher"]}}, {}, "train.link.roles: student is at no site"),
        ({}, {"top": 65}, {}, r"train.link.top: 65 tokens .* has 64; train.link.top=all"),
        ({}, {}, {"tensor": 2}, "parallel.tensor: 2, and answers"),
        ({}, {}, {"pipeline": 2}, "parallel.pipeline: 2, and answers"),
        ({"objective": {"lm": LM(), "h": Hidden()}}, {}, {}, "roles.student.objective.h: compares more than"),
        ({"objective": {"lm": LM(), "h": Attention()}}, {}, {}, "objective.h: compares more than logits"),
        ({"attach": "frozen"}, {}, {}, "roles.student.attach: frozen, which is not built"),
    ],
)
def test_what_is_not_built_is_refused(
    roles: dict[str, Any], link: dict[str, Any], layout: dict[str, int], problem: str
) -> None:
    given = {"roles": {"a": ["teacher"], "b": ["student"]}, "site": "a", "mailbox": "/x"} | link
    how = train(8, link=given)
    found = {"teacher": role(32), "student": student(16).model_copy(update=roles)}
    with pytest.raises(ConfigError, match=problem):
        check_sites(Parallel.model_validate({"shard": 1} | layout), found, how)
    check_sites(Parallel(shard=2), found | {"student": student(16)}, train(8, link=LINK))


LINK = {"roles": {"a": ["teacher"], "b": ["student"]}, "site": "a", "mailbox": "/x"}


def test_a_chain_trains_again_whole_or_not_at_all() -> None:
    chain = train(8, link=LINK | {"roles": {"a": ["teacher"], "b": ["middle"], "c": ["student"]}})
    found = {"teacher": role(32), "middle": student(16)}
    found["student"] = student(16).model_copy(update={"teacher": "middle", "attach": "replay"})
    with pytest.raises(ConfigError, match=r"roles.middle.attach: refuse, and it may train again for student"):
        check_sites(Parallel(shard=2), found, chain)
    found["middle"] = found["middle"].model_copy(update={"attach": "replay"})
    check_sites(Parallel(shard=2), found, chain)


def test_sites_that_would_wait_for_each_other_are_refused() -> None:
    found = {name: role(32) for name in ("t1", "t2")}
    found |= {f"s{n}": taught().model_copy(update={"teacher": f"t{n}"}) for n in (1, 2)}
    crossing = LINK | {"roles": {"a": ["t1", "s2"], "b": ["t2", "s1"]}}
    with pytest.raises(ConfigError, match=r"sites learn from each other in a circle: [ab] of [ab] of [ab]"):
        check_sites(Parallel(shard=1), found, train(8, link=crossing))
    straight = LINK | {"roles": {"a": ["t1", "t2"], "b": ["s1", "s2"]}}
    check_sites(Parallel(shard=1), found, train(8, link=straight))


def warm(heat: float) -> Role:
    """A student that compares logits at a temperature."""
    objective = {"lm": LM(weight=0.5), "kd": Logits(weight=2.0, temperature=heat)}
    return taught().model_copy(update={"objective": objective})


def test_answers_at_another_temperature_than_the_comparison_are_refused_unless_they_are_whole() -> None:
    found = {"teacher": role(32), "student": warm(4)}
    way_out = (
        r"kd.temperature: 4, .* 8 most likely tokens only at temperature 1; train.link.temperature=4, or"
    )
    with pytest.raises(ConfigError, match=way_out):
        check_sites(Parallel(shard=1), found, train(8, link=LINK | {"top": 8}))
    for fits in ({"top": "all"}, {"top": 8, "temperature": 4}):
        check_sites(Parallel(shard=1), found, train(8, link=LINK | fits))


def test_a_student_logs_the_mass_of_the_tokens_that_it_is_told_of(
    tmp_path: Path, text: dict[str, str]
) -> None:
    kept = {}
    for heat in (1.0, 4.0):
        link = {"top": 40, "values": "exact", "temperature": heat}
        sites = Apart(tmp_path / str(heat), text, students={"student": warm(heat)}, frozen=True, **link)
        sites.train()
        line = sites.setups["b"].curve("student")[-1]["values"]
        kept[heat] = line["answers/kept"]
    assert 0.5 < kept[4.0] < kept[1.0] < 1


def test_few_tokens_of_a_warm_answer_are_refused_with_the_mass_that_they_have(
    tmp_path: Path, text: dict[str, str]
) -> None:
    link = {"top": 8, "values": "exact", "temperature": 4.0}
    sites = Apart(tmp_path, text, students={"student": warm(4.0)}, frozen=True, **link)
    said = r"temperature 4 the 8 tokens of an answer have \d+.\d% of the mass, below 50%; give link.top=all"
    with pytest.raises(DataError, match=said):
        sites.train()


def test_a_second_teacher_beside_one_elsewhere_is_refused() -> None:
    """It would be passed over in silence: the answers of the other would stand for its own."""
    objective = {"kd": Logits(weight=0.5), "more": Logits(weight=0.5, teacher="old")}
    student_of_two = taught().model_copy(update={"objective": objective})
    found = {"teacher": role(32), "old": role(16), "student": student_of_two}
    where = LINK | {"roles": {"a": ["teacher"], "b": ["student", "old"]}}
    with pytest.raises(
        ConfigError, match=r"objective.more.teacher: old, beside teacher at a: such a student"
    ):
        check_sites(Parallel(shard=1), found, train(8, link=where))


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ({"roles": {"a": ["teacher"], "b": ["teacher", "student"]}}, "teacher is at a and at b"),
        ({"site": "c"}, "link.site=c: this run is at one of a, b"),
        ({"rows": {"a": 2, "b": 2}}, "link.rows and link.roles are not built"),
        ({"every": 10}, "link.every does nothing without link.rows"),
        ({"mailbox": "mail"}, "link.mailbox is mail"),
        ({"roles": {}}, "link.(site|mailbox) does nothing without link.rows"),
        ({"roles": {}, "site": "", "mailbox": "", "top": 8}, "link.top does nothing without link.roles"),
    ],
)
def test_a_link_of_roles_that_does_not_fit_is_refused(link: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Train.model_validate({"steps": 8, "global_batch": 4, "sequence": 16, "link": LINK | link})


def test_a_site_of_a_role_that_there_is_not_is_refused() -> None:
    how = train(8, link=LINK | {"roles": {"a": ["teacher"], "b": ["studnt"]}})
    with pytest.raises(ConfigError, match=r"link.roles.b: there is no role 'studnt'; did you mean student\?"):
        check_everybody({"teacher": role(32), "student": student(16)}, how, {})


def test_logits_are_what_an_answer_is_of() -> None:
    assert Logits.reads_logits_only and not Hidden.reads_logits_only and not Attention.reads_logits_only
