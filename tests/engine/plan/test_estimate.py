"""Parts of the arithmetic of plans, against the formulas of its sources."""

from dataclasses import replace
from typing import Any

import pytest

from atelier.engine.config.base import parse
from atelier.engine.config.device import DEVICES
from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.engine.plan.estimate import Estimate, estimate
from atelier.engine.plan.interconnect import Interconnect

MEGATRON = {"kind": "gpt", "mlp": "gelu", "norm": "layer", "positions": "learned", "vocab": 51200}
SMALL = MEGATRON | {"num_layers": 48, "hidden": 6144, "num_heads": 64}  # 22 B
LARGE = MEGATRON | {"num_layers": 105, "hidden": 20480, "num_heads": 128}  # 530 B


def planned(
    model: dict[str, Any], parallel: dict[str, Any], *, batch: int, micro: int = 1, gpu: str = "a100-80g"
) -> Estimate:
    optim, objective = {"kind": "adamw", "lr": 1e-4}, {"lm": {"kind": "lm"}}
    role = parse(Role, {"model": model, "objective": objective, "optim": optim}, "role")
    train = Train(steps=1, global_batch=batch, sequence=2048, micro_batch=micro)
    layout = Parallel(**{"shard": 1, "threads": 1, "sequence_parallel": False} | parallel)
    return estimate(role, train, layout, Pool(gpu=gpu), vocab=51200)


@pytest.mark.parametrize(
    ("model", "batch", "micro", "pipeline", "plain_gb", "saved_gb"),
    [(SMALL, 4, 4, 1, 63.6, 10.3), (LARGE, 35, 1, 35, 92.5, 18.7)],
)
def test_activations_are_those_of_2205_05198(model, batch, micro, pipeline, plain_gb, saved_gb) -> None:
    axes = {"tensor": 8, "pipeline": pipeline}
    plain = planned(model, axes, batch=batch, micro=micro)
    both = axes | {"sequence_parallel": True, "recompute": "selective"}
    saved = planned(model, both, batch=batch, micro=micro)
    assert plain.memory.activations / 1e9 == pytest.approx(plain_gb, abs=0.1)
    assert saved.memory.activations / 1e9 == pytest.approx(saved_gb, abs=0.1)


def test_the_bubble_is_p_minus_1_over_m_and_interleaving_divides_it() -> None:
    even = {"tensor": 8, "pipeline": 4, "stages": (12, 12, 12, 12)}
    few, many = (planned(SMALL, even, batch=batch).seconds for batch in (8, 32))
    stage = few.compute + few.tensor + few.pipeline
    assert few.bubble / stage == pytest.approx(3 / 8, rel=0.05)  # the last stage has the head
    assert many.bubble == pytest.approx(few.bubble)
    parts = even | {"schedule": "interleaved", "interleave": 4, "stages": (3,) * 16}
    assert planned(SMALL, parts, batch=8).seconds.bubble < few.bubble / 3.5


def test_sharding_divides_states_and_its_wires_hide_behind_computation() -> None:
    alone, shared = (planned(SMALL, {"shard": size}, batch=64 * size) for size in (1, 64))
    assert shared.memory.states == pytest.approx(alone.memory.states / 64)
    assert shared.step_s < 1.1 * alone.step_s


def test_columns_of_an_embedding_save_what_gathering_it_takes() -> None:
    apart = SMALL | {"num_layers": 2, "tied": False}
    for zero in (1, 3):
        axes = {"shard": 8, "zero": zero}
        whole = planned(apart, axes, batch=8)
        split = planned(apart, axes | {"embedding": "columns"}, batch=8)
        saved = whole.memory.total - split.memory.total
        assert 0.9 * 51200 * 6144 * 2 < saved < 51200 * 6144 * 8
        assert split.seconds.data < whole.seconds.data
    for model, axes in ((apart, {"replicate": 4}), (SMALL | {"num_layers": 2}, {"shard": 4})):
        same = planned(model, axes | {"embedding": "columns"}, batch=8)
        assert same == planned(model, axes, batch=8)  # nothing is split


def test_an_expert_computes_the_tokens_it_meets() -> None:
    dense = {"kind": "gpt", "num_layers": 8, "hidden": 2048, "num_heads": 16, "ffn": 8192, "vocab": 51200}
    mixed = dense | {"num_experts": 8, "experts_per_token": 2, "ffn": 4096}
    assert planned(mixed, {}, batch=4).params > 2.5 * planned(dense, {}, batch=4).params
    slower = planned(mixed, {}, batch=4).step_s / planned(dense, {}, batch=4).step_s
    assert slower < 1.35  # the optimiser has more weights to read


def test_a_ring_across_nodes_shares_their_network_with_the_rings_beside_it() -> None:
    interconnect = Interconnect(node=300e9, network=200e9, per_node=8)
    inside, all_of_them, one_each = (
        interconnect.bandwidth(8, 1),
        interconnect.bandwidth(16, 1),
        interconnect.bandwidth(2, 8),
    )
    assert inside > all_of_them > one_each and all_of_them == pytest.approx(8 * one_each)
    assert interconnect.reduce_s(1e9, 1, 1) == 0


def test_a_device_nobody_knows_is_refused_with_what_to_give() -> None:
    with pytest.raises(ConfigError, match=r"unknown device type 'a101'.*did you mean a100"):
        planned(SMALL, {}, batch=8, gpu="a101")
    facts = {"peak_tflops": 100, "memory_gb": 48, "memory_gbps": 900, "node_gbps": 30, "network_gbps": 12}
    assert Pool(gpu="a101", gpus_per_node=4, **facts).device.per_node == 4


def test_a_teacher_that_does_not_train_costs_its_forward_passes_and_no_optimiser() -> None:
    teacher, student = planned(SMALL, {"tensor": 8}, batch=4), planned(SMALL, {"tensor": 4}, batch=4)
    both = student.with_teacher(teacher)
    more = both.step_s - student.step_s
    assert both.seconds.compute == pytest.approx(student.seconds.compute + teacher.seconds.compute / 3)
    assert both.seconds.optimiser == student.seconds.optimiser
    assert teacher.seconds.compute / 3 <= more < teacher.step_s / 2
    assert both.device_hours == pytest.approx(
        student.device_hours + teacher.device_hours * more / teacher.step_s
    )
    assert both.tokens_per_s * both.step_s == pytest.approx(student.tokens_per_s * student.step_s)


def test_a_memory_costs_the_products_and_rows_of_its_block_in_time_and_flops() -> None:
    sizes = {"keys": 64, "heads": 8, "per_token": 4, "width": 1024}
    keyed = SMALL | {"memory": {"blocks": [3, 7], **sizes}}
    plain, more = (planned(model, {"tensor": 8}, batch=4) for model in (SMALL, keyed))
    products = 8 * (1024 * 6144 + 64 * 1024 + 4 * 6144)
    assert more.flops - plain.flops == pytest.approx(6 * 2 * products * 4 * 2048, rel=1e-6)
    assert more.params - plain.params == 2 * (8 * 1024 * 6144 + 1024 + 2 * 8 * 64 * 512 + 64**2 * 6144)
    slower = more.seconds.compute - plain.seconds.compute
    least = 6 * 2 * products * 4 * 2048 / 312e12
    assert least < slower < 3 * least


def test_a_device_without_attention_by_ends_of_documents_pays_for_masks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cost = planned(SMALL, {"tensor": 8}, batch=8, gpu="mi250x")
    monkeypatch.setitem(DEVICES, "mi250x", replace(DEVICES["mi250x"], reads_ends=True))
    without = planned(SMALL, {"tensor": 8}, batch=8, gpu="mi250x")
    assert cost.memory.buffers - without.memory.buffers == 2 * 2048 * 2048  # of one row
    assert cost.seconds.compute > 1.01 * without.seconds.compute
