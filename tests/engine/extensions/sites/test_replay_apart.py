"""A finished teacher that is trained again for a student at another site."""

import hashlib
import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import AtelierError, StoppedError
from atelier.engine.config.role import Role
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.loop.stop import StopRequest
from atelier.engine.plan.role_placement import with_teachers
from tests.engine.extensions.sites.apart import ANSWERS, SIZES, STEPS, Apart, taught
from tests.engine.extensions.sites.at_sites import all_at_once, killed_until_they_end
from tests.engine.trainings import VOCAB, AfterSteps, TrainingSetup, role, tokens, train

LATER = taught(attach="replay")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"tokens": tokens(tmp_path_factory.mktemp("text"))}


def after(sites: Apart, text: dict[str, str], students: dict[str, Role], digest: str = "") -> Apart:
    """The sites of a training that is finished, with other students, in the same folders and mailbox, in
    which the last two answers are left, at most: a teacher that ends last has removed them all.
    """
    box = Mailbox(str(sites.folder / "mail"), ANSWERS)
    for last in box.rounds()[-1:]:
        box.forget(last - 2)
    later = Apart(sites.folder, text, students=students, frozen=False, ahead=3)
    later.replayed = digest or hashlib.sha256(sites.setups["a"].weights("teacher")).hexdigest()
    return later


def finished(folder: Path, text: dict[str, str], student: Role | None = None, **more: Any) -> Apart:
    """A teacher and its first student, trained together."""
    sites = Apart(folder, text, students={"first": student or LATER}, frozen=False, ahead=3)
    sites.train(**more)
    return sites


def together(folder: Path, text: dict[str, str], student: Role, **more: Any) -> Apart:
    """The student of `after`, trained beside a teacher that trains for the first time."""
    sites = Apart(folder, text, students={"later": student}, frozen=False, ahead=3)
    sites.train(**more)
    return sites


def check_equal(later: Apart, whole: Apart) -> None:
    mine, theirs = later.setups["b"], whole.setups["b"]
    assert mine.weights("later") == theirs.weights("later")
    assert mine.curve("later") == theirs.curve("later")


@pytest.mark.parametrize("start", [0, 4])
def test_a_student_added_later_learns_what_it_would_have_together(
    tmp_path: Path, text: dict[str, str], capsys: pytest.CaptureFixture[str], start: int
) -> None:
    """Of the teacher nothing is written again; it begins at the nearest checkpoint."""
    sites = finished(tmp_path / "sites", text, taught(), keep=9)
    teacher = sites.setups["a"]
    before = (teacher.curve("teacher"), teacher.steps("teacher"), teacher.weights("teacher"))
    spec = LATER.model_copy(update={"start": start})
    later = after(sites, text, {"later": spec})
    capsys.readouterr()
    later.train(keep=9)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(line["resumed"] for line in said if "resumed" in line) == [0, 3 if start else 0]
    check_equal(later, together(tmp_path / "together", text, spec, keep=9))
    assert (teacher.curve("teacher"), teacher.steps("teacher"), teacher.weights("teacher")) == before


def test_a_site_whose_student_is_published_is_not_waited_for(tmp_path: Path, text: dict[str, str]) -> None:
    """With more than the teacher may be ahead of it."""
    sites = finished(tmp_path / "sites", text)
    later = after(sites, text, {"first": LATER, "later": LATER})
    only = {site: later.setups[site] for site in ("a", "c")}
    all_at_once(only, lambda site: only[site].train(later.training(site)))
    whole = together(tmp_path / "together", text, LATER)
    assert later.setups["c"].weights("later") == whole.setups["b"].weights("later")


def test_nothing_is_trained_again_where_everybody_has_learned(
    tmp_path: Path, text: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Although another student has learned at the same site since."""
    sites = finished(tmp_path / "sites", text)
    after(sites, text, {"later": LATER}).train()
    later = after(sites, text, {"first": LATER})
    capsys.readouterr()
    teacher = later.setups["a"]
    teacher.train(later.training("a"), stop=AfterSteps(teacher.folder, 100))
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["resumed"] for line in said if "resumed" in line] == [STEPS]


def test_a_replay_that_ends_otherwise_publishes_no_student(tmp_path: Path, text: dict[str, str]) -> None:
    sites = finished(tmp_path / "sites", text)
    later = after(sites, text, {"later": LATER}, "0" * 64)
    student = later.setups["b"]

    check_unpublished(later)
    assert not student.output("later").exists()


def check_unpublished(later: Apart) -> None:
    """The student, which begins before its teacher, waits for a word of it that does not come."""

    class LongAfter(AfterSteps):
        """Asks to stop when the loop has looked 60 times after the teacher's end."""

        @property
        def is_asked(self) -> bool:
            return "a" in found and super().is_asked

    def train(site: str) -> None:
        setup, box = later.setups[site], Mailbox(str(later.folder / "mail"), ANSWERS)
        until = time.monotonic() + 60
        while site == "a" and ((said := box.progress("b")) is None or said.step > 0):
            assert time.monotonic() < until
            time.sleep(0.01)
        with pytest.raises(AtelierError if site == "a" else StoppedError) as problem:
            setup.train(later.training(site), stop=LongAfter(setup.folder, 60) if site == "b" else None)
        found[site] = str(problem.value)

    found: dict[str, str] = {}
    all_at_once(later.setups, train)
    assert "nothing is published" in found["a"] and found["b"] == f"stopped at step {STEPS}", found


@pytest.mark.slow
def test_a_conclusion_is_of_the_answers_that_a_student_has_learned_from(
    tmp_path: Path, text: dict[str, str]
) -> None:
    """The first time all was well; then the student is lost, and its teacher ends otherwise."""
    sites = finished(tmp_path / "sites", text)
    student = sites.setups["b"]
    for lost in (student.folder / "trajectory", student.output("first")):
        shutil.rmtree(lost)
    check_unpublished(after(sites, text, {"first": LATER}, "0" * 64))
    assert not student.output("first").exists()


@pytest.mark.parametrize("attach", ["refuse", "replay"])
def test_a_longer_training_waits_for_a_student_that_a_shorter_one_has_published(
    tmp_path: Path, text: dict[str, str], attach: str
) -> None:
    """Which is of the same trajectory, and comes long after its teacher."""
    sites = finished(tmp_path / "sites", text, taught(attach=attach))
    shorter = sites.setups["b"].curve("first")
    box = Mailbox(str(tmp_path / "sites" / "mail"), ANSWERS)

    def longer(site: str) -> None:
        until = time.monotonic() + 60
        while site == "b" and box.last_sent("a") < STEPS + 3:
            assert time.monotonic() < until, "the teacher sends nothing"
            time.sleep(0.01)
        sites.setups[site].train(sites.training(site, steps=2 * STEPS))

    all_at_once(sites.setups, longer)
    curve = sites.setups["b"].curve("first")
    assert curve[:STEPS] == shorter and len(curve) == 2 * STEPS


def test_a_half_done_training_of_a_version_before_goes_on(tmp_path: Path, text: dict[str, str]) -> None:
    """Whose sites did not say of which students they spoke."""
    whole = Apart(tmp_path / "whole", text, students={"first": taught()}, frozen=False, ahead=3)
    whole.train(steps=10)
    sites = Apart(tmp_path / "sites", text, students={"first": taught()}, frozen=False, ahead=3)

    box = Mailbox(str(sites.folder / "mail"), ANSWERS)

    class Halfway(StopRequest):
        @property
        def is_asked(self) -> bool:
            said = box.progress("b")
            return said is not None and said.safe > 0

    def stopped(site: str) -> None:
        setup = sites.setups[site]
        with pytest.raises(StoppedError):
            setup.train(sites.training(site, steps=10, checkpoint_every=1), stop=Halfway(setup.folder))

    all_at_once(sites.setups, stopped)
    said = box.progress("b")
    assert said is not None and 0 < said.safe < 10
    box.tell(said.model_copy(update={"students": ()}))
    sites.train(steps=10)
    assert sites.setups["b"].weights("first") == whole.setups["b"].weights("first")


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_killed_sites_go_on_to_the_same_bits(tmp_path: Path, text: dict[str, str], seed: int) -> None:
    draw = random.Random(seed)
    more: dict[str, Any] = {"steps": 12, "checkpoint_every": draw.choice([3, 4, 5])}
    sites = finished(tmp_path / "sites", text, **more)
    spec = LATER.model_copy(update={"start": draw.choice([0, 6])})
    later = after(sites, text, {"later": spec})
    paths = {site: later.write(site, **more) for site in later.setups}
    kills = killed_until_they_end(paths, tmp_path, draw, 8)
    assert kills >= 2
    check_equal(later, together(tmp_path / "together", text, spec, **more))


def test_a_gang_that_nobody_needs_any_more_ends(tmp_path: Path, text: dict[str, str]) -> None:
    """Others have done its work while it waited."""
    setup = TrainingSetup(tmp_path, dict(text))
    setup.train(setup.training({}, train(STEPS)))


def test_a_role_that_has_trained_is_published_without_its_teacher(
    tmp_path: Path, text: dict[str, str]
) -> None:
    """Which is finished, and not in the gang; of it the sizes are known."""
    alone, how = TrainingSetup(tmp_path, dict(text)), train(STEPS, **SIZES)
    roles = {"teacher": role(32, lr=1e-2), "first": LATER}
    alone.train(alone.training(roles, how))
    before = alone.weights("first")
    shutil.rmtree(alone.output("first"))
    members = {"first": alone.member("first", LATER, STEPS)}
    alone.train(alone.training(with_teachers(members, roles, VOCAB), how))
    assert alone.weights("first") == before
