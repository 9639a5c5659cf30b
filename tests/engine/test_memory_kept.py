"""Memory that glibc keeps between steps goes back when it is asked for."""

import subprocess
import sys

import pytest

SCRIPT = """
import torch
from engine.parallel.gang import keep_freed_memory, return_freed_memory

def resident() -> int:
    return int(open("/proc/self/statm").read().split()[1]) * 4096

keep_freed_memory()
held = [torch.ones(1 << 16) for _ in range(400)]  # 100 MB
pin = torch.ones(1 << 16)  # behind them: the heap cannot simply end earlier
del held
kept = resident()
return_freed_memory()
print(kept - resident())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_memory_that_was_kept_is_given_back() -> None:
    said = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    assert int(said) > 80e6
