"""What a process keeps of what it needs no more."""

import subprocess
import sys

import pytest

SHAPES = """
import resource
from atelier.engine.parallel.gang import start_gang
from atelier.engine.config.parallel import Parallel
start_gang(Parallel(shard=1, threads=1))
import torch
tokens, weight = torch.randn(1500, 256).bfloat16(), torch.randn(256, 256).bfloat16()
def peak_mb(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
for number in range(1, 30): tokens[:number] @ weight
before = peak_mb()
for number in range(30, 1200): tokens[:number] @ weight
print(peak_mb() - before)
"""


@pytest.mark.slow
def test_kernels_of_shapes_that_do_not_come_again_are_not_kept() -> None:
    done = subprocess.run([sys.executable, "-c", SHAPES], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 200  # 700 with oneDNN's own limit
