"""Gangs as Slurm jobs: one process per node (infra/launch/node_agent.py) under sbatch and srun, requeued on
preemption.

The submitter needs sbatch, squeue and scancel; no port is opened. A job gets the submitter's environment
without its credentials, except those of the store.
"""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from atelier import IMPORT_ROOT
from atelier.engine.config.error import ConfigError
from atelier.engine.config.site import Slurm
from atelier.engine.io.user_folders import own_folder
from atelier.infra.launch.batch_job import BatchJob, JobStatus
from atelier.infra.launch.supervisor import passed
from atelier.infra.store.conditional_create import LEASES

WAITING = (
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
)
RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING", "PREEMPTED")
SECONDS = 30  # timeout of Slurm's commands
TAIL = 15
ENDED_S = 600.0  # how long a preempted job waits for Slurm to kill it
OURS = ("SLURM_CONF",)


class SlurmBatch:
    """Batch on the Slurm cluster of one site."""

    def __init__(self, site: Slurm, *, gpus: bool) -> None:
        self.site, self.gpus = site, gpus
        self.folder = Path(site.output or own_folder() / "slurm")

    def show(self, gang: BatchJob) -> str:
        return f"sbatch {shlex.join(self.options(gang))}\n\n{self.script(gang)}"

    def submit(self, gang: BatchJob) -> str:
        """Submit the gang; returns the job's id. Raises ConfigError with Slurm's message on refusal."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        answer = self._ask("sbatch", *self.options(gang), given=self.script(gang), root=gang.root)
        if answer.returncode:
            raise ConfigError("site.slurm", _refusal(answer.stderr), "sinfo and sacctmgr show the cluster")
        return answer.stdout.strip().split(";")[0]

    def check(self, root: str) -> None:
        """Raises ConfigError with Slurm's message when it would refuse a job of one rank."""
        gang = BatchJob(id="check", name="check", root=root, nodes=1, ranks=1, threads=1)
        try:
            answer = self._ask(
                "sbatch", "--test-only", *self.options(gang), given=self.script(gang), root=root
            )
        except FileNotFoundError:
            raise ConfigError(
                "pool.launcher", "slurm, but there is no sbatch here", "use a login node"
            ) from None
        if answer.returncode:
            raise ConfigError("site.slurm", _refusal(answer.stderr), "sinfo and sacctmgr show the cluster")

    def options(self, gang: BatchJob) -> list[str]:
        """sbatch's options for a gang."""
        asked = {name: getattr(self.site, name) for name in ("partition", "account", "qos", "constraint")}
        asked |= {"reservation": self.site.reservation, "time": self.site.time}
        asked |= {
            "job-name": f"atelier-{gang.name}",
            "nodes": str(gang.nodes),
            "ntasks-per-node": "1",
            "cpus-per-task": str(gang.ranks * gang.threads),
            "gpus-per-node": str(gang.ranks) if self.gpus else "",
            "output": str(self._output("%A_%a" if gang.elements else "%j")),
            "array": _array(gang),
            "open-mode": "append",
        }
        return ["--parsable", "--requeue", *(f"--{key}={value}" for key, value in asked.items() if value)]

    def script(self, gang: BatchJob) -> str:
        """The job script: the same process on every node, with the submitter's interpreter (on a shared file
        system) unless the site names another.
        """
        words = [self.site.python or sys.executable, "-m", gang.module, *gang.words]
        if self.site.container:
            words = ["apptainer", "exec", *(["--nv"] if self.gpus else []), self.site.container, *words]
        cores = f"--cpus-per-task={gang.ranks * gang.threads}"  # srun does not inherit this from sbatch
        run = shlex.join(["srun", "--kill-on-bad-exit=1", cores, *words])
        return f"#!/bin/sh\ncd {shlex.quote(str(IMPORT_ROOT))} || exit 1\nexec {run}\n"

    def status(self, job: str) -> JobStatus:
        answer = self._ask("squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T|%r")
        if answer.returncode and "Invalid job id" in answer.stderr:
            return JobStatus("over", f"Slurm no longer knows job {job}")
        if answer.returncode:
            raise OSError(answer.stderr.strip())
        lines = answer.stdout.strip().splitlines()
        if not lines:
            return JobStatus("over", f"Slurm no longer knows job {job}")
        state, _, reason = lines[0].partition("|")
        return _standing(job, state, reason)

    def look_at_elements(self, job: str) -> dict[int, JobStatus]:
        """Status of each array element that Slurm still knows. Raises OSError while it does not answer."""
        answer = self._ask(
            "squeue", "--noheader", "--array", f"--jobs={job}", "--states=all", "--format=%K|%T|%r"
        )
        if answer.returncode and "Invalid job id" not in answer.stderr:
            raise OSError(answer.stderr.strip())
        rows = [line.split("|", 2) for line in answer.stdout.split("\n") if line.count("|") > 1]
        return {int(row[0]): _standing(f"{job}_{row[0]}", row[1], row[2]) for row in rows if row[0].isdigit()}

    def end(self, job: str) -> None:
        self._ask("scancel", job)

    def last_words(self, job: str) -> str:
        try:
            text = self._output(job).read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.strip().splitlines()[-TAIL:])

    def _output(self, job: str) -> Path:
        return self.folder / f"{job}.out"

    def _ask(
        self, program: str, *words: str, given: str = "", root: str = ""
    ) -> subprocess.CompletedProcess[str]:
        env = passed(root, LEASES) if root else passed(str(IMPORT_ROOT))
        env |= {key: os.environ[key] for key in OURS if key in os.environ}
        try:
            return subprocess.run(
                [program, *words], input=given, env=env, capture_output=True, text=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            raise OSError(f"{program} has not answered for {SECONDS} s") from None


def requeue_this_job() -> None:
    """Requeue this preempted job. Slurm itself requeues only jobs that it had to kill; where its commands are
    not available, wait to be killed.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if not job:
        return
    try:
        state = _said("squeue", "--noheader", f"--jobs={job}", "--format=%T")
        if state in ("RUNNING", "SIGNALING"):  # else it was cancelled or reached its time limit
            _said("scontrol", "requeue", job)
    except (OSError, subprocess.SubprocessError):
        time.sleep(ENDED_S)


def _said(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=True).stdout.strip()


def _array(gang: BatchJob) -> str:
    numbers = ",".join(str(number) for number in gang.elements)
    return f"{numbers}%{gang.at_once}" if gang.at_once else numbers


def _standing(job: str, state: str, reason: str) -> JobStatus:
    text = f"Slurm job {job} is {state.lower().replace('_', ' ')}"
    if reason not in ("", "None"):
        text += f" ({reason})"
    phase = "waiting" if state in WAITING else "running" if state in RUNNING else "over"
    return JobStatus(phase, text, is_cancelled=state == "CANCELLED")


def _refusal(said: str) -> str:
    """Slurm's reason, from sbatch's output."""
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in said.strip().splitlines()]
    reasons = [line.removeprefix("Batch job submission failed: ") for line in lines if line]
    return f"Slurm refuses the job: {'; '.join(dict.fromkeys(reasons)) or 'no reason given'}"
