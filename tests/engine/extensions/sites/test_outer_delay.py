"""Outer steps that overlap with training: contributions in flight, fragments of the weights, kills between
sending and taking.
"""

import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch import Tensor

from atelier.engine.config.base import parse
from atelier.engine.config.error import ConfigError, DataError, StoppedError
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.train import Train
from atelier.engine.config.trajectory import Feed, segments_of
from atelier.engine.extensions.sites.config.train.link import Link
from atelier.engine.extensions.sites.rounds import Rounds
from atelier.engine.io.storage import names
from tests.engine.extensions.sites.at_sites import all_at_once, beside_a_gang
from tests.engine.extensions.sites.test_outer import (
    ONE_BLOCK,
    TWO,
    Sites,
    check_kills,
    decoded,
    first_weights,
    text,
)
from tests.engine.trainings import AfterSteps, TrainingSetup, role, train
from tests.marks import quick
from tests.parity.cases import layout as layout_of

__all__ = ["text"]
EVERY, STEPS = 4, 12
NESTEROV = {"kind": "nesterov", "lr": 0.7, "momentum": 0.9}
LATE: list[dict[str, Any]] = [
    {"delay": 2, "every": EVERY},
    {"delay": 3, "every": EVERY, "fragments": 2, "codec": {"kind": "int4"}},
    {"fragments": 3, "every": 3},
]


def name_of(link: dict[str, Any]) -> str:
    return "-".join(str(part) for part in link if part not in ("codec", "every"))


def replayed(sites: Sites, spec: ModelSpec) -> dict[str, Tensor]:
    """The outer weights at the end, from the messages alone: each holds the weights that it has moved."""
    link, weights = Link(**sites.link, site="a"), first_weights(spec)
    speed = {name: torch.zeros_like(one) for name, one in weights.items()}
    for number in range(1, Rounds(link, 3 * link.every).last + 1):
        bodies = {site: sites.body(number, site) for site in link.sites}
        crossed = {name: weights[name] for name in {part.partition(":")[0] for part in bodies["a"]}}
        sent = {site: decoded(link, body, crossed) for site, body in bodies.items()}
        for name, weight in crossed.items():
            total = torch.zeros_like(weight)
            for site in link.sites:
                total = total + sent[site][name] * link.share(site)
            speed[name] = speed[name] * link.outer.momentum + total
            weights[name] = weight - (total + speed[name] * link.outer.momentum) * link.outer.lr
    return weights


def check_replay(sites: Sites, spec: ModelSpec = ONE_BLOCK) -> None:
    assert len(set(sites.models())) == 1
    found, expected = load(sites.models()[0]), replayed(sites, spec)
    assert all(torch.equal(found[name], expected[name]) for name in found | expected)


@pytest.mark.parametrize("link", LATE, ids=name_of)
def test_all_sites_end_with_the_bits_that_their_messages_say(
    tmp_path: Path, text: dict[str, str], link: dict[str, Any]
) -> None:
    sites = Sites(tmp_path, text, rows={"a": 1, "b": 2}, outer=NESTEROV, **link)
    sites.train(role(lr=1e-2))
    check_replay(sites)
    losses = [line["values"]["loss"] for line in sites.setups["a"].curve("m")]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "link", LATE[:1] + LATE[2:] + [{"delay": 3, "fragments": 2, "every": EVERY}], ids=name_of
)
def test_a_site_alone_trains_as_without_a_link_however_late_its_outer_steps_are(
    tmp_path: Path, text: dict[str, str], link: dict[str, Any]
) -> None:
    """What it learns while a contribution is on its way stays."""
    sites = Sites(tmp_path, text, rows={"a": 4}, **link)
    sites.train(role(lr=1e-2), precision="fp64")
    plain = TrainingSetup(tmp_path / "plain", text)
    plain.train(
        plain.training({"m": role(lr=1e-2)}, train(3 * link["every"], micro_batch=1, precision="fp64"))
    )
    mine, theirs = load(sites.models()[0]), load(plain.weights("m"))
    assert max((mine[name] - theirs[name]).abs().max() for name in mine) < 1e-12


@pytest.mark.parametrize(
    "parallel",
    [
        pytest.param({"shard": 2}, marks=pytest.mark.slow),
        pytest.param({"tensor": 2}, marks=pytest.mark.slow),
        {"pipeline": 2},
    ],
    ids=str,
)
def test_sites_of_other_layouts_cut_and_read_the_same(
    tmp_path: Path, text: dict[str, str], parallel: dict[str, int]
) -> None:
    sites = Sites(tmp_path, text, outer=NESTEROV, **LATE[1])
    path = sites.write("b", TWO, layout_of(**parallel))
    here = sites.training("a", TWO)
    beside_a_gang(tmp_path, path, lambda: sites.setups["a"].train(here))
    check_replay(sites, TWO.model)


@pytest.mark.parametrize("seed", quick(range(3)))
def test_killed_sites_go_on_to_the_same_bits_with_messages_on_their_way(
    tmp_path: Path, text: dict[str, str], seed: int
) -> None:
    check_kills(tmp_path, text, random.Random(seed), **LATE[seed % 2])


@pytest.mark.parametrize("link", LATE[:2], ids=name_of)
def test_what_is_on_its_way_is_in_the_checkpoint(
    tmp_path: Path, text: dict[str, str], link: dict[str, Any]
) -> None:
    """A training that is stopped between sending and taking ends with the bits of one that is not."""
    whole, pieces = (Sites(tmp_path / name, text, rows={"a": 2}, outer=NESTEROV, **link) for name in "wp")
    whole.train(role(lr=1e-2))
    setup = pieces.setups["a"]
    assert setup.train_in_pieces(pieces.training("a", role(lr=1e-2)), EVERY + 1) >= 2
    assert pieces.models() == whole.models()


def test_a_site_trains_on_while_a_contribution_is_on_its_way(tmp_path: Path, text: dict[str, str]) -> None:
    """Site a waits for b's first contribution after step 4 + 3, not after step 4."""
    sites = Sites(tmp_path, text, delay=3, every=EVERY)
    setup = sites.setups["a"]
    with pytest.raises(StoppedError, match=r"waited for b in round 1, after step 7"):
        setup.train(sites.training("a", role(lr=1e-2)), stop=AfterSteps(setup.folder, EVERY + 4))
    sites.train(role(lr=1e-2))
    assert len(set(sites.models())) == 1


def segments(steps: int, **link: Any) -> list[Any]:
    where: Mapping[str, Any] = {"rows": {"a": 4}, "site": "a", "mailbox": "/tmp/x", "every": 4}
    sizes = train(steps, link=Link(**where, **link))
    return segments_of({"m": role()}, sizes, Feed({}, {}), {})["m"]


def test_where_the_end_changes_the_last_round_a_longer_training_branches_off_before_it() -> None:
    """The last round has all weights at once: it is no step of a longer training."""
    assert len(segments(12)) == 1 and segments(12)[0].fingerprint == segments(24)[0].fingerprint
    for link in ({"delay": 1}, {"fragments": 2}):
        short, long = segments(12, **link), segments(24, **link)
        assert [part.end for part in short] == [8, 12] and [part.end for part in long] == [20, 24]
        assert short[0].fingerprint == long[0].fingerprint != segments(12)[0].fingerprint
        assert short[1].fingerprint != long[1].fingerprint


def test_a_longer_training_goes_on_from_the_trunk_with_what_was_on_its_way_there(
    tmp_path: Path, text: dict[str, str]
) -> None:
    """It has the bits of one that was long from the first, though the short one is finished."""
    how: dict[str, Any] = {"delay": 1, "outer": NESTEROV, "rows": {"a": 1, "b": 1}}

    def run(sites: Sites, steps: int, first: int) -> None:
        def at(site: str) -> None:
            setup = sites.setups[site]
            ends = (setup.segment("trunk", 0, first), setup.segment(f"end-{steps}", first, steps))
            sizes = {"global_batch": 2, "micro_batch": 1, "checkpoint_every": 1, "keep": 1}
            each = train(steps, link=sites.link_of(site), eval_every=12, **sizes)
            member = setup.member("m", role(lr=1e-2), steps, segments=ends)
            setup.train(setup.training({"m": member}, each))

        all_at_once(sites.setups, at)

    at_once, later = Sites(tmp_path / "once", text, **how), Sites(tmp_path / "later", text, **how)
    run(at_once, 12, 10)
    run(later, 6, 4)
    trunk = later.setups["a"].segment("trunk", 0, 4).fingerprint[:16]
    assert names(f"{later.link['mailbox']}/{trunk}/round-000002") == ["a", "b"]  # sent at step 4
    run(later, 12, 10)
    assert set(at_once.models()) == set(later.models()) and len(set(later.models())) == 1


def test_a_site_that_lost_its_checkpoints_is_told_so_when_the_others_are_past_a_branch(
    tmp_path: Path, text: dict[str, str]
) -> None:
    """Their messages lie apart from those that it lacks, of which none is left."""
    sites = Sites(tmp_path, text, rows={"a": 1, "b": 1})

    def run(site: str) -> None:
        setup = sites.setups[site]
        ends = (setup.segment("trunk", 0, 8), setup.segment("end", 8, 12))
        sizes = {"global_batch": 2, "micro_batch": 1, "checkpoint_every": 2, "keep": 1}
        each = train(12, link=sites.link_of(site), **sizes)
        setup.train(setup.training({"m": setup.member("m", role(lr=1e-2), 12, segments=ends)}, each))

    all_at_once(sites.setups, run)
    trunk = Path(sites.link["mailbox"]) / sites.setups["a"].segment("trunk", 0, 8).fingerprint[:16]
    for left in trunk.glob("round-*"):  # those that checkpoints of the branch's beginning were not yet past
        shutil.rmtree(left)
    for folder in ("trajectory", "outputs"):
        shutil.rmtree(sites.setups["a"].folder / folder)
    with pytest.raises(DataError, match=r"round-000001/b: is gone, b is in round 6.*earlier run") as told:
        run("a")
    branch = sites.setups["a"].segment("end", 8, 12).fingerprint[:16]
    assert trunk.name in str(told.value) and branch in str(told.value)  # both have to go


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ({"delay": 50}, r"link.delay=50 is not below link.every=50.*link.delay=49 is the most"),
        ({"every": 10, "fragments": 4}, r"link.every=10 is not divisible by link.fragments=4; link.every=12"),
        ({"delay": -1}, r"train.link.delay"),
    ],
)
def test_a_delay_or_fragments_that_do_not_fit_are_refused(link: dict[str, Any], problem: str) -> None:
    given = {"rows": {"a": 2, "b": 2}, "site": "a", "mailbox": "/tmp/x", **link}
    document = {"steps": 100, "global_batch": 4, "sequence": 16, "link": given}
    with pytest.raises(ConfigError, match=problem):
        parse(Train, document, "train")


def test_more_fragments_than_blocks_are_refused_before_the_first_step(
    tmp_path: Path, text: dict[str, str]
) -> None:
    sites = Sites(tmp_path, text, rows={"a": 4}, every=12, fragments=12)
    with pytest.raises(ConfigError, match=r"train.link.fragments: 12, and there are 3 blocks"):
        sites.train(role())
