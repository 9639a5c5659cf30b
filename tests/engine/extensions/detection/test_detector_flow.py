"""A generator and its detector with `atelier distill experiment=detector`: in one gang, and at two sites."""

import json
from pathlib import Path

import pytest

from tests.faults.command import CommandStore
from tests.flow.kills import weights_of
from tests.flow.two_sites import at, started, wait

pytestmark = pytest.mark.slow
WORDS = (
    "distill", "experiment=detector", "train.steps=16", "train.checkpoint_every=4", "score.baselines=false",
    "tracker=none", "roles.student_a.start=2", "roles.student_a.objective.replaced.delay=2",
)  # fmt: skip
LINK = ("train.link.roles={a:[teacher],b:[student_a]}",)


def test_at_two_sites_both_have_the_fingerprints_and_the_bits_of_one_gang(tmp_path: Path) -> None:
    wait(tmp_path, {"one": started(tmp_path, "one", WORDS)})
    wait(tmp_path, {site: started(tmp_path, site, (*WORDS, *LINK, *at(tmp_path, site))) for site in "ab"})
    together = weights_of(CommandStore(tmp_path / "one"))
    apart = weights_of(CommandStore(tmp_path / "a")) | weights_of(CommandStore(tmp_path / "b"))
    assert apart == together and len(together) == 2

    [report] = (tmp_path / "one" / "report").glob("*/payload-*/table.json")
    told = json.loads(report.read_text())
    [head] = [row for row in told["rows"] if row.get("head") == "replaced"]
    assert head["name"] == "student_a" and 0.7 < head["right_without"] < 1 and 0 < head["right"] <= 1
    assert any("of the tokens were replaced" in note for note in told["notes"])
    models = {record["name"]: record for record in CommandStore(tmp_path / "one").records("model")}
    assert models["student_a"]["parents"]["teacher"] == models["teacher"]["parents"]["trajectory"]
    assert models["student_a"]["summary"]["teacher_steps"] == [0, 13]
