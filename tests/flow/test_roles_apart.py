"""One distillation at two sites: the teacher at one, its student at the other, each with its own store."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.faults.command import CommandStore
from tests.flow.kills import weights_of
from tests.flow.two_sites import at, started, wait

pytestmark = pytest.mark.slow
SITES = ("a", "b")
WORDS = (
    "distill", "experiment=tiny", "tracker=none", "score.baselines=false", "parallel.threads=1",
    "train.checkpoint_every=4", "train.precision=fp32",
)  # fmt: skip
LINK = ("train.link.roles={a:[teacher],b:[student_a]}", "train.link.ahead=3")


def begin(folder: Path, site: str, *more: str) -> subprocess.Popen[bytes]:
    return started(folder, site, (*WORDS, *LINK, *at(folder, site), *more))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sites")
    wait(folder, {site: begin(folder, site) for site in SITES})
    return folder


def models(folder: Path, site: str) -> dict[str, list[str]]:
    return weights_of(CommandStore(folder / site))


def test_each_site_has_its_own_model_and_the_teacher_is_that_of_one_gang(whole: Path, tmp_path: Path) -> None:
    wait(tmp_path, {"one": started(tmp_path, "one", WORDS)})
    beside = {record["name"]: record for record in CommandStore(tmp_path / "one").records("model")}
    [teacher] = CommandStore(whole / "a").records("model")
    [student] = CommandStore(whole / "b").records("model")
    assert (teacher["name"], student["name"]) == ("teacher", "student_a")
    assert teacher["fingerprint"] == beside["teacher"]["fingerprint"]
    assert student["fingerprint"] != beside["student_a"]["fingerprint"]
    assert student["parents"]["teacher"] == teacher["parents"]["trajectory"]
    mine, theirs = models(whole, "a"), models(tmp_path, "one")
    assert all(theirs[key] == digests for key, digests in mine.items()) and mine
    losses = [record["summary"]["loss"] for record in (student, beside["student_a"])]
    print(f"{losses[0]:.5f} and {losses[1]:.5f} nats")
    assert abs(losses[0] - losses[1]) < 0.01
    again = begin(whole, "b")
    wait(whole, {"b": again})
    assert "nothing to do" in (whole / "b.log").read_text()


def test_killed_without_warning_they_go_on_to_the_same_bits(whole: Path, tmp_path: Path) -> None:
    runs = {site: begin(tmp_path, site) for site in SITES}
    for site, step in (("b", 14), ("a", 17)):
        until = time.monotonic() + 120
        while not list((tmp_path / "mail").glob(f"*/round-{step:06d}/a/message.json")):
            assert time.monotonic() < until and runs[site].poll() is None, (tmp_path / "a.log").read_text()
            time.sleep(0.005)
        os.killpg(runs[site].pid, signal.SIGKILL)
        runs[site].wait()
        CommandStore(tmp_path / site).wait_for_quiet()  # the gang ends with its supervisor's pipe
        runs[site] = begin(tmp_path, site)
    wait(tmp_path, runs)
    assert [models(tmp_path, site) for site in SITES] == [models(whole, site) for site in SITES]


def test_another_student_has_the_finished_teacher_train_again_for_it(whole: Path, tmp_path: Path) -> None:
    """Then nothing is to do at either site."""
    more = ("roles.student_a.optim.lr=2e-3", "roles.student_a.attach=replay")
    together = tmp_path / "together"
    together.mkdir()
    wait(together, {site: begin(together, site, *more) for site in SITES})
    before = models(whole, "a")
    wait(whole, {site: begin(whole, site, *more) for site in SITES})
    assert models(whole, "a") == before == models(together, "a")
    assert models(whole, "b")["student_a"] == models(together, "b")["student_a"]
    for site in SITES:
        wait(whole, {site: begin(whole, site, *more)})
        assert "nothing to do" in (whole / f"{site}.log").read_text()[-400:]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("train.link.roles={a:[teacher],b:[studnt_a]}",), "no role 'studnt_a'; did you mean student_a?"),
        (("train.link.roles={a:[]}",), "teacher is at no site"),
        (("train.link.top=5000",), "train.link.top: 5000 tokens of each answer"),
        (("+roles.student_a.objective.h={kind:hidden}",), "compares more than logits"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    run = begin(tmp_path, "a", *words)
    try:
        assert run.wait(30) == 2
    finally:
        run.terminate()
        run.wait(60)
    assert problem in (tmp_path / "a.log").read_text() and not (tmp_path / "mail").exists()
