"""float8 products, emulated on a CPU: rounded as on a GPU, and refused where they cannot be computed."""

from pathlib import Path

import pytest
import torch

from atelier.engine.config.error import ConfigError
from atelier.engine.parallel.compute import check_float8
from tests.forks import start_gang


def test_blocks_compute_in_float8_and_weights_keep_their_names(tmp_path: Path) -> None:
    pytest.importorskip("torchao", reason="torchao is missing: it is of the extra fp8")
    start_gang("tests.parity.gang", tmp_path, 1, "tests.engine.parallel.float8")


def test_a_cpu_is_refused_with_the_precision_that_runs_there() -> None:
    with pytest.raises(
        ConfigError, match=r"train\.precision: fp8, but the device is a CPU; .*precision=bf16"
    ):
        check_float8(torch.device("cpu"))
