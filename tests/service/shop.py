"""A store with tokens, and the command line beside a Slurm cluster, for tests of jobs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from atelier.infra.store.trajectory import checkpoint_steps
from tests.checkout import TOP
from tests.flow.served import wait_for
from tests.service.slurm_cluster import Cluster

WORDS = (
    "experiment=tiny", "model=gpt_nano", "model.hidden=32", "model.num_heads=2", "train.eval_sequences=4",
    "score.baselines=false", "score.max_tokens=500", "train.checkpoint_every=20", "parallel.threads=1",
)  # fmt: skip
PATIENCE_S = 300.0  # a loaded machine; nothing waits that long when it is quiet


class Shop:
    """A store with tokens in it, and the command line beside a cluster."""

    def __init__(self, root: Path, slurm: Cluster | None) -> None:
        self.root, self.slurm = root, slurm
        self.started: list[subprocess.Popen[str]] = []
        kept = slurm.environment if slurm else dict(os.environ)
        # what a job must never see
        self.environment = kept | {"ATELIER_ROOT": str(root), "MLFLOW_TRACKING_PASSWORD": "open sesame"}

    def start(self, *words: str) -> subprocess.Popen[str]:
        """`atelier pretrain` with these words besides."""
        command = [sys.executable, "-m", "atelier", "pretrain", *WORDS, *words]
        process = subprocess.Popen(
            command,
            env=self.environment,
            cwd=TOP,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        """End all processes that a failed test has left."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()

    def run(self, *words: str) -> str:
        """Run to a successful end; its output."""
        return ended(self.start(*words))

    def until_step(self, step: int) -> int:
        """Return when a checkpoint of `step` or later is there; its step."""
        return wait_for(
            lambda: next((there for there in self.steps() if there >= step), None),
            PATIENCE_S,
            f"a checkpoint of step {step}",
        )

    def steps(self) -> list[int]:
        return [step for place in self.root.glob("trajectory/*") for step in checkpoint_steps(str(place))]

    def job(self) -> str:
        """The id of the training's job."""
        assert self.slurm is not None
        told = self.slurm.run("squeue", "--noheader", "--states=all", "--format=%i %j %T").stdout
        rows = [line.split() for line in told.splitlines()]
        return max((row[0] for row in rows if row[1] == "atelier-train"), key=int)

    def weights(self) -> str:
        """The digest of the model's weights."""
        [record] = [json.loads(path.read_text()) for path in self.root.glob("model/*/record.json")]
        return next(file["sha256"] for file in record["files"] if file["path"].endswith("model.safetensors"))


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, said
    return said
