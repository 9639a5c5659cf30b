"""Memory of a process: kernels that repeat are kept, others are not."""

import os
import subprocess
import sys

import pytest
import torch

from atelier.engine.model.placement import has_half

BEGIN = """
import resource
from atelier.engine.parallel.gang import start_gang
from atelier.engine.config.parallel import Parallel
start_gang(Parallel(shard=1, threads=1))
import torch
from atelier.engine.model.products import with_padding
tokens, weight = torch.randn(1500, 256).bfloat16(), torch.randn(256, 256).bfloat16()
def peak_mb(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
"""
ONE_NUMBER_EACH = """
for number in range(1, 30): tokens[:number] @ weight
before = peak_mb()
for number in range(30, 1200): with_padding(tokens[:number]) @ weight
print(peak_mb() - before)
"""
THE_SAME_AGAIN = """
for again in range(2):
    for number in range(1, 101): tokens[:number] @ weight
"""


def told(script: str, **env: str) -> str:
    command = [sys.executable, "-c", BEGIN + script]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | env).stdout


@pytest.mark.slow
def test_padding_keeps_kernels_few() -> None:
    assert int(told(ONE_NUMBER_EACH)) < 200  # 768 without


@pytest.mark.skipif(not has_half(torch.device("cpu")), reason="no kernels of low precision on this CPU")
def test_kernels_that_come_again_are_built_once() -> None:
    """More of them than torch's own cache has room for."""
    assert told(THE_SAME_AGAIN, ONEDNN_VERBOSE="2").count("create:cache_miss") == 100
