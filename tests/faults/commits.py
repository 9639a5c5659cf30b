"""`python -m tests.faults.commits`: for each line `scenario folder` on stdin, a child that waits stopped and
then commits once. All modules are imported before, so that a kill point does not start torch.

The child's pid is a line on stdout, and so is its end: `code N` or `signal N`.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from atelier.engine.checkpoint.collective_call import SingleRank
from atelier.engine.checkpoint.folder import address
from atelier.engine.checkpoint.writer import save_async
from atelier.engine.config.record import Record, identify
from atelier.engine.io.artifact import ArtifactOutput
from atelier.infra.store.lease import Holder, take
from atelier.infra.store.store import Store, read_body

TRAJECTORY = "a" * 64
REFUSED = 3  # exit code of a commit that raised OSError


def state(number: int) -> dict[str, Any]:
    """The content of a checkpoint; another `number` gives other bits."""
    generator = torch.Generator().manual_seed(number)
    return {
        "weights": {"a": torch.randn(40, 3, generator=generator), "b": torch.arange(5) + number},
        "step": number,
    }


def draft() -> Record:
    identity = {"x": 1}
    print_of = identify("model", 1, identity, {})
    return Record(kind="model", name="a", fingerprint=print_of, version=1, identity=identity, parents={})


def publish(folder: str) -> None:
    """Publish an artifact of one file, from its payload to its record, as a supervisor does."""
    store, record = Store(folder), draft()
    lease = take(store.address(record.kind, record.fingerprint), Holder.me())
    if lease is None:
        return
    payload = store.new_payload(record.kind, record.fingerprint)
    output = ArtifactOutput(payload)
    output.add_bytes("weights.bin", b"123")
    output.close({"loss": 1.5})
    files, summary = read_body(payload)
    store.publish(record.model_copy(update={"files": files, "summary": summary}), Holder.me(), lease.fence)
    store.find(record.kind, record.fingerprint)


def lease(folder: str) -> None:
    for _ in range(2):
        held = take(folder, Holder.me())
        if held is not None:
            held.renew()
            held.release()


def save(folder: str, number: int) -> None:
    save_async(address(folder, 2), state(number), step=2, trajectory=TRAJECTORY, gang=SingleRank()).wait()


SCENARIOS: dict[str, Callable[[str], None]] = {
    "publish": publish,
    "lease": lease,
    "checkpoint": lambda folder: save(folder, 2),
    "replacement": lambda folder: save(folder, 3),
}


def act(scenario: str, folder: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)  # until strace is there
    try:
        SCENARIOS[scenario](folder)
    except OSError:
        os._exit(REFUSED)
    os._exit(0)


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        scenario, folder = line.split(maxsplit=1)
        pid = os.fork()
        if pid == 0:
            act(scenario, str(Path(folder.strip())))
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        ended = (
            f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"code {os.WEXITSTATUS(status)}"
        )
        print(ended, flush=True)


if __name__ == "__main__":
    main()
