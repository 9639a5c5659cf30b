"""CPU seconds of commands, corrected for a busy neighbour on the same core."""

import resource
import subprocess
import sys

from tests.checkout import TOP

# imports, as most of what the command line does when it starts; seconds where no other process runs
REFERENCE = "import asyncio, email.mime.text, http.server, multiprocessing.pool, unittest, xmlrpc.client"
REFERENCE_S = 0.125


def cpu_of(command: list[str]) -> tuple[float, subprocess.CompletedProcess[str]]:
    """CPU seconds of a process, and what it said."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, cwd=TOP)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done


def undisturbed(seconds: float) -> float:
    """CPU seconds of what has just run, on a machine on which `REFERENCE`, run now, takes `REFERENCE_S`."""
    return seconds * REFERENCE_S / cpu_of([sys.executable, "-c", REFERENCE])[0]
