"""A frozen teacher larger than the memory for it: its students have the same bits."""

import math
from pathlib import Path

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.experts import Experts
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.router.topk import TopK
from atelier.engine.config.run_file import Training
from atelier.engine.extensions.offload.config.parallel.tiers import Tiers
from atelier.engine.loop import build
from atelier.engine.plan.streamed import check_whole
from atelier.engine.tier.ring import Ring
from tests.engine.trainings import ONE, TrainingSetup, model, role, student, train

STEPS = 4
SHAPES = {
    "dense": {"num_layers": 4},
    "experts": {
        "num_layers": 2,
        "num_experts": 8,
        "experts": Experts(ffn=32, router=TopK(balance="bias")),
    },
}


def memory_of(shape: str) -> float:
    """GB in which the teacher does not fit."""
    return 0.8 * 4 * model(32, **SHAPES[shape]).num_params() / 1e9


def taught(folder: Path, shape: str, precision: str = "fp32") -> tuple[TrainingSetup, Training]:
    """A student's training by a finished teacher."""
    setup = TrainingSetup(folder)
    teacher = role(shape=model(32, **SHAPES[shape]), lr=1e-2)
    setup.train(setup.training({"teacher": teacher}, train(STEPS, checkpoint_every=STEPS)))
    setup.inputs["finished"] = setup.as_input("teacher")
    frozen = setup.member(
        "teacher", teacher, STEPS, mode="frozen", output=False, segments=(), init="finished"
    )
    roles = {"teacher": frozen, "pupil": student(attach="frozen", lr=1e-2)}
    return setup, setup.training(roles, train(STEPS, precision=precision, micro_batch=1))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_student_of_a_streamed_teacher_has_the_bits_of_a_resident_one_s(
    tmp_path: Path, shape: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rings: list[Ring] = []
    make = build._ring

    def seen(*given, **named) -> Ring:
        rings.append(make(*given, **named))
        return rings[-1]

    monkeypatch.setattr(build, "_ring", seen)
    found = {}
    for where, memory in (("resident", 0.0), ("streamed", memory_of(shape))):
        setup, training = taught(tmp_path / where, shape, precision)
        setup.train(training, layout=ONE.model_copy(update={"tiers": Tiers(frozen_gb=memory)}))
        found[where] = setup.weights("pupil"), setup.curve("pupil")
    [ring] = rings
    assert ring.block_buffers.misses + ring.expert_buffers.misses > STEPS
    assert found["streamed"] == found["resident"]


@pytest.mark.parametrize(
    "axes",
    [
        pytest.param({"expert": 2}, marks=pytest.mark.slow),
        {"replicate": 2},
        pytest.param({"replicate": 2, "expert": 2}, marks=pytest.mark.slow),
    ],
)
def test_ranks_stream_each_its_own_experts(tmp_path: Path, axes: dict[str, int]) -> None:
    found, ranks = {}, math.prod(axes.values())
    for where, memory in (("resident", 0.0), ("streamed", 0.5 * memory_of("experts"))):
        setup, training = taught(tmp_path / where, "experts")
        layout = Parallel(
            shard=1, **axes, threads=1, compile="none", device="cpu", tiers=Tiers(frozen_gb=memory)
        )
        gang = setup.processes(setup.run_file(training, layout=layout), world=ranks)
        said = [rank.communicate(timeout=300) for rank in gang]
        assert [rank.returncode for rank in gang] == [0] * ranks, said
        assert ('"streamed": ["teacher"]' in said[0][0]) == bool(memory), said[0][0]
        found[where] = setup.weights("pupil"), setup.curve("pupil")
    assert found["streamed"] == found["resident"]


def test_a_layout_that_splits_a_streamed_teacher_is_refused_with_a_way_out() -> None:
    layout = Parallel(shard=2, tiers=Tiers(frozen_gb=0.001))
    refused = r"parallel.tiers.frozen_gb: .*shard=2 splits it; use replicate=2, or frozen_gb=0"
    with pytest.raises(ConfigError, match=refused):
        check_whole(layout, "teacher")
    check_whole(layout.model_copy(update={"tiers": Tiers()}), "teacher")
