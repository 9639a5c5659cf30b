"""Memory that glibc keeps between steps is returned on request."""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource

import torch
from atelier.engine.parallel.gang import keep_freed_memory, return_freed_memory

def resident() -> int:
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

keep_freed_memory()
held = [torch.ones(1 << 16) for _ in range(400)]  # 100 MB
pin = torch.ones(1 << 16)  # behind them: the heap cannot simply end earlier
del held
kept = resident()
return_freed_memory()
print(kept - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is set")
def test_memory_that_was_kept_is_given_back() -> None:
    said = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    assert int(said) > 80e6
