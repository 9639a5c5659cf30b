"""Elastic membership: refused settings, and errors instead of different weights or an endless wait."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.base import parse
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.config.train import Train
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.membership import Meeting, Presence
from atelier.engine.extensions.sites.messages import BODY
from atelier.engine.extensions.sites.round_log import FILE
from atelier.engine.io.storage import names
from tests.engine.extensions.sites.at_sites import all_at_once
from tests.engine.extensions.sites.test_elastic import EVERY, STEPS, elastic
from tests.engine.extensions.sites.test_outer import Sites, text
from tests.engine.trainings import AfterSteps, role

__all__ = ["text"]


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ({"membership": {"minimum": 2}}, "minimum does nothing in a strict membership"),
        ({"membership": {"kind": "elastic", "minimum": 3}}, "minimum=3, and there are 2 sites"),
        ({"membership": {"kind": "elastic", "coordinator": "c"}}, "coordinator=c: one of a, b, or any"),
        (
            {"membership": {"kind": "elastic"}, "delay": 1},
            "link.delay is not built for an elastic membership",
        ),
        ({"membership": {"kind": "elastic"}, "mailbox": "s3://m/x"}, "s3://m/x is not a folder"),
        ({"rounds": "/tmp/rounds.jsonl"}, "link.rounds does nothing without link.choose, or link.membership"),
        ({"rows": {}, "site": "", "membership": {"kind": "elastic"}}, "does nothing without link.rows"),
    ],
)
def test_a_membership_that_does_not_fit_is_refused(link: dict[str, Any], problem: str) -> None:
    given = {"rows": {"a": 2, "b": 2}, "site": "a", "mailbox": "/tmp/x", "every": 4, **link}
    document = {"steps": 8, "global_batch": 4, "sequence": 16, "link": given}
    with pytest.raises(ConfigError, match=problem):
        parse(Train, document, "train")


def test_a_decision_that_gives_samples_to_others_than_the_log_says_is_refused(
    tmp_path: Path, text: dict[str, str]
) -> None:
    sites = Sites(tmp_path / "first", text, **elastic())
    sites.train(role(lr=1e-2), steps=STEPS)
    [trajectory] = names(sites.link["mailbox"])
    place = sorted(Path(sites.mailbox("a"), trajectory).glob("round-*/decision.json"))[-1]
    changed = Sites(tmp_path / "other", text, **elastic())
    decision = json.loads(place.read_bytes())
    decision["line"] |= {"round": 1, "before": ""}
    there = Path(changed.mailbox("a"), trajectory, "round-000001", "decision.json")
    there.parent.mkdir(parents=True)
    there.write_text(json.dumps(decision))
    with pytest.raises(DataError, match="round 1: its decision assigns other samples than the round log"):
        changed.setups["a"].train(changed.training("a", role(lr=1e-2), STEPS))


def test_what_was_decided_on_is_what_is_added(tmp_path: Path, text: dict[str, str]) -> None:
    """Another contribution of b lies there than the one of the decision: it had lost its mailbox."""
    first, other, sites = (Sites(tmp_path / name, text, **elastic()) for name in ("first", "other", "sites"))
    first.train(role(lr=1e-2), steps=EVERY)
    other.train(role(lr=2e-2), steps=EVERY)
    [trajectory] = names(first.link["mailbox"])
    here, there = (Path(each.mailbox("a"), trajectory, "round-000001") for each in (sites, other))
    shutil.copytree(Path(first.mailbox("a"), trajectory, "round-000001"), here)
    shutil.rmtree(here / "b")
    shutil.copytree(there / "b", here / "b")
    with pytest.raises(
        DataError, match=r"b/tensors.safetensors: differs from the contribution in the decision"
    ):
        sites.setups["a"].train(sites.training("a", role(lr=1e-2), EVERY))
    assert not sites.setups["a"].output("m").exists()


def test_a_round_that_too_few_can_be_in_ends_with_what_is_wrong_with_the_others(
    tmp_path: Path, text: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """All that b ever sends to round 1 is damaged, and a alone is fewer than `minimum`."""
    first, sites = (Sites(tmp_path / name, text, **elastic(minimum=2)) for name in ("first", "sites"))
    first.train(role(lr=1e-2), steps=EVERY)
    [trajectory] = names(first.link["mailbox"])
    here = Path(sites.mailbox("a"), trajectory, "round-000001", "b")
    shutil.copytree(Path(first.mailbox("a"), trajectory, "round-000001", "b"), here)
    body = bytearray((here / BODY).read_bytes())
    body[-1] ^= 1
    (here / BODY).write_bytes(body)
    setup = sites.setups["a"]
    with pytest.raises(
        DataError, match=r"round 1: needs 2 sites .* of b are refused: .*safetensors: .*again"
    ):
        setup.train(sites.training("a", role(lr=1e-2), EVERY), stop=AfterSteps(setup.folder, 50))
    assert "leaves out" not in capsys.readouterr().out


def test_a_site_whose_first_decision_the_coordinator_has_no_more_ends(
    tmp_path: Path, text: dict[str, str]
) -> None:
    """b has lost its store and its mailbox; what a's agent says of that has come."""
    sites = Sites(tmp_path, text, **elastic(grace=60.0))
    setup = sites.setups["b"]
    box = Mailbox(sites.mailbox("b"), setup.segment("m", 0, STEPS).fingerprint)
    told = {"trajectory": box.trajectory, "site": "a", "round": 9, "safe": 7, "beat": 1, "coordinator": "a"}
    Meeting(box).tell(Presence.model_validate(told | {"oldest": 8}))
    with pytest.raises(DataError, match=r"round-000001.decision.json: is gone, and at a round 8 is the old"):
        setup.train(sites.training("b", role(lr=1e-2), STEPS), stop=AfterSteps(setup.folder, 50))


def test_sites_that_are_told_other_coordinators_end_with_an_error(
    tmp_path: Path, text: dict[str, str]
) -> None:
    """Each would decide by itself, and they would end apart."""

    class Told(Sites):
        def link_of(self, site: str) -> dict[str, Any]:
            found = super().link_of(site)
            return found | {"membership": found["membership"] | {"coordinator": site}}

    with pytest.raises(DataError, match=r"membership.coordinator: . at ., . at .; give all sites the same"):
        Told(tmp_path, text, **elastic(grace=60.0)).train(role(lr=1e-2), steps=STEPS)


def test_one_of_three_sites_that_is_told_another_coordinator_ends_and_the_others_go_on(
    tmp_path: Path, text: dict[str, str]
) -> None:
    """What it says, or what is damaged where it said it, is as if it were silent."""

    class Told(Sites):
        def link_of(self, site: str) -> dict[str, Any]:
            found, coordinator = super().link_of(site), "c" if site == "c" else "a"
            return found | {"membership": found["membership"] | {"coordinator": coordinator}}

    sites = Told(tmp_path, text, rows={"a": 1, "b": 1, "c": 2}, **elastic(grace=5.0, deadline=1.0))
    of_another = r"membership.coordinator: a at [ab], c at c; give all sites the same"

    def train(site: str) -> None:
        with pytest.raises(DataError, match=of_another) if site == "c" else nullcontext():
            sites.setups[site].train(sites.training(site, role(lr=1e-2), STEPS))

    all_at_once("abc", train)
    assert not sites.setups["c"].output("m").exists()
    assert sites.setups["a"].weights("m") == sites.setups["b"].weights("m")


def test_checkpoints_of_another_log_than_the_followed_one_are_refused(
    tmp_path: Path, text: dict[str, str]
) -> None:
    """Also where all steps are trained, and only the model is to be written."""
    alone = Sites(tmp_path / "alone", text, **elastic(grace=0.3))
    for site in "ab":  # b comes when a has ended
        alone.setups[site].train(alone.training(site, role(lr=1e-2), 6))
    both = Sites(tmp_path / "both", text, **elastic(grace=60.0))
    both.train(role(lr=1e-2), steps=6)
    models = both.models()
    own = both.setups["a"].output("m").rename(tmp_path / "model") / FILE
    shutil.rmtree(both.setups["b"].output("m"))
    for setup in both.setups.values():
        both.link["rounds"] = str(alone.setups["a"].output("m") / FILE)
        with pytest.raises(DataError, match=r"round 1 is \w{12}, and in .*rounds.jsonl \w{12}") as refused:
            setup.train(both.training(setup.folder.name, role(lr=1e-2), 6))
        assert str(setup.folder / "trajectory" / "m" / "checkpoints") in str(refused.value)
        assert not setup.output("m").exists()
    both.link["rounds"] = str(own)
    both.train(role(lr=1e-2), steps=6)
    assert both.models() == models
