"""Experts on disk that compute on a device, played by a CPU that copies late: the bits of experts in memory.
No GPU was there.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from atelier.engine.config.experts import Experts
from atelier.engine.config.router.topk import TopK
from atelier.engine.config.run_file import Training
from atelier.engine.extensions.offload import weights
from atelier.engine.extensions.offload.config.parallel.tiers import Tiers
from atelier.engine.extensions.offload.experts import TieredExperts
from atelier.engine.model.placement import as_placed
from atelier.engine.tier.on_device import DeviceBuffers
from tests.engine.tier.late_copies import Late, LateCopies
from tests.engine.trainings import ONE, AfterSteps, TrainingSetup, model, role, train

STEPS, EXPERTS = 6, 8
STATE_GB = 4 * 3 * 32 * 32 * 4 / 1e9
LITTLE = 1e-9  # the least on the device


def training(setup: TrainingSetup, **more: Any) -> Training:
    experts = Experts(ffn=32, router=TopK(balance="bias"))
    shape = model(32, 2, num_experts=EXPERTS, experts_per_token=1, experts=experts)
    how = {"global_batch": 2, "micro_batch": 1, "sequence": 8, "eval_sequences": 2}
    return setup.training({"model": role(shape=shape, lr=1e-2)}, train(STEPS, **(how | more)))


def tiered(room: int, device_gb: float, **more: Any) -> dict[str, Any]:
    tiers = Tiers(experts="disk", host_gb=1.01 * room * STATE_GB, device_gb=device_gb)
    return {"layout": ONE.model_copy(update={"tiers": tiers} | more)}


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory: pytest.TempPathFactory) -> TrainingSetup:
    setup = TrainingSetup(tmp_path_factory.mktemp("memory"))
    setup.train(training(setup))
    return setup


@pytest.fixture
def tiers(monkeypatch: pytest.MonkeyPatch) -> list[TieredExperts]:
    """The tiers of the trainings of a test, on a device that copies late."""
    made: list[TieredExperts] = []
    put = weights.put_on_disk

    def seen(*given: Any) -> TieredExperts:
        made.append(put(*given))
        return made[-1]

    monkeypatch.setattr(weights, "put_on_disk", seen)
    place = "atelier.engine.extensions.offload.experts.copies_to"
    monkeypatch.setattr(place, lambda device, always: LateCopies())
    return made


def same(one: TrainingSetup, other: TrainingSetup) -> bool:
    return one.weights("model") == other.weights("model") and one.curve("model") == other.curve("model")


@pytest.mark.parametrize(("room", "on_device"), [(1, 0), (3, 0), (16, 0), (4, 24)])
def test_experts_that_compute_on_a_device_end_with_the_bits_of_experts_in_memory(
    in_memory: TrainingSetup, tiers: list[TieredExperts], tmp_path: Path, room: int, on_device: int
) -> None:
    """`on_device`: memory of the device, in weights of experts."""
    setup = TrainingSetup(tmp_path)
    setup.train(training(setup), **tiered(room, 1.01 * on_device * STATE_GB / 4))
    [tier] = tiers
    assert all(isinstance(each, DeviceBuffers) for each in (tier.weights, tier.gradients, tier.moments))
    assert isinstance(tier.weights, DeviceBuffers)
    assert tier.weights.size == max(3, on_device - 9) and tier.weights.num_back > EXPERTS
    assert same(setup, in_memory)


@pytest.mark.parametrize("fault", ["none", "computation", "reservation"])
def test_a_wait_left_out_changes_the_bits_of_a_training(
    in_memory: TrainingSetup,
    tiers: list[TieredExperts],
    tmp_path: Path,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if fault == "computation":
        monkeypatch.setattr(Late, "wait", lambda self: None)
    if fault == "reservation":

        def hasty(self: DeviceBuffers) -> None:  # every buffer of the host is given away at once
            _, unit, is_back = self._under_way.pop(0)
            self.host.give(unit, changed=is_back)

        monkeypatch.setattr(DeviceBuffers, "_release_first", hasty)
        monkeypatch.setattr(Late, "query", lambda self: True)
    setup = TrainingSetup(tmp_path)
    try:
        setup.train(training(setup), **tiered(2, LITTLE))
        is_same = same(setup, in_memory)
    except Exception as stopped:  # numbers that are none end a training
        assert fault != "none", stopped
        is_same = False
    assert is_same == (fault == "none")


def test_a_training_that_is_stopped_goes_on_in_memory_or_on_a_device(
    in_memory: TrainingSetup, tiers: list[TieredExperts], tmp_path: Path
) -> None:
    setup = TrainingSetup(tmp_path)
    for layout in (tiered(2, LITTLE), {}, tiered(4, 1.0)):
        try:
            setup.train(training(setup), stop=AfterSteps(tmp_path, 2), **layout)
        except Exception as stopped:
            assert "stopped at step" in str(stopped)
    setup.train(training(setup), **tiered(3, LITTLE))
    assert len(tiers) == 3 and same(setup, in_memory)


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"recompute": "selective"}, marks=pytest.mark.slow),
        pytest.param({"recompute": "full"}, marks=pytest.mark.slow),
        {"precision": "bf16"},
    ],
)
def test_recomputed_blocks_and_products_in_bf16_have_the_same_bits(
    tiers: list[TieredExperts], tmp_path: Path, more: dict[str, Any]
) -> None:
    precision = {"precision": more.pop("precision")} if "precision" in more else {}
    setups = {}
    for where, layout in (
        ("memory", {"layout": ONE.model_copy(update=more)}),
        ("disk", tiered(3, LITTLE, **more)),
    ):
        setups[where] = TrainingSetup(tmp_path / where)
        setups[where].train(training(setups[where], **precision), **layout)
    assert tiers and same(setups["disk"], setups["memory"])


def test_a_key_tries_the_copies_on_cpus(in_memory: TrainingSetup, tmp_path: Path) -> None:
    setup = TrainingSetup(tmp_path)
    setup.train(training(setup), **tiered(3, 1.0))
    assert same(setup, in_memory)


def test_states_in_host_memory_are_not_copied_to_the_devices_of_their_weights() -> None:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        mesh = DeviceMesh("cpu", [0], mesh_dim_names=("expert",))
        weight = distribute_tensor(torch.zeros(4, 2), mesh, [Shard(0)])
        mesh._device_type = "cuda"  # as on a GPU, where the states stay in the file
        state = torch.arange(8.0).view(4, 2)
        placed = as_placed(state, weight)
        assert placed.to_local().data_ptr() == state.data_ptr() and placed.placements == weight.placements
    finally:
        dist.destroy_process_group()
