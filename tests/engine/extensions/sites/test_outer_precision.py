"""Sites that compute in precisions of their own, as GPUs and NPUs do, and have equal outer weights."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from atelier.engine.config.base import parse
from atelier.engine.config.error import ConfigError
from atelier.engine.config.train import Train
from atelier.engine.parallel.compute import computed_in
from tests.engine.extensions.sites.test_outer import EVERY, STEPS, Sites, check_kills, first_weights, replayed
from tests.engine.trainings import role, tokens

MIXED: dict[str, Any] = {"precision": {"b": "fp32"}}
HAS_HALF = computed_in("bf16", torch.device("cpu")) == "bf16"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"tokens": tokens(tmp_path_factory.mktemp("text"))}


def test_each_site_sends_what_its_own_precision_computes_and_all_have_equal_bits(
    tmp_path: Path, text: dict[str, str]
) -> None:
    mixed, half, whole = (
        Sites(tmp_path / name, text, **link) for name, link in (("m", MIXED), ("h", {}), ("w", {}))
    )
    for sites, precision in ((mixed, "bf16"), (half, "bf16"), (whole, "fp32")):
        sites.train(role(lr=1e-2), precision=precision)
    assert len(set(mixed.models())) == 1
    found, expected = load(mixed.models()[0]), replayed(mixed, first_weights(), STEPS // EVERY)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    for site, alike in (("a", half), ("b", whole)):
        sent, same = mixed.body(1, site), alike.body(1, site)
        assert all(torch.equal(sent[name], same[name]) for name in same), site
    computed = [mixed.setups[site].summary("m")["computed"] for site in "ab"]
    assert computed == (["bf16", "fp32"] if HAS_HALF else ["fp32", "fp32"])
    assert (mixed.models() != half.models()) == HAS_HALF


@pytest.mark.slow
def test_killed_anywhere_they_end_with_the_bits_of_sites_that_were_not(
    tmp_path: Path, text: dict[str, str]
) -> None:
    check_kills(tmp_path, text, random.Random(7), precision={"b": "bf16"})


@pytest.mark.parametrize(
    ("train", "precision", "why"),
    [
        ("bf16", {"c": "fp32"}, "link.precision.c=fp32, and train.precision=bf16: give one of a, b"),
        ("bf16", {"a": "bf16"}, "link.precision.a=bf16, and train.precision=bf16"),
        ("fp64", {"a": "fp32"}, "link.precision.a=fp32, and train.precision=fp64"),
        ("bf16", {"a": "fp64"}, "link.precision.a"),
    ],
)
def test_a_precision_that_changes_nothing_or_has_other_weights_is_refused(
    train: str, precision: dict[str, str], why: str
) -> None:
    link = {"rows": {"a": 2, "b": 2}, "site": "a", "mailbox": "/mail", "precision": precision}
    sizes = {"steps": 100, "global_batch": 4, "sequence": 16, "precision": train, "link": link}
    with pytest.raises(ConfigError, match=why):
        parse(Train, sizes, "train")
    with pytest.raises(ConfigError, match=r"precision does nothing without link\.rows"):
        roles = {"roles": {"a": ["teacher"], "b": ["student"]}, "site": "a", "mailbox": "/mail"}
        parse(Train, sizes | {"precision": "bf16", "link": roles | {"precision": {"a": "fp32"}}}, "train")
