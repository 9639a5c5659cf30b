"""A profile names the nested parts of each step, and does not change the weights."""

import gzip
import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from atelier.engine.config.error import StoppedError
from atelier.engine.config.parallel import Parallel
from atelier.engine.loop.profile import WARM
from atelier.engine.parallel.gang import MARK, OFF, Regions
from tests.engine.trainings import AfterSteps, TrainingSetup, role, student, train

TWO = Parallel(shard=2, threads=1, compile="none", device="cpu")
ROLES = {"teacher": role(32), "student": student(16)}


def events(path: Path) -> list[dict]:
    """Atelier's own regions in a trace, by begin."""
    trace = json.loads(gzip.decompress(path.read_bytes()))
    own = [event for event in trace["traceEvents"] if str(event.get("name")).startswith(MARK)]
    found = [event for event in own if event.get("cat") == "user_annotation"]
    return sorted(found, key=lambda event: event["ts"])


def inside(outer: dict, found: list[dict]) -> list[str]:
    """Names of the regions in `outer`, in order."""
    end = outer["ts"] + outer["dur"]
    return [
        event["name"].removeprefix(MARK)
        for event in found
        if event is not outer and outer["ts"] <= event["ts"] and event["ts"] + event["dur"] <= end
    ]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainingSetup, str]:
    """A training with a profile of two steps, and what it said."""
    setup, said = TrainingSetup(tmp_path_factory.mktemp("profiled")), StringIO()
    with redirect_stdout(said):
        setup.train(setup.training(ROLES, train(6, profile=2)))
    return setup, said.getvalue()


def test_a_trace_has_the_parts_of_every_step_in_their_order(profiled: tuple[TrainingSetup, str]) -> None:
    setup, said = profiled
    [path] = setup.folder.glob("trajectory/*/profile/*")
    assert path.parent.parent.name == "teacher" and path.name == f"steps-{WARM + 1}-{WARM + 2}-rank0.json.gz"
    assert f'"log": "profile of steps 4 to 5: {path.parent}"' in said
    found = events(path)
    steps = [event for event in found if event["name"].startswith(f"{MARK}step ")]
    assert [event["name"] for event in steps] == [f"{MARK}step {step}" for step in (4, 5)]
    micro = [
        "forward",
        "role student",
        "forward",
        "backward",
        "backward",
    ]  # the student's within the teacher's
    usual = ["data", "role teacher", *micro, *micro, "reduce", "optimiser student", "optimiser teacher"]
    assert inside(steps[1], found) == usual
    due = ["evaluate student", *["forward"] * 3, "evaluate teacher", *["forward"] * 3, "checkpoint"]
    assert inside(steps[0], found) == [*usual, *due]  # every 4 steps
    teacher = next(event for event in found if event["name"] == f"{MARK}role teacher")
    assert inside(teacher, found) == [*micro, *micro]
    assert not list(setup.folder.glob("scratch*/*.json"))


def test_the_bits_are_the_same_with_and_without_a_profile(
    tmp_path: Path, profiled: tuple[TrainingSetup, str]
) -> None:
    plain = TrainingSetup(tmp_path)
    plain.train(plain.training(ROLES, train(6)))
    assert not list(tmp_path.glob("trajectory/*/profile"))
    assert all(plain.weights(role) == profiled[0].weights(role) for role in ROLES)


@pytest.mark.slow
def test_a_training_that_is_stopped_leaves_the_trace_of_its_last_steps_and_then_goes_on(
    tmp_path: Path,
) -> None:
    setup = TrainingSetup(tmp_path)
    training = setup.training(ROLES, train(12, profile=4))
    with pytest.raises(StoppedError):
        setup.train(training, stop=AfterSteps(tmp_path, WARM + 2))
    setup.train(training)
    names = sorted(path.name for path in tmp_path.glob("trajectory/*/profile/*"))
    assert names == ["steps-4-5-rank0.json.gz", "steps-9-12-rank0.json.gz"]


def test_every_rank_has_its_trace(tmp_path: Path) -> None:
    setup = TrainingSetup(tmp_path)
    run = setup.run_file(setup.training({"model": role(32)}, train(8, profile=2)), layout=TWO)
    for process in setup.processes(run, world=2):
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, out + err
    for rank in range(2):
        found = events(tmp_path / f"trajectory/model/profile/steps-4-5-rank{rank}.json.gz")
        assert [event["name"] for event in found].count(f"{MARK}backward") == 2


def test_a_profile_is_no_part_of_identity_and_regions_cost_nothing_without_one() -> None:
    assert train(8, profile=3).as_identity() == train(8).as_identity()
    assert Regions()("forward") is OFF
