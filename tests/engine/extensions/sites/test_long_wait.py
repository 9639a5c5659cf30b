"""A training that waits long for another site names the site and the missing message."""

import json
from pathlib import Path

import pytest

from atelier.engine.config.error import StoppedError
from atelier.engine.extensions.sites import long_wait
from atelier.engine.extensions.sites.long_wait import WAY_OUT, LongWait
from tests.engine.extensions.sites.apart import ANSWERS, Apart, taught
from tests.engine.extensions.sites.test_elastic import elastic
from tests.engine.extensions.sites.test_outer import EVERY, Sites
from tests.engine.trainings import AfterSteps, TrainingSetup, role, tokens

LOOKS = 10  # while it waits


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"tokens": tokens(tmp_path_factory.mktemp("text"))}


def warnings(printed: str) -> list[str]:
    lines = [json.loads(line) for line in printed.splitlines()]
    return [line["warning"] for line in lines if "warning" in line]


def stopped_after(setup: TrainingSetup, steps: int) -> AfterSteps:
    return AfterSteps(setup.folder, steps + LOOKS)


def waits_at_a(sites: Sites, capsys: pytest.CaptureFixture[str]) -> str:
    """What site a says that it waits for, until it is stopped, without its trajectory."""
    setup, training = sites.setups["a"], sites.training("a", role(lr=1e-2))
    with pytest.raises(StoppedError):
        setup.train(training, stop=stopped_after(setup, EVERY))
    [found] = warnings(capsys.readouterr().out)
    end = f" of {training.members['m'].segments[-1].fingerprint[:16]}; {WAY_OUT}"
    assert found.startswith("has waited 0 s for ") and found.endswith(end)
    return found.removeprefix("has waited 0 s for ").removesuffix(end)


def test_a_long_wait_is_said_and_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [100.0], list[str]()
    monkeypatch.setattr(long_wait.time, "monotonic", lambda: now[0])
    wait = LongWait(said.append)
    times: list[float] = []
    while now[0] < 100 + 1300:
        if wait.is_due:
            times.append(now[0] - 100)
            wait.say("b")
        now[0] += 1
    assert times == [60, 660, 1260]
    assert said[1] == f"has waited 660 s for b; {WAY_OUT}"


def test_a_training_says_for_whose_contribution_it_waits(
    tmp_path: Path, text: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(long_wait, "FIRST_S", 0.3)
    assert waits_at_a(Sites(tmp_path, text), capsys) == "b, in round 1"


@pytest.mark.parametrize("coordinator", ["a", "b"])
def test_a_training_says_whose_decision_it_waits_for(
    coordinator: str,
    tmp_path: Path,
    text: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(long_wait, "FIRST_S", 0.3)
    waits = {"a": "b, in round 1", "b": "b, which decides who is in round 1"}[coordinator]
    assert waits_at_a(Sites(tmp_path, text, **elastic(coordinator=coordinator, grace=60.0)), capsys) == waits


def test_a_student_and_a_teacher_say_for_whom_they_wait(
    tmp_path: Path, text: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(long_wait, "FIRST_S", 0.1)
    sites = Apart(tmp_path, text, students={"student": taught()}, frozen=False, ahead=3)
    what = {"b": "a, for step 1", "a": "b, to learn from step 1"}
    for site, expected in what.items():
        setup = sites.setups[site]
        with pytest.raises(StoppedError):
            setup.train(sites.training(site), stop=stopped_after(setup, 3))
        [found] = warnings(capsys.readouterr().out)
        assert found == f"has waited 0 s for {expected} of {ANSWERS[:16]}; {WAY_OUT}"
