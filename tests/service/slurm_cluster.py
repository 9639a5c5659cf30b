"""A real Slurm cluster of several nodes on one machine: munged, slurmctld and one slurmd a node.

Each node is a machine of its own as far as a job can tell: its own host name (UTS namespace), process tree
(PID namespace) and loopback address, which `/etc/hosts` of every node resolves. Nodes share the file system.
Losing a node means losing all its processes at once, as in a power cut; leaving the cluster loses every node.
Needs root and Debian's `slurm-wlm` and `munge`; writes only below the given folder.
"""

import os
import re
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.flow.served import wait_for
from tests.ports import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "unshare", "setpriv")
NODES = ("n1", "n2", "n3")
KILL_WAIT_S = 5  # from SIGTERM to SIGKILL when a job reaches its time limit or its requeue
GRACE_S = 4  # at least so long from SIGTERM to the requeue when `high` needs the nodes of a job in `low`
SILENT_S = 6  # without an answer from slurmd, a node is down; measured: 16 s with ANSWER_S = 5, 10 s with 2
ANSWER_S = 5  # for one message; with 2, a busy machine loses the message that frees a node, for a minute
REQUEUE_S = 5  # a requeued job waits so long before it starts again; Slurm's own default is 120
REMEMBER_S = 300  # Slurm's default: a finished job is listed by scontrol and squeue --states for so long
PATH_LIMIT = 70  # characters of the folder's path: sockets lie in it, and a socket's path has at most 107

SETTINGS = """\
ClusterName=atelier
SlurmctldHost=controller(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={requeue}
StateSaveLocation={folder}/controller
SlurmctldPidFile={folder}/controller/pid
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n/pid
SlurmdParameters=config_overrides
SlurmdTimeout={silent}
MessageTimeout={answer}
KillWait={kill_wait}
MinJobAge={remember}
ReturnToService=2
CommunicationParameters=NoCtldInAddrAny
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
GresTypes=gpu
"""


class Cluster:
    """Nodes n1, n2, n3 of 4 cores and 2 pretended GPUs each; partitions `low` (the default) and `high`.

    `low` gives way: its jobs get SIGTERM, GRACE_S later they are requeued. n1 and n2 have the feature `fast`,
    n3 has `slow`.
    """

    def __init__(self, folder: Path) -> None:
        if len(str(folder)) > PATH_LIMIT:
            raise ValueError(f"{folder} has {len(str(folder))} characters, sockets allow {PATH_LIMIT}")
        self.folder, self.nodes = folder, NODES
        self._ports = {name: free_port() for name in ("controller", *NODES)}
        self._machines: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """The caller's environment, for Slurm's commands on this cluster."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SRUN"))}
        return kept | {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *words: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands to its end, in the cluster's folder."""
        return subprocess.run(
            words, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=timeout_s
        )

    def submit(self, script: str, *options: str) -> str:
        """The id of the batch job that runs the lines of bash; its output goes to `<id>.out`."""
        file = self.folder / "job.sh"
        file.write_text(f"#!/bin/bash\n{script}\n")
        done = self.run("sbatch", "--parsable", "--output=%A.out", "--open-mode=append", *options, str(file))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().split(";")[0]

    def output(self, job: str) -> str:
        """What the batch job has written so far."""
        file = self.folder / f"{job}.out"
        return file.read_text() if file.exists() else ""

    def job(self, job: str) -> dict[str, str]:
        """What `scontrol show job` says, by its own names: JobState, Restarts, ExitCode, NodeList ..."""
        told = self.run("scontrol", "--oneliner", "show", "job", job)
        assert told.returncode == 0, told.stderr
        return dict(re.findall(r"(?:^| )([A-Z][\w/:]*)=(\S*)", told.stdout))

    def state(self, job: str) -> str:
        """The job's state in capitals: PENDING, RUNNING, COMPLETING, COMPLETED, CANCELLED ..."""
        return self.job(job)["JobState"]

    def wait_state(self, job: str, *states: str, timeout_s: float = 60) -> str:
        """Wait until the job is in one of the states."""

        def reached() -> str | None:
            state = self.state(job)
            return state if state in states else None

        return wait_for(reached, timeout_s, f"job {job} in {' or '.join(states)}")

    def node_state(self, name: str) -> str:
        """The node's state: idle, mixed, allocated, completing, down; a `*` when it does not answer."""
        told = self.run("sinfo", "--noheader", "--nodes", name, "--format=%T").stdout  # a line a partition
        return told.partition("\n")[0]

    def start_node(self, name: str) -> None:
        """Start the node and wait until the controller may use it."""
        command = ("slurmd", "-D", "-N", name)
        self._start(name, *command)
        wait_for(lambda: self.node_state(name) in ("idle", "mixed"), 60, f"node {name} in the cluster")

    def kill_node(self, name: str) -> None:
        """End all the node's processes at once, slurmd and the jobs' steps; returns when none is left."""
        machine = self._machines.pop(name)
        for first in _children(machine.pid):  # of the node's PID namespace: the kernel ends the others
            os.kill(first, signal.SIGKILL)
            break
        else:
            machine.kill()
        machine.wait(30)

    def silence_node(self, name: str) -> None:
        """End the node's slurmd alone: the controller gets no answer from it, but its tasks work on."""
        [first] = _children(self._machines[name].pid)
        for child in _children(first):
            if Path(f"/proc/{child}/comm").read_text() == "slurmd\n":
                os.kill(child, signal.SIGKILL)

    def start(self) -> None:
        """Write the configuration, start all daemons and wait until every node is idle."""
        self._configure()
        key, socket = self.folder / "munge.key", self.folder / "munge.socket"
        files = [f"--{part}-file={self.folder}/munge.{part}" for part in ("pid", "log", "seed")]
        munged = ("munged", "--foreground", "--force", "--num-threads=4", f"--key-file={key}", *files)
        self._start("munge", *munged, f"--socket={socket}")
        wait_for(socket.exists, 30, "the socket of munged")
        self._start("controller", "slurmctld", "-D")
        for name in self.nodes:
            self._start(name, "slurmd", "-D", "-N", name)
        self._wait_idle(60)

    def clear(self) -> None:
        """Cancel every job, wait until all are gone and every node is idle; start the nodes that are dead."""
        self.run("scancel", "--user=root")
        for name in self.nodes:
            if name not in self._machines:
                self.start_node(name)
        self._wait_idle(150)  # the controller asks a node only every minute whether its steps have ended

    def stop(self) -> None:
        """End every job, daemon and process of the cluster."""
        for name in reversed(list(self._machines)):
            self.kill_node(name)

    def _wait_idle(self, timeout_s: float) -> None:
        wait_for(lambda: all(self.node_state(name) == "idle" for name in self.nodes), timeout_s, "idle nodes")

    def _start(self, name: str, *command: str) -> None:
        """Run the command on a machine of that name, which ends with this process at the latest."""
        prepare = 'hostname "$0"; mount --bind "$1" /etc/hosts; shift; "$@" & wait; sleep infinity & wait'
        unshare = ("unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        words = ("setpriv", "--pdeathsig=KILL", *unshare, "bash", "-c", prepare, name, self.folder / "hosts")
        with open(self.folder / f"{name}.log", "ab") as log:
            self._machines[name] = subprocess.Popen(
                (*words, *command),
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _configure(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "controller").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        hosts = ["127.0.0.1 localhost controller munge"]
        nodes, gpus = [], []
        for place, name in enumerate(self.nodes):
            (self.folder / name).mkdir()
            address = f"127.0.0.{place + 2}"
            hosts.append(f"{address} {name}")
            feature = "slow" if place == 2 else "fast"
            nodes.append(
                f"NodeName={name} NodeAddr={address} Port={self._ports[name]} CPUs=4 RealMemory=1000 "
                f"Gres=gpu:2 Feature={feature}"
            )
            gpus.append(f"NodeName={name} Name=gpu File={self.folder}/gpu[0-1]")
        for gpu in ("gpu0", "gpu1"):
            os.mknod(self.folder / gpu, 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # as /dev/null
        every = ",".join(self.nodes)
        partitions = (
            f"PartitionName=low Default=YES Nodes={every} PriorityTier=1 PreemptMode=REQUEUE "
            f"GraceTime={GRACE_S}",
            f"PartitionName=high Nodes={every} PriorityTier=2 PreemptMode=OFF",
        )
        settings = SETTINGS.format(
            folder=self.folder,
            controller_port=self._ports["controller"],
            requeue=REQUEUE_S,
            silent=SILENT_S,
            answer=ANSWER_S,
            kill_wait=KILL_WAIT_S,
            remember=REMEMBER_S,
        )
        (self.folder / "slurm.conf").write_text("\n".join([settings, *nodes, *partitions, ""]))
        (self.folder / "gres.conf").write_text("\n".join([*gpus, ""]))
        (self.folder / "hosts").write_text("\n".join([*hosts, ""]))


def _children(pid: int) -> list[int]:
    """Process ids of the children of a process with one thread."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def what_is_missing() -> str:
    """Why no cluster can be started here; empty when one can."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return "" if os.geteuid() == 0 else "needs root"


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster whose nodes are idle; afterwards nothing of it runs."""
    made = Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()
