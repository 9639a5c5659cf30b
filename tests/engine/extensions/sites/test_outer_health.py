"""Bad steps at one of several sites: only that site skips them, and all sites still have equal bits."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from atelier.engine.config.base import parse
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.config.train import Health, Train
from atelier.engine.loop.role_state import RoleState
from tests.engine.extensions.sites.at_sites import all_at_once
from tests.engine.extensions.sites.test_outer import (
    Sites,
    check_kills,
    first_weights,
    replayed,
    text,
)
from tests.engine.loop.test_health import NAN, SPIKE, marked, plant
from tests.engine.trainings import role

__all__ = ["text"]
STEPS, EVERY = 12, 4
SKIPS = Health(spike="skip", spike_after=4, patience=STEPS)
TOUCHY = SKIPS.model_copy(update={"spike_norm": 1.0})  # a gradient above average is a spike


def site_of(member: RoleState) -> str:
    """The site at which a role of these tests is trained."""
    return Path(member.segment(member.step).url).parents[1].name


def skipped(sites: Sites) -> dict[str, list[int]]:
    return {site: marked(setup, "m", "skipped") for site, setup in sites.setups.items()}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, text: dict[str, str]) -> Sites:
    """Sites without a bad step, trained."""
    sites = Sites(tmp_path_factory.mktemp("good"), text, every=EVERY)
    sites.train(role(lr=1e-2), health=SKIPS)
    return sites


@pytest.mark.parametrize("step", [6, 2 * EVERY, 2 * EVERY + 1], ids=["within", "last", "first"])
def test_a_step_that_one_site_skips_is_in_none_of_its_messages(
    tmp_path: Path, text: dict[str, str], good: Sites, step: int
) -> None:
    """Within a round, as its last step and as its first one; whatever was wrong with it, and the weights are
    those that the messages say.
    """
    bad = [Sites(tmp_path / name, text, every=EVERY) for name in ("spike", "nan")]
    for sites, factor in zip(bad, (SPIKE, NAN), strict=True):
        with pytest.MonkeyPatch.context() as patch:
            plant(patch, {("b", step): factor}, of=site_of)
            sites.train(role(lr=1e-2), health=SKIPS)
        assert skipped(good) == {"a": [], "b": []} and skipped(sites) == {"a": [], "b": [step]}
        assert marked(sites.setups["b"], "m", "spike") == ([step] if factor == SPIKE else [])
        assert [setup.summary("m").get("skipped") for setup in sites.setups.values()] == [None, 1]
    assert len({*bad[0].models(), *bad[1].models()}) == 1 and {*bad[0].models()} != {*good.models()}
    found, expected = load(bad[0].models()[0]), replayed(bad[0], first_weights(), STEPS // EVERY)
    assert all(torch.equal(found[name], expected[name]) for name in found | expected)
    last = -(-step // EVERY)  # the round in which it was
    for number in range(1, last + 1):
        for site in good.setups:
            mine, theirs = bad[0].body(number, site), good.body(number, site)
            is_same = all(torch.equal(mine[name], theirs[name]) for name in mine)
            assert is_same == ((number, site) != (last, "b"))


def test_a_site_that_skips_all_steps_of_a_round_sends_that_nothing_has_moved(
    tmp_path: Path, text: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = Sites(tmp_path, text, every=EVERY)
    bad = range(EVERY + 1, 2 * EVERY + 1)
    plant(monkeypatch, {("b", step): NAN for step in bad}, of=site_of)
    sites.train(role(lr=1e-2), health=SKIPS)
    assert skipped(sites) == {"a": [], "b": [*bad]}
    assert not any(one.any() for one in sites.body(2, "b").values())
    assert all(one.any() for one in sites.body(3, "b").values())
    assert len(set(sites.models())) == 1


def test_a_site_that_skips_too_often_ends_and_goes_on_with_more_patience(
    tmp_path: Path, text: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patience is a setting of each site."""
    health = {site: SKIPS.model_copy(update={"patience": 2}) for site in "ab"}
    sites = Sites(tmp_path, text, every=EVERY)
    plant(monkeypatch, {("b", step): NAN for step in (2, 3)}, of=site_of)

    def train_at(site: str) -> None:
        sites.setups[site].train(sites.training(site, role(lr=1e-2), health=health[site]))

    with pytest.raises(AtelierError, match=r"in 2 steps in a row, up to step 3"):
        train_at("b")
    health["b"] = SKIPS
    all_at_once(sites.setups, train_at)
    assert len(set(sites.models())) == 1 and skipped(sites) == {"a": [], "b": [2, 3]}


@pytest.mark.parametrize(
    "link",
    [{}, {"delay": 2, "codec": {"kind": "int4", "block": 64}}],
    ids=["plain", "late"],
)
def test_stopped_again_and_again_around_skipped_steps_sites_end_with_the_same_bits(
    tmp_path: Path, text: dict[str, str], monkeypatch: pytest.MonkeyPatch, link: dict[str, Any]
) -> None:
    plant(monkeypatch, {("b", 7): SPIKE, ("b", 9): NAN, ("a", 10): SPIKE}, of=site_of)
    whole, pieces = (Sites(tmp_path / name, text, every=EVERY, **link) for name in ("whole", "pieces"))
    whole.train(role(lr=1e-2), health=SKIPS)
    stops = dict[str, int]()

    def train_at(site: str) -> None:
        training = pieces.training(site, role(lr=1e-2), health=SKIPS)
        stops[site] = pieces.setups[site].train_in_pieces(training, 7)

    all_at_once(pieces.setups, train_at)
    assert min(stops.values()) >= 1 and skipped(whole) == {"a": [10], "b": [7, 9]} == skipped(pieces)
    assert set(pieces.models()) == set(whole.models()) and len(set(whole.models())) == 1
    for site, setup in pieces.setups.items():
        assert setup.curve("m") == whole.setups[site].curve("m")


def test_killed_sites_skip_the_same_steps_again(tmp_path: Path, text: dict[str, str]) -> None:
    whole = check_kills(tmp_path, text, random.Random(1), health=TOUCHY)
    each = skipped(whole)
    assert any(each.values()) and len({tuple(steps) for steps in each.values()}) > 1, each


@pytest.mark.parametrize("health", [{"nan": "rollback"}, {"spike": "rollback"}])
def test_a_rollback_of_one_site_is_refused(health: dict[str, str]) -> None:
    link = {"rows": {"a": 2, "b": 2}, "site": "a", "mailbox": "/tmp/x"}
    document = {"steps": 8, "global_batch": 4, "sequence": 16, "link": link, "health": health}
    with pytest.raises(ConfigError, match="rollback is not built for several sites"):
        parse(Train, document, "train")
