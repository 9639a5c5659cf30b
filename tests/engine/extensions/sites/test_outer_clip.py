"""Contributions that are clipped to a norm, and refused above it."""

import hashlib
import json
import math
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from atelier.engine.config.base import parse
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.extensions.sites.clip import norm, square_sums
from atelier.engine.extensions.sites.config.train.link import Link
from tests.engine.extensions.sites.at_sites import beside_a_gang
from tests.engine.extensions.sites.test_outer import EVERY, TWO, Sites, check_kills, text
from tests.engine.extensions.sites.test_outer_codecs import FEW, LOSSY, kind_of
from tests.engine.trainings import role
from tests.parity.cases import layout as layout_of

__all__ = ["text"]
CLIP = 0.05


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, text: dict[str, str]) -> Sites:
    """Without a clip, trained."""
    sites = Sites(tmp_path_factory.mktemp("whole"), text)
    sites.train(role(lr=1e-2))
    return sites


def told(sites: Sites, site: str) -> list[tuple[float, float]]:
    """The norm of each of a site's contributions before it was clipped, and the share that was sent."""
    values = [line["values"] for line in sites.setups[site].curve("m")]
    return [(each["link/norm"], each["link/kept"]) for each in values if "link/norm" in each]


def sent_norm(sites: Sites, number: int, site: str) -> float:
    return math.sqrt(sum(float(one.double().square().sum()) for one in sites.body(number, site).values()))


def test_what_crosses_has_at_most_the_norm_and_the_curve_says_what_was_cut(
    tmp_path: Path, text: dict[str, str], whole: Sites
) -> None:
    sites = Sites(tmp_path, text, clip=CLIP)
    sites.train(role(lr=1e-2))
    assert len(set(sites.models())) == 1 and sites.models() != whole.models()
    for site in "ab":
        assert len(told(sites, site)) == 3 and not told(whole, site)
        for number, (before, kept) in enumerate(told(sites, site), 1):
            assert before > CLIP and kept == CLIP / before
            assert sent_norm(sites, number, site) == pytest.approx(CLIP, rel=1e-5)
        # the first round's steps are those of the training without a clip
        assert told(sites, site)[0][0] == pytest.approx(sent_norm(whole, 1, site), rel=1e-6)


def test_a_clip_above_all_norms_changes_no_bit(tmp_path: Path, text: dict[str, str], whole: Sites) -> None:
    sites = Sites(tmp_path, text, clip=1e6)
    sites.train(role(lr=1e-2))
    assert sites.models() == whole.models()
    assert [kept for _, kept in told(sites, "a")] == [1.0] * 3


@pytest.mark.parametrize(
    "layout",
    [pytest.param(layout_of(shard=2), marks=pytest.mark.slow), layout_of(pipeline=2)],
    ids=["shard", "pipeline"],
)
def test_the_norm_is_of_all_weights_in_every_layout(
    tmp_path: Path, text: dict[str, str], layout: Any
) -> None:
    alike, other = (Sites(tmp_path / name, text, clip=CLIP) for name in ("one", "two"))
    alike.train(TWO, precision="fp64", micro_batch=1)
    path = other.write("b", TWO, layout, precision="fp64")
    here = other.training("a", TWO, precision="fp64")
    beside_a_gang(tmp_path, path, lambda: other.setups["a"].train(here))
    assert len(set(other.models())) == 1
    for mine, theirs in zip(told(alike, "b"), told(other, "b"), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-10)


def test_the_norm_has_the_same_bits_with_any_number_of_threads() -> None:
    whole, before = (
        torch.randn(1500, 1001, generator=torch.Generator().manual_seed(3)),
        torch.get_num_threads(),
    )
    found = set()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.add(norm(square_sums(whole)))
    torch.set_num_threads(before)
    [value] = found
    assert value == pytest.approx(float(whole.double().norm()), rel=1e-12)


@pytest.mark.parametrize("codec", LOSSY, ids=kind_of)
def test_what_codecs_round_is_not_refused(
    tmp_path: Path, text: dict[str, str], codec: dict[str, Any]
) -> None:
    sites = Sites(tmp_path, text, rows=FEW, clip=CLIP, codec=codec)
    sites.train(role(lr=1e-2))
    assert len(set(sites.models())) == 1


@pytest.mark.parametrize("codec", [{}, LOSSY[2]], ids=["none", "int4"])
def test_a_huge_norm_is_refused_and_nothing_is_learned_from_it(
    tmp_path: Path, text: dict[str, str], codec: dict[str, Any]
) -> None:
    whole, sites = (
        Sites(tmp_path / name, text, rows=FEW, clip=CLIP, codec=codec) for name in ("whole", "bad")
    )
    whole.train(role(lr=1e-2), steps=EVERY)
    good, place = whole.message(1, "b"), Path(sites.link["mailbox"])
    place = place / good.relative_to(whole.link["mailbox"])
    shutil.copytree(good, place)
    head, body = place / "message.json", place / "tensors.safetensors"
    tensors = {
        name: one * 100 if one.dtype.is_floating_point else one
        for name, one in load(body.read_bytes()).items()
    }
    raw, about = save(tensors, metadata={"format": "pt"}), json.loads(head.read_bytes())
    about["body"] |= {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    body.write_bytes(raw)
    head.write_text(json.dumps(about))
    most = f"{2 * CLIP if codec else CLIP * 1.001:.4g}"
    with pytest.raises(
        DataError, match=rf"{re.escape(str(place))}.*has the norm .*at most {most} is accepted"
    ):
        sites.setups["a"].train(sites.training("a", role(lr=1e-2), EVERY))
    assert not sites.setups["a"].output("m").exists()
    shutil.rmtree(place)
    shutil.copytree(good, place)
    sites.setups["a"].train(sites.training("a", role(lr=1e-2), EVERY))
    assert sites.setups["a"].weights("m") == whole.models()[0]


def test_killed_sites_go_on_to_the_same_bits_with_a_clip(tmp_path: Path, text: dict[str, str]) -> None:
    check_kills(tmp_path, text, random.Random(9), clip=CLIP, codec=LOSSY[2])


def test_a_clip_is_identity_and_does_nothing_without_rows() -> None:
    where: dict[str, Any] = {"rows": {"a": 1, "b": 1}, "site": "a", "mailbox": "/m"}
    assert Link(**where, clip=1.0).as_identity() == Link(**where).as_identity() | {"clip": 1.0}
    with pytest.raises(ConfigError, match=r"link.clip does nothing without link.rows"):
        parse(Link, {"clip": 1.0}, "train.link")
