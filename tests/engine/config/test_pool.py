"""Pools: the precisions of their devices."""

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.pool import Pool


@pytest.mark.parametrize(
    ("pool", "precision", "words"),
    [
        (
            Pool(gpu="a100", gpus_per_node=8),
            "fp8",
            "fp8, but a100 has no such products; train.precision=bf16",
        ),
        (
            Pool(gpu="V100", gpus_per_node=8),
            "bf16",
            "bf16, but V100 has no such products; train.precision=fp32",
        ),
        (Pool(gpu="v100", gpus_per_node=8, paper=True), "fp8", "train.precision=fp32, or other GPUs"),
    ],
)
def test_a_precision_that_the_devices_lack_is_refused_with_one_that_they_have(
    pool: Pool, precision: str, words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        pool.check_precision(precision)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("pool", "precision"),
    [
        (Pool(gpu="h100", gpus_per_node=8), "fp8"),
        (Pool(gpu="v100", gpus_per_node=8), "fp64"),
        (Pool(gpu="v100", gpus_per_node=8, paper=True), "bf16"),
        (Pool(), "bf16"),
    ],
)
def test_other_precisions_pass(pool: Pool, precision: str) -> None:
    pool.check_precision(precision)
