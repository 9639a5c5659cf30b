"""Plans of models with an encoder, and their refusals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from atelier.engine.config.device import DEVICES
from atelier.engine.config.error import ConfigError
from atelier.engine.config.model.encdec import EncDec
from atelier.engine.config.objective.attention import Attention
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.objective.logits import Logits
from atelier.engine.config.objective.prefix import PrefixLM
from atelier.engine.config.objective.spans import Spans
from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.config.role import Role
from atelier.engine.plan.checks import check_layout, check_readers, check_teaching
from atelier.engine.plan.layout_checks import check_encoders
from atelier.engine.plan.model_shape import model_shape_of
from atelier.engine.plan.streamed import streamed_pass
from tests.engine.trainings import train
from tests.parity.cases import layout

CONF = Path(__file__).parents[3] / "conf/model"
SMALL: dict[str, Any] = {"num_layers": 2, "encoder_layers": 4, "hidden": 32, "num_heads": 4, "vocab": 64}


def role(*own: Any, **more: Any) -> Role:
    objective = {spec.kind: spec for spec in own or (Spans(encoder=24),)}
    return Role(model=EncDec(**SMALL), objective=objective, optim=AdamW(lr=1e-3), **more)


def test_cpm_2_is_planned_with_its_published_number_of_parameters() -> None:
    made = yaml.safe_load((CONF / "encdec_cpm2.yaml").read_text())
    experts = {"num_experts": 32, "experts_per_token": 1}
    experts["experts"] = made["experts"] | {"router": {"kind": "base"}}
    for vocab, more, billions in ((26240, {}, 11.09), (51967, {}, 11.30), (51967, experts, 198.54)):
        spec = EncDec.model_validate(made | more | {"vocab": vocab})
        shape = model_shape_of(spec, 512)
        assert shape.params / 1e9 == pytest.approx(billions, abs=0.005)
        outside = 2 * vocab * 4096 + 4096 + 2 * 32 * 64
        assert shape.block_params * 48 == pytest.approx(shape.params - outside, rel=1e-6)
        assert (shape.num_layers, shape.num_heads, len(shape.flops)) == (48, 64, 48)
    device = replace(DEVICES["a100-80g"], disk_gbps=12)
    passed = streamed_pass(spec, 20, 2, 512, device, is_cpu=False)
    assert passed is not None and passed.num_experts == 48 * 32
    assert round(passed.expert / 1e6) == 252 and passed.read_s == pytest.approx(32.2, abs=0.1)
    slow = streamed_pass(spec, 20, 2, 512, replace(device, host_gbps=6), is_cpu=False)
    assert slow is not None and slow.read_s == pytest.approx(2 * passed.read_s)
    assert streamed_pass(spec, 400, 2, 512, device, is_cpu=False) is None  # all of it fits


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        (
            {"context": 2},
            r"parallel\.context: 2, but roles\.m\.model of kind encdec does not support this split",
        ),
        (
            {"pipeline": 2, "schedule": "zb"},
            r"parallel\.schedule: zb, but roles\.m\.model of kind encdec.*schedule=interleaved or 1f1b",
        ),
        ({"pipeline": 8}, r"parallel\.pipeline: 8 stages are more than .*encoder_layers \+ num_layers 6"),
        ({"pipeline": 2, "stages": (1, 1)}, r"parallel\.stages: .*roles\.m\.model has 6 blocks for 2 stages"),
    ],
)
def test_layouts_that_it_does_not_have_are_refused(axes: dict[str, Any], words: str) -> None:
    how = train(4, global_batch=16, micro_batch=1, sequence=32)
    with pytest.raises(ConfigError, match=words):
        check_layout(layout(**axes), {"m": role()}, how)
    check_layout(layout(pipeline=2, schedule="interleaved", tensor=2), {"m": role()}, how)


def test_an_encoders_length_is_split_over_tensor_too() -> None:
    how = train(4, global_batch=16, micro_batch=1, sequence=32)
    with pytest.raises(ConfigError, match=r"spans: encoder length is 25.*=26 would fit"):
        check_layout(layout(tensor=2), {"m": role(Spans(encoder=25))}, how)


def test_rows_without_an_encoders_input_alone_are_refused_and_beside_others_read() -> None:
    with pytest.raises(
        ConfigError, match=r"roles\.m\.objective: its rows have no .*kind encdec; objective=spans"
    ):
        check_encoders({"m": role(LM())}, [LM()])
    rows = [LM(), PrefixLM(encoder=16)]
    check_encoders({"m": role(*rows)}, rows)
    check_readers({"m": role(*rows)}, rows, 32)


def test_attention_that_it_does_not_expose_is_not_compared() -> None:
    rows = Spans(encoder=24)
    roles = {"teacher": role(rows), "m": role(rows, Attention(), teacher="teacher")}
    with pytest.raises(ConfigError, match="a model of kind encdec exposes no attention; compare logits"):
        check_teaching(roles)
    check_teaching(roles | {"m": role(rows, Logits(), teacher="teacher")})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"buckets": 6}, "buckets 6 is not divisible by 4"),
        ({"max_distance": 16}, "max_distance 16 is not above half of buckets 32"),
        ({"num_kv_heads": 2}, "num_kv_heads is 2; for encdec it must equal num_heads"),
        ({"rope_theta": 5.0}, "rope_theta does nothing"),
    ],
)
def test_fields_that_do_not_fit_it_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EncDec(**(SMALL | fields))
