"""Counts of ERNIE 3.0 Titan against those published, and what a spec refuses."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from atelier.engine.config.error import ConfigError
from atelier.engine.config.model.ernie import Ernie
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.registry import model_of

TITAN = Path(__file__).parents[4] / "conf/model/ernie_titan_260b.yaml"
PUBLISHED = 260.92e9
SMALL: dict[str, Any] = {"num_layers": 2, "hidden": 32, "num_heads": 4, "vocab": 64}
NARROW: dict[str, Any] = {"num_layers": 3, "hidden": 16, "num_heads": 2}


def titan() -> Ernie:
    return Ernie.model_validate(yaml.safe_load(TITAN.read_text())).resolved(40000)


def test_titan_has_the_published_number_of_parameters() -> None:
    spec = titan()
    matrices = 48 * (4 * 12288**2 + 2 * 12288 * 196608)
    assert matrices == pytest.approx(PUBLISHED, rel=1e-4)
    universal = {name: shape for name, shape in spec.shapes().items() if name.startswith("blocks.")}
    assert sum(shape[0] * shape[1] for shape in universal.values() if len(shape) == 2) == matrices
    assert spec.num_params() == pytest.approx(PUBLISHED, rel=5e-3)


def test_flops_are_those_of_the_universal_blocks_the_dearer_net_and_the_head() -> None:
    spec = Ernie(**SMALL, nlu=NARROW, nlg=NARROW | {"num_layers": 1})
    shared = {"vocab": 64, "mlp": "gelu"}
    *blocks, head = GPT.model_validate(SMALL | shared).block_flops(128)
    *net, _ = GPT.model_validate(NARROW | shared).block_flops(128)
    assert spec.block_flops(128) == [*blocks, sum(net) + 6 * 2 * 32 * 16 + head]
    assert spec.flops_per_token(128) == sum(spec.block_flops(128))


def test_the_nets_limit_the_tensor_axis_too() -> None:
    spec = Ernie(**SMALL, nlg={"num_layers": 1, "hidden": 24, "num_heads": 3, "ffn": 90})
    found = {(limit.axis, limit.field): limit.number for limit in spec.limits()}
    assert found["tensor", "nlg.num_heads"] == 3 and found["tensor", "nlg.ffn"] == 90
    assert found["stage", "num_layers"] == 2 and ("tensor", "nlu.ffn") not in found


def test_a_net_is_as_wide_as_the_universal_blocks_unless_told_otherwise() -> None:
    inner = Ernie(**SMALL, nlu={"num_layers": 1}).net("nlu")
    assert inner is not None and (inner.hidden, inner.num_heads, inner.inner) == (32, 4, 128)


def test_heads_that_do_not_divide_a_net_are_refused_with_its_name() -> None:
    with pytest.raises(ValidationError, match=r"nlu\.hidden 20 is not divisible by nlu\.num_heads 3"):
        Ernie(**SMALL, nlu={"num_layers": 1, "hidden": 20, "num_heads": 3})


@pytest.mark.parametrize("name", ["a.b", "Topic", ""])
def test_a_head_is_named_by_a_plain_word(name: str) -> None:
    with pytest.raises(ValidationError, match="pattern"):
        Ernie(**SMALL, classes={name: 2})


def test_a_task_net_that_adds_is_version_2_and_without_nets_nothing_changed() -> None:
    plain, nets = Ernie(**SMALL), Ernie(**SMALL, nlg=NARROW)
    assert "version" not in plain.as_identity() and nets.as_identity()["version"] == 2
    assert "version" not in plain.arguments() and nets.arguments()["version"] == 2
    assert model_of(nets.arguments(), "config.json") == nets
    with pytest.raises(
        ConfigError, match=r"config\.json: .*version 1 of kind ernie.*computes version 2.*commit"
    ):
        model_of(nets.model_dump(mode="json"), "config.json")
    with pytest.raises(ConfigError, match="version 3 of kind gpt"):
        model_of(GPT(**SMALL).arguments() | {"version": 3}, "config.json")
