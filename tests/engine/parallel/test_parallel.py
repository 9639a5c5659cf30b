"""Resolution of `auto` numbers in a layout; compiled blocks compute the same training."""

import functools
import os
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load
from torch import nn

from atelier.engine.config.error import ConfigError
from atelier.engine.config.experts import Experts
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.router.topk import TopK
from atelier.engine.config.run_file import Training
from atelier.engine.loop.build import auto_micro_batch
from atelier.engine.model.moe import ExpertWeights
from atelier.engine.parallel.compute import WORTH_COMPILING, compile_blocks, compile_mode
from atelier.engine.parallel.gang import num_threads, start_gang
from atelier.engine.plan.expert_checks import rows_together
from tests.engine.trainings import ONE, TrainingSetup, laid_out, role, student, train

CPU = torch.device("cpu")


def test_auto_compiles_where_a_compiler_is_found_and_the_training_is_long_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    auto = Parallel(compile="auto")
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/clang++" if name == "clang++" else None)
    assert compile_mode(auto, flops=WORTH_COMPILING["cpu"], device=CPU) == "block"
    assert compile_mode(auto, flops=WORTH_COMPILING["cpu"] * 0.99, device=CPU) == "none"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert compile_mode(auto, flops=1e30, device=CPU) == "none"
    assert compile_mode(Parallel(compile="block"), flops=0.0, device=CPU) == "block"


def test_threads_are_an_even_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(12)))
    assert num_threads(Parallel(), 4) == 3
    assert num_threads(Parallel(), 16) == 1
    assert num_threads(Parallel(threads=5), 16) == 5
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert num_threads(Parallel(), 16) == 6


def test_an_automatic_micro_batch_divides_a_ranks_share_and_fits_its_room() -> None:
    def auto(layout: Parallel = ONE, **how: Any) -> int:
        return auto_micro_batch(train(**how), layout, CPU)

    assert auto(global_batch=48, micro_batch="auto", sequence=512) == 16
    assert auto(Parallel(shard=8), global_batch=48, micro_batch="auto", sequence=512) == 6
    assert auto(global_batch=7, micro_batch="auto", sequence=20_000) == 1
    assert auto(global_batch=7, micro_batch=7) == 7
    pipeline = Parallel(shard=1, pipeline=2)
    assert auto(pipeline, global_batch=64, micro_batch="auto", sequence=32) == 8  # 4 for each of its ranks


def test_an_automatic_micro_batch_holds_whole_groups_of_rows_that_compete() -> None:
    how = train(global_batch=48, micro_batch="auto", sequence=512)
    assert auto_micro_batch(how, ONE, CPU, together=6) == 12
    assert auto_micro_batch(how, ONE, CPU, together=48) == 48
    layout = Parallel.model_validate({"shard": 2, "roles": {"s": {"shard": 4}}})
    mixed = GPT(num_layers=1, hidden=32, num_heads=2, vocab=64, num_experts=4)
    experts = Experts(router=TopK(capacity=1.0), group=3)
    competing = mixed.model_copy(update={"experts": experts})
    assert rows_together(layout, {"teacher": mixed, "s": mixed}) == 1
    assert rows_together(layout, {"teacher": competing, "s": mixed}) == 3
    assert rows_together(layout, {"teacher": competing, "s": competing}) == 6


def test_cuda_where_there_is_none_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(ConfigError, match=r"parallel\.device: is cuda"):
        start_gang(Parallel(device="cuda", threads=1))
    with pytest.raises(ConfigError, match=r"pool\.gpu: the pool has h100, but torch .* sees no GPU on"):
        start_gang(Parallel(device="cuda", threads=1), "h100")


def test_a_rank_on_another_gpu_than_the_pools_is_refused_with_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    with pytest.raises(ConfigError, match=r"pool\.gpu: is h100, but .* has NVIDIA A100-SXM4-80GB"):
        start_gang(Parallel(device="cuda", threads=1), "h100")


def apart(training_setup: TrainingSetup, *trainings: Training) -> None:
    """Train with compiled blocks in a process of its own: torch warns while it compiles, and warnings are
    errors here.
    """
    layout = ONE.model_copy(update={"compile": "block"})
    (process,) = training_setup.processes(training_setup.run_file(*trainings, layout=layout))
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


@pytest.mark.slow
@pytest.mark.slow
def test_compiled_blocks_train_to_the_same_numbers_and_resume_to_the_same_bits(tmp_path: Path) -> None:
    roles = {"teacher": role(), "s": student()}
    plain, fast, again = (TrainingSetup(tmp_path / name) for name in ("plain", "fast", "again"))
    plain.train(plain.training(roles, train(8, precision="fp64")))
    apart(fast, fast.training(roles, train(8, precision="fp64")))
    apart(again, again.training(roles, train(4, precision="fp64")))
    apart(again, again.training(roles, train(8, precision="fp64")))
    for name in roles:
        assert fast.weights(name) == again.weights(name)
        eager, quick = load(plain.weights(name)), load(fast.weights(name))
        for key in eager:
            assert torch.allclose(eager[key], quick[key], rtol=0, atol=1e-8)


@pytest.mark.slow
def test_experts_whose_weights_come_from_elsewhere_are_left_out_of_compiled_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    seen: list[bool] = []
    block, experts = nn.Sequential(), ExpertWeights(2, 4, 4)

    def compute(x_PD: torch.Tensor, counts_X: list[int]) -> torch.Tensor:
        seen.append(torch.compiler.is_compiling())
        return x_PD

    block.add_module("experts", experts)
    experts.compute, experts.reads_counts = compute, True
    block.forward = lambda x_PD: 2 * experts.compute(x_PD + 1, [1, 1])
    compile_blocks([block])
    assert block.forward(torch.ones(2, 4)).tolist() == [[4.0] * 4] * 2 and seen == [False]


def test_a_compiled_teacher_ends_with_the_same_bits_with_and_without_students(tmp_path: Path) -> None:
    alone, gang = TrainingSetup(tmp_path / "alone"), TrainingSetup(tmp_path / "gang")
    how = train(8, precision="bf16")
    apart(alone, alone.training({"teacher": role()}, how))
    apart(gang, gang.training({"teacher": role(), "a": student(), "b": student(24, gate=0.02, start=3)}, how))
    assert alone.weights("teacher") == gang.weights("teacher")
    assert alone.curve("teacher") == gang.curve("teacher")


def test_deterministic_ranks_use_no_kernel_whose_results_depend_on_timing_and_keep_their_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    usual, strict = TrainingSetup(tmp_path / "usual"), TrainingSetup(tmp_path / "strict")
    usual.train(usual.training({"teacher": role()}, train()))
    try:
        strict.train(strict.training({"teacher": role()}, train()), layout=laid_out(deterministic=True))
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        with pytest.raises(RuntimeError, match="put_"):  # has no such kernel
            torch.zeros(4).put_(torch.tensor([0, 0]), torch.ones(2))
    finally:
        torch.use_deterministic_algorithms(False)
        cast(Any, torch.utils.deterministic).fill_uninitialized_memory = True
    assert usual.weights("teacher") == strict.weights("teacher")
