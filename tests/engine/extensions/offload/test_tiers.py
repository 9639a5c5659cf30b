"""The cost of experts on disk as planned, and the paper's inequalities with its own numbers."""

from dataclasses import replace

import pytest

from atelier.engine.config.device import Device
from atelier.engine.config.experts import Experts
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.sections import frozen_limit, value_of
from atelier.engine.config.train import Train
from atelier.engine.extensions.offload.config.parallel.tiers import Tiers
from atelier.engine.extensions.offload.cost import capacity, capacity_of, off_device, rooms_for
from atelier.engine.extensions.offload.weights import _policy

SPEC = GPT(num_layers=4, hidden=64, num_heads=2, vocab=64, num_experts=8, experts=Experts(ffn=32))
TRAIN = Train(steps=1, global_batch=8, sequence=64, micro_batch=4)
PARAMS = 3 * 64 * 32
SLOTS = 4 * 8


def disk(gbps: float) -> Device:
    return replace(Pool().device, disk_gbps=gbps)


def layout(host_gb: float, **axes: int) -> Parallel:
    return Parallel(shard=1, tiers=Tiers(experts="disk", host_gb=host_gb), **axes)


def test_what_is_in_memory_is_not_moved() -> None:
    whole = off_device(SPEC, TRAIN, layout(0.0), disk(1.0))
    assert whole is not None
    assert whole.disk == whole.host == whole.held == SLOTS * 16 * PARAMS and whole.by_disk.seconds == 0
    assert off_device(SPEC, TRAIN, Parallel(shard=1), disk(1.0)) is None


def test_memory_goes_to_weights_first_and_none_is_wasted() -> None:
    for units in range(4, 4 * SLOTS + 1):
        rooms = rooms_for(units, SLOTS)
        assert rooms is not None and units - 3 <= rooms.units <= units
        assert min(rooms) >= 1 and max(rooms) <= SLOTS
        assert rooms.weights == SLOTS or rooms.gradients <= 3
        assert rooms.gradients == SLOTS or rooms.moments <= 3
    assert rooms_for(4 * SLOTS, SLOTS) == (SLOTS, SLOTS, SLOTS) and rooms_for(3, SLOTS) is None


def test_a_step_moves_what_has_no_buffer_once_a_pass() -> None:
    half = off_device(SPEC, TRAIN, layout(SLOTS / 2 * 16 * PARAMS / 1e9), disk(2.0))
    assert half is not None and half.host == half.disk / 2
    weights, gradients, moments = (SLOTS - size for size in (SLOTS, SLOTS - 6, 3))
    # two micro-batches: weights there and back, gradients added to, then read for the step
    read = 4 * weights + 2 * gradients + 2 * moments
    assert half.read == pytest.approx(read * PARAMS * 4, rel=1e-6)
    assert half.written == pytest.approx((weights + 2 * gradients + 2 * moments) * PARAMS * 4, rel=1e-6)
    assert half.by_disk.seconds == (half.read + half.written) / 2e9 and not half.by_link.seconds
    assert half.exposed(0.0) == pytest.approx(half.by_disk.seconds) and half.exposed(1e9) == 0
    # the optimiser's step has a sixth of the computing to hide behind: the forward pass of one of two
    first_s = half.by_disk.first_s
    assert first_s == (2 * weights + gradients + 4 * moments) * PARAMS * 4 / 2e9
    assert half.exposed(5.9 * first_s) > 0 and half.exposed(6.1 * first_s) == 0


@pytest.mark.parametrize("axes", [{"expert": 2}, {"pipeline": 2}, {"tensor": 2}])
def test_ranks_share_the_disk_s_work(axes: dict[str, int]) -> None:
    one, each = (off_device(SPEC, TRAIN, layout(0.0, **more), disk(1.0)) for more in ({}, axes))
    assert one is not None and each is not None and each.disk == one.disk / 2


def test_few_tokens_meet_few_experts() -> None:
    spec = SPEC.model_copy(update={"num_experts": 128, "experts_per_token": 1})
    few, many = (
        off_device(spec, TRAIN.model_copy(update={"sequence": s, "micro_batch": 1}), layout(1e-4), disk(1.0))
        for s in (8, 4096)
    )
    assert few is not None and many is not None and few.read < 0.1 * many.read


@pytest.mark.parametrize(
    ("experts", "billions"), [(8, 13.9), (16, 26.8), (32, 52.6), (64, 104.1), (128, 207.2)]
)
def test_the_paper_s_models_have_its_numbers_of_parameters(experts: int, billions: float) -> None:
    spec = paper(experts)
    assert spec.num_params() / 1e9 == pytest.approx(billions, abs=0.06)


def paper(experts: int) -> GPT:
    """2205.10034, table 1: 12 layers, hidden 4096, 64 heads, vocabulary 50304, an expert's MLP 4 times as
    wide.
    """
    return GPT(
        num_layers=12, hidden=4096, num_heads=64, vocab=50304, ffn=16384, mlp="gelu", num_experts=experts,
        experts_per_token=1,
    )  # fmt: skip


def test_the_paper_s_inequalities_say_which_models_fit_its_machines() -> None:
    gb = 1e9
    for experts, gpus in ((8, 8), (128, 128)):
        spec = paper(experts)
        sparse = 12 * experts * 2 * 4096 * 16384
        need = capacity(spec.num_params() - sparse, sparse, mixtures=12, active=1 / experts)
        assert need == capacity_of(spec, spec.num_params(), active=1 / experts)
        assert need.fits(gpus, 80 * gb, 1000 * gb, 2000 * gb)
        assert need.device < 0.05 * gpus * 80 * gb  # room for activations is what limits it
    everything = capacity(1e9, 2e11, mixtures=12, active=1.0)
    assert not everything.fits(8, 80 * gb, 100 * gb, 2000 * gb)  # 3.2 TB on hosts


def test_what_an_older_record_says_of_a_default_is_the_default() -> None:
    said = {"experts": "device", "host_gb": 0.0, "frozen_gb": 0.0, "policy": "lru"}
    assert Parallel.model_validate({"tiers": said}) == Parallel()
    assert "tiers" not in Parallel().model_dump(mode="json")
    asked = {"experts": "disk", "host_gb": 0.02, "frozen_gb": 0.0, "policy": "lru"}
    layout = Parallel.model_validate({"tiers": asked})
    assert layout.model_dump(mode="json")["tiers"].items() >= asked.items()
    assert Parallel.model_validate_json(layout.model_dump_json()) == layout
    assert frozen_limit(layout) is None and value_of(layout, "tiers.experts") == "disk"
    streamed = Parallel.model_validate({"tiers": {"frozen_gb": 2}})
    assert frozen_limit(streamed) == ("parallel.tiers.frozen_gb", 2.0)


def test_a_gpu_copies_every_gradient_and_moment_and_the_weights_for_which_it_has_no_buffer() -> None:
    gpu = replace(Pool(gpu="h100").device, host_gbps=10.0)
    each = 4 * PARAMS  # two micro-batches; all in host memory; by default three buffers of each kind
    found = off_device(SPEC, TRAIN, layout(0.0), gpu, is_cpu=False)
    assert found is not None and found.is_on_gpu and found.by_disk.seconds == 0
    assert found.held == (3 + 3 + 2 * 3 + 2) * each and found.host == SLOTS * 4 * each
    assert found.copied == pytest.approx((4 * (SLOTS - 3) + 2 * SLOTS + 2 * SLOTS) * each, rel=1e-6)
    assert found.copied_back == pytest.approx((SLOTS + 2 * SLOTS + 2 * SLOTS) * each, rel=1e-6)
    assert found.by_link.seconds == max(found.copied, found.copied_back) / 10e9  # both ways at once
    assert found.exposed(0.0) == pytest.approx(found.by_link.seconds) and found.exposed(1e9) == 0
    roomy = layout(0.0).model_copy(update={"tiers": Tiers(experts="disk", device_gb=1.0)})
    near = off_device(SPEC, TRAIN, roomy, gpu, is_cpu=False)
    assert near is not None and near.copied == pytest.approx(4 * SLOTS * each, rel=1e-6)
    on_cpus = layout(0.0).model_copy(update={"device": "cpu"})
    slow = off_device(SPEC, TRAIN, on_cpus, gpu, is_cpu=False)
    assert slow is not None and not slow.copied and slow.held == slow.host


def test_the_slower_of_disk_and_link_sets_the_pace() -> None:
    gpu = replace(Pool(gpu="h100").device, host_gbps=10.0, disk_gbps=0.1)
    little = layout(SLOTS / 2 * 16 * PARAMS / 1e9)
    found = off_device(SPEC, TRAIN, little, gpu, is_cpu=False)
    assert found is not None and found.by_disk.seconds > found.by_link.seconds > 0
    assert found.exposed(0.0) == pytest.approx(found.by_disk.seconds)


def test_hits_decay_and_of_experts_with_enough_of_them_the_one_with_fewest_leaves() -> None:
    rule = _policy(Tiers(experts="disk", policy="lfu", lfu_threshold=2, lfu_decay=0.25, lfu_every=7))
    for slot in (0, 1, 1, 2, 2, 2):
        rule.used(slot)
    assert rule.victim([0, 1, 2]) == 1  # 0 has fewer hits, but not two
    assert rule.victim([0]) == 0  # none has enough
    rule.used(0)  # the seventh: 0, 1 and 2 have 0.5, 0.5 and 0.75 now
    rule.used(1)
    assert rule.victim([0, 1, 2]) == 0
