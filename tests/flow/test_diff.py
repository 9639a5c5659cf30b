"""`atelier diff` over real runs: a seed, a key, the data, and one command on two layouts in two stores."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.flow.command import Atelier, done

pytestmark = pytest.mark.slow
TINY = ("pretrain", "experiment=tiny", "tracker=none", "score.baselines=false", "train.steps=12")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


def curve_of(store: Path, run: dict[str, Any]) -> dict[int, dict[str, float]]:
    """The logged values by step, read from the files of the run's trajectories."""
    (row,) = [one for one in run["tasks"] if one["kind"] == "model"]
    lines = [
        json.loads(line)
        for trajectory in row["keeps"]
        for file in sorted((store / "trajectory" / trajectory[:16] / "metrics").glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    return {line["step"]: line["values"] for line in lines}


def newest(store: Path) -> dict[str, Any]:
    return json.loads(max((store / "runs").glob("*.json")).read_text())


def first_unequal(one: dict[int, dict[str, float]], other: dict[int, dict[str, float]], most: float) -> int:
    return min(
        step
        for step in one.keys() & other.keys()
        for key in one[step].keys() & other[step].keys()
        if abs(one[step][key] - other[step][key]) > most * max(abs(one[step][key]), abs(other[step][key]))
    )


def test_the_change_of_a_real_run_and_the_step_where_its_curve_parts_are_found(atelier: Atelier) -> None:
    done(atelier(*TINY))
    base = newest(atelier.root)
    for change, section in (
        ("train.seed=2", "configuration"),
        ("optim.schedule.warmup=6", "configuration"),
        ("data.held_out=0.2", "data"),
    ):
        done(atelier(*TINY, change))
        other = newest(atelier.root)
        found = json.loads(done(atelier("diff", base["id"], other["id"], "--json")))
        assert change.partition("=")[0] in json.dumps(found[section]), change
        (curve,) = found["curves"]
        assert curve["tolerance"] == 0.0
        assert curve["step"] == first_unequal(
            curve_of(atelier.root, base), curve_of(atelier.root, other), 0.0
        )


def test_one_command_on_two_layouts_parts_only_beyond_the_last_digits(
    atelier: Atelier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(atelier(*TINY))
    base = newest(atelier.root)
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    done(atelier(*TINY, "parallel.shard=2"))
    other = newest(tmp_path)
    monkeypatch.setenv("ATELIER_ROOT", str(atelier.root))
    said = done(atelier("diff", base["id"], other["id"], "--store", str(tmp_path), "--json"))
    found = json.loads(said)
    assert [row["key"] for row in found["layout"]] == ["shard"] and found["artifacts"] == []
    (curve,) = found["curves"]
    assert curve["tolerance"] == 1e-5 and not curve["is_one"]
    one, two = curve_of(atelier.root, base), curve_of(tmp_path, other)
    apart = {key for step in one for key in one[step] if one[step][key] != two[step][key]}
    assert apart  # the layouts do add up in another order
    beyond = {
        step
        for step in one
        for key in one[step]
        if abs(one[step][key] - two[step][key]) > 1e-5 * max(abs(one[step][key]), abs(two[step][key]))
    }
    assert curve["step"] == min(beyond, default=None)
