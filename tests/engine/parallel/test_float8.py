"""float8 products, emulated on a CPU: rounded as on a GPU; what a device cannot compute is refused."""

import warnings
from pathlib import Path

import pytest
import torch

from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Parallel
from atelier.engine.parallel.compute import check_bf16, check_float8
from atelier.engine.parallel.gang import start_gang as start_gang_here
from tests.forks import start_gang


def test_blocks_compute_in_float8_and_weights_keep_their_names(tmp_path: Path) -> None:
    pytest.importorskip("torchao", reason="torchao is missing: it is of the extra fp8")
    start_gang("tests.parity.gang", tmp_path, 1, "tests.engine.parallel.float8")


def test_a_cpu_is_refused_with_the_precision_that_runs_there() -> None:
    with pytest.raises(
        ConfigError, match=r"train\.precision: fp8, but the device is a CPU; .*precision=bf16"
    ):
        check_float8(torch.device("cpu"))


def test_a_gpu_without_bfloat16_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    check_bf16(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100-SXM2-16GB")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    with pytest.raises(ConfigError, match=r"Tesla V100.* \(compute capability 7\.0\) .*precision=fp32"):
        check_bf16(torch.device("cuda"))


def test_an_old_driver_is_named_with_what_it_must_support(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_available() -> bool:
        warnings.warn("The NVIDIA driver on your system is too old (found 11040).\nMore", stacklevel=2)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(ConfigError, match=r"no GPU .*too old \(found 11040\).*update .*CUDA 12\.8"):
        start_gang_here(Parallel(shard=1, device="cuda"), "h100")
