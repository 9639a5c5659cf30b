"""Experts on disk beside the same experts in memory: the same bits, whichever experts leave memory and
whenever a training is stopped.
"""

from pathlib import Path
from typing import Any, Literal

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.experts import Experts
from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.config.optim.muon import Muon
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.role import Trainable
from atelier.engine.config.router.expert_choice import ExpertChoice
from atelier.engine.config.router.topk import TopK
from atelier.engine.config.run_file import Training
from atelier.engine.extensions.offload.config.parallel.tiers import Tiers
from atelier.engine.extensions.offload.experts import TieredExperts
from atelier.engine.extensions.offload.weights import put_on_disk
from atelier.engine.plan.checks import check_layout
from tests.engine.trainings import ONE, AfterSteps, TrainingSetup, model, role, student, train
from tests.parity.cases import quick_first

Policy = Literal["lfu", "lru", "static", "order"]
STEPS, EXPERTS = 12, 8
STATE_GB = 4 * 3 * 32 * 32 * 4 / 1e9  # of one expert: three matrices with two moments and their gradients


def tiers(room: int, policy: Policy = "lfu") -> Tiers:
    """Memory for `room` expert states."""
    return Tiers(experts="disk", host_gb=1.01 * room * STATE_GB, policy=policy)


def tiered(room: int, policy: Policy = "lfu") -> dict[str, Parallel]:
    return {"layout": ONE.model_copy(update={"tiers": tiers(room, policy)})}


def training(setup: TrainingSetup, steps: int = STEPS, **more: object) -> Training:
    """A teacher of which only some experts see a token in a step, and a student of it."""
    experts = Experts(ffn=32, activation="geglu_exact", router=TopK(balance="bias"))
    base, layers = (int(str(more.pop(key, value))) for key, value in (("base_width", 0), ("num_layers", 1)))
    shape = model(32, layers, num_experts=EXPERTS, experts_per_token=1, experts=experts, base_width=base)
    how = {"global_batch": 2, "micro_batch": 1, "sequence": 8, "eval_sequences": 2} | more
    return setup.training({"teacher": role(shape=shape, lr=1e-2), "pupil": student()}, train(steps, **how))


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory: pytest.TempPathFactory) -> TrainingSetup:
    setup = TrainingSetup(tmp_path_factory.mktemp("memory"))
    setup.train(training(setup))
    return setup


@pytest.mark.parametrize(
    ("room", "policy"),
    [
        pytest.param(1, "lfu", marks=pytest.mark.slow),
        (3, "lru"),
        pytest.param(5, "static", marks=pytest.mark.slow),
        (5, "order"),
        pytest.param(8, "lfu", marks=pytest.mark.slow),
    ],
)
def test_experts_on_disk_end_with_the_bits_of_experts_in_memory(
    in_memory: TrainingSetup, tmp_path: Path, room: int, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[TieredExperts] = []

    def seen(*given: Any) -> TieredExperts:
        made.append(put_on_disk(*given))
        return made[-1]

    monkeypatch.setattr("atelier.engine.extensions.offload.weights.put_on_disk", seen)
    setup = TrainingSetup(tmp_path)
    setup.train(training(setup), **tiered(room, policy))
    [tier] = made
    slots = tier.weight_file.slots
    assert 4 * room <= tier.rooms.units + 3 and (tier.moments.evictions > 0) == (room < slots)
    assert (tier.weights.evictions > 0) == (tier.rooms.weights < slots)
    assert tier.moment_file.bytes_read > 0 and not list(tmp_path.glob("scratch-*/tmp*"))  # it has no name
    for name in ("teacher", "pupil"):
        assert setup.weights(name) == in_memory.weights(name)
        assert setup.curve(name) == in_memory.curve(name)


def test_a_training_that_is_stopped_goes_on_to_the_same_bits_on_disk_or_in_memory(
    in_memory: TrainingSetup, tmp_path: Path
) -> None:
    setup = TrainingSetup(tmp_path)
    layouts = [tiered(2), {}, tiered(4, "lru"), {}, tiered(1)]
    for layout in layouts:
        try:
            setup.train(training(setup), stop=AfterSteps(tmp_path, 3), **layout)
            break
        except Exception as stopped:
            assert "stopped at step" in str(stopped)
    assert setup.weights("teacher") == in_memory.weights("teacher")
    assert setup.curve("teacher") == in_memory.curve("teacher")


@pytest.mark.parametrize("more", [{"precision": "bf16"}, {"base_width": 16}])
def test_products_in_bf16_and_scaled_rates_have_the_same_bits_too(
    tmp_path: Path, more: dict[str, object]
) -> None:
    setups = {}
    for where, layout in (("memory", {}), ("disk", tiered(3))):
        setups[where] = TrainingSetup(tmp_path / where)
        setups[where].train(training(setups[where], **more), **layout)
    assert setups["disk"].weights("teacher") == setups["memory"].weights("teacher")
    assert setups["disk"].curve("teacher") == setups["memory"].curve("teacher")


def test_experts_that_no_token_met_have_moved_all_the_same(in_memory: TrainingSetup) -> None:
    """What makes the first test hard: in most steps some experts get no token."""
    dead = [line["values"]["experts/dead/0"] for line in in_memory.curve("teacher")]
    assert sum(number > 0 for number in dead) > STEPS / 2
    assert AdamW(lr=1e-2).weight_decay > 0


@pytest.mark.parametrize("recompute", ["full", "selective"])
@pytest.mark.parametrize("kind", ["topk", "expert_choice"])
def test_what_is_recomputed_meets_the_same_experts(tmp_path: Path, recompute: str, kind: str) -> None:
    router = TopK(balance="bias") if kind == "topk" else ExpertChoice(sees_future=True)
    shape = model(32, num_experts=EXPERTS, experts=Experts(ffn=32, router=router))
    how = {"global_batch": 2, "micro_batch": 1, "sequence": 8, "eval_sequences": 2}
    found = {}
    for where, room in (("memory", 0), ("disk", 4)):
        setup = TrainingSetup(tmp_path / where)
        layout = ONE.model_copy(update={"recompute": recompute} | ({"tiers": tiers(room)} if room else {}))
        setup.train(setup.training({"teacher": role(shape=shape, lr=1e-2)}, train(6, **how)), layout=layout)
        found[where] = setup.weights("teacher"), setup.curve("teacher")
    assert found["disk"] == found["memory"]


CPU = Parallel(shard=1, threads=1, compile="none", device="cpu")
GANGS = {
    "expert": CPU.model_copy(update={"expert": 2}),
    "expert x tensor": CPU.model_copy(update={"expert": 2, "tensor": 2}),
    "pipeline": CPU.model_copy(update={"pipeline": 2}),
}


@pytest.mark.parametrize("gang", quick_first(GANGS, {}, ("expert", "pipeline")))
def test_a_gang_with_experts_on_disk_ends_with_the_bits_of_one_in_memory(tmp_path: Path, gang: str) -> None:
    setups = {}
    for where in ("memory", "disk"):
        setups[where] = setup = TrainingSetup(tmp_path / where)
        layout = GANGS[gang]
        if where == "disk":
            layout = layout.model_copy(update={"tiers": tiers(2)})
        run = setup.run_file(training(setup, 4, global_batch=4, num_layers=2), layout=layout)
        ranks = setup.processes(run, world=layout.ranks)
        said = [rank.communicate(timeout=300) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * layout.ranks, said
        assert ('"on_disk": ["teacher"]' in said[0][0]) == (where == "disk"), said[0][0]
    assert setups["disk"].weights("teacher") == setups["memory"].weights("teacher")
    assert setups["disk"].curve("teacher") == setups["memory"].curve("teacher")


@pytest.mark.parametrize(
    ("shard", "host_gb", "more", "words"),
    [
        (1, 1e-7, {}, "use host_gb=0.0001476"),
        (2, 0.0, {}, "2 ranks share each expert of model (replicate, shard and context); use expert=2"),
        (1, 0.0, {"optim": Muon(lr=1e-3)}, "is trained by muon"),
        (1, 0.0, {"trainable": Trainable(kind="lora")}, "only parts of model are trained"),
    ],
)
def test_what_cannot_be_on_disk_is_refused_with_a_way_out(
    shard: int, host_gb: float, more: dict[str, object], words: str
) -> None:
    layout = Parallel(shard=shard, tiers=Tiers(experts="disk", host_gb=host_gb))
    spec = role(shape=model(32, num_experts=EXPERTS, experts=Experts(ffn=96))).model_copy(update=more)
    with pytest.raises(ConfigError) as refused:
        check_layout(layout, {"teacher": spec}, train(8), prefix="")
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("layout", "ffn", "precision", "words"),
    [
        ({"tiers": Tiers(experts="disk")}, 96, "fp32", "the experts are on disk"),
        ({}, 96, "fp64", "does not work with float64"),
        ({}, 90, "fp32", "model.experts.ffn on a rank, 90, is not a multiple of 4"),
        ({"tensor": 2}, 24, "bf16", "model.experts.ffn on a rank, 12, is not a multiple of 8"),
    ],
)
def test_one_product_for_all_experts_that_cannot_be_computed_is_refused(
    layout: dict[str, Any], ffn: int, precision: str, words: str
) -> None:
    asked = Parallel(shard=1, expert_products="grouped", **layout)
    spec = role(shape=model(32, num_experts=EXPERTS, experts=Experts(ffn=ffn)))
    with pytest.raises(ConfigError) as refused:
        check_layout(asked, {"teacher": spec}, train(8, precision=precision), prefix="")
    assert words in str(refused.value)
