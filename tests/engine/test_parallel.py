"""What the layout's `auto` numbers become, and that compiled blocks compute the same training."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from engine.loop.build import auto_micro_batch
from engine.parallel import WORTH_COMPILING, Gang, compile_mode, num_threads, start_gang
from engine.spec.error import ConfigError
from engine.spec.parallel import Parallel
from tests.engine.house import ONE, House, role, student, train

CPU = torch.device("cpu")


def test_auto_compiles_where_a_compiler_is_found_and_the_training_is_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert auto_micro_batch(train(global_batch=48, micro_batch="auto", sequence=512), Gang()) == 16
    assert auto_micro_batch(train(global_batch=48, micro_batch="auto", sequence=512), Gang(world=8)) == 6
    assert auto_micro_batch(train(global_batch=7, micro_batch="auto", sequence=20_000), Gang()) == 1
    assert auto_micro_batch(train(global_batch=7, micro_batch=7), Gang()) == 7


def test_cuda_where_there_is_none_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(ConfigError, match=r"parallel\.device: is cuda"):
        start_gang(Parallel(device="cuda", threads=1))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch's own, on import
def test_compiled_blocks_train_to_the_same_numbers_and_resume_to_the_same_bits(tmp_path: Path) -> None:
    roles, compiled = {"teacher": role(), "s": student()}, ONE.model_copy(update={"compile": "block"})
    plain, fast, again = (House(tmp_path / name) for name in ("plain", "fast", "again"))
    plain.train(plain.training(roles, train(8, precision="fp64")))
    fast.train(fast.training(roles, train(8, precision="fp64")), layout=compiled)
    again.train(again.training(roles, train(4, precision="fp64")), layout=compiled)
    again.train(again.training(roles, train(8, precision="fp64")), layout=compiled)
    for name in roles:
        assert fast.weights(name) == again.weights(name)
        eager, quick = load(plain.weights(name)), load(fast.weights(name))
        for key in eager:
            assert torch.allclose(eager[key], quick[key], rtol=0, atol=1e-8)
