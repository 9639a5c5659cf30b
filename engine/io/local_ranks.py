"""Further ranks of a gang on this machine, started by its first one: for commands without a supervisor."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

RENDEZVOUS = "ATELIER_RENDEZVOUS"  # a file:// URL at which the ranks of a gang meet
GRACE_S = 10.0  # for ranks to end once the first one has


@contextmanager
def other_ranks(module: str, path: str, ranks: int) -> Iterator[None]:
    """Run `python -m module path` as ranks 1 .. `ranks` - 1 beside this process, rank 0, and end them with
    it. They write nothing but errors. Nothing happens in a process that is already a rank of a gang.
    """
    if ranks == 1 or "WORLD_SIZE" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="atelier-ranks-") as folder:
        os.environ |= {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            RENDEZVOUS: (Path(folder) / "meeting").as_uri(),
        }
        others = [
            subprocess.Popen(
                [sys.executable, "-m", module, path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(1, ranks)
        ]
        try:
            yield
        finally:
            for process in others:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
                process.kill()
                process.wait()
