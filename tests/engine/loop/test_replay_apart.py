"""A teacher that is finished, trained again for a student at another site."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import AtelierError, StoppedError
from atelier.engine.config.role import Role
from atelier.engine.link.mailbox import Mailbox
from tests.engine.loop.apart import ANSWERS, STEPS, Apart, taught
from tests.engine.loop.at_sites import all_at_once, killed_until_they_end
from tests.engine.trainings import AfterSteps, tokens

LATER = taught(attach="replay")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"tokens": tokens(tmp_path_factory.mktemp("text"))}


def after(sites: Apart, text: dict[str, str], students: dict[str, Role], digest: str = "") -> Apart:
    """The sites of a training that is finished, with other students, in the same folders and mailbox, in
    which the last two answers are left.
    """
    box = Mailbox(str(sites.folder / "mail"), ANSWERS)
    box.forget(box.rounds()[-1] - 2)
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


@pytest.mark.parametrize("start", [0, 5])
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

    def train(site: str) -> None:
        setup = later.setups[site]
        with pytest.raises(AtelierError if site == "a" else StoppedError) as problem:
            setup.train(later.training(site), stop=AfterSteps(setup.folder, 200) if site == "b" else None)
        found[site] = str(problem.value)

    found: dict[str, str] = {}
    all_at_once(later.setups, train)
    assert "nothing is published" in found["a"] and found["b"] == f"stopped at step {STEPS}", found
    assert not student.output("later").exists()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_killed_sites_go_on_to_the_same_bits(tmp_path: Path, text: dict[str, str], seed: int) -> None:
    draw = random.Random(seed)
    more: dict[str, Any] = {"steps": 24, "checkpoint_every": draw.choice([3, 4, 5])}
    sites = finished(tmp_path / "sites", text, **more)
    spec = LATER.model_copy(update={"start": draw.choice([0, 6])})
    later = after(sites, text, {"later": spec})
    paths = {site: later.write(site, **more) for site in later.setups}
    kills = killed_until_they_end(paths, tmp_path, draw, 8)
    assert kills >= 2
    check_equal(later, together(tmp_path / "together", text, spec, **more))
