"""Facts about Slurm that the launcher relies on, seen on a real cluster: signals, restarts, errors and
leftovers. Prints the seconds that things took; `pytest -rP` shows them.
"""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flow.served import wait_for
from tests.service.slurm_cluster import GRACE_S, KILL_WAIT_S, Cluster, cluster, what_is_missing

pytestmark = [
    pytest.mark.root,
    pytest.mark.service,
    pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing() or "all is there"),
]

TASK = """\
say() { echo "$EPOCHREALTIME $1 $SLURMD_NODENAME ${SLURM_RESTART_COUNT:-0}"; }
trap 'say TERM; $AT_TERM' TERM; trap 'say USR1' USR1
say starts
for i in $(seq ${TENTHS:-600}); do sleep 0.1; done
say ends
"""
GANG = """\
trap 'echo batch TERM' TERM; trap 'echo batch USR1' USR1
srun --nodes=2 --ntasks-per-node=1 bash task.sh & gang=$!
until wait $gang; code=$?; ! kill -0 $gang 2>/dev/null; do :; done
echo "srun $code"; wait $gang
"""
TWO = ("--nodes=2", "--exclusive")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("slurm") / "c") as made:
        (made.folder / "task.sh").write_text(TASK)
        yield made


@pytest.fixture
def slurm(started: Cluster) -> Iterator[Cluster]:
    """The module's cluster, idle."""
    yield started
    started.clear()


def wait_output(slurm: Cluster, job: str, word: str, count: int, timeout_s: float = 60) -> None:
    """Wait until the job has written the word so often."""
    wait_for(lambda: slurm.output(job).count(word) >= count, timeout_s, f"{count} x {word!r} of job {job}")


def gang(slurm: Cluster, *options: str, script: str = GANG) -> str:
    """A job whose two tasks run, on two whole nodes."""
    job = slurm.submit(script, *TWO, *options)
    wait_output(slurm, job, " starts ", 2)
    return job


def test_a_job_of_two_nodes_has_a_task_on_each_that_knows_its_place_and_finds_the_other(
    slurm: Cluster,
) -> None:
    names = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)'  # unquoted, n[1-2] is a file pattern
    script = f"srun --ntasks-per-node=1 bash -c 'echo $SLURM_NODEID $(hostname) $(getent hosts {names})'"
    job = slurm.submit(script, *TWO)
    slurm.wait_state(job, "COMPLETED")
    told = sorted(line.split() for line in slurm.output(job).splitlines())
    assert told == [["0", "n1", "127.0.0.2", "n1"], ["1", "n2", "127.0.0.2", "n1"]]


@pytest.mark.parametrize("checked", [(), ("--test-only",)])
def test_a_wrong_request_is_refused_at_once_with_its_reason(slurm: Cluster, checked: tuple[str, ...]) -> None:
    for option, reason in {
        "--partition=nope": "Invalid partition name specified",
        "--constraint=nope": "Invalid feature specification",
        "--nodelist=n9": "Invalid node name specified",
        "--gpus-per-node=3": "Requested node configuration is not available",
    }.items():
        done = slurm.run("sbatch", *checked, option, "--wrap=true")
        assert (done.returncode, done.stdout) == (1, ""), done
        assert reason in done.stderr


def test_an_unknown_account_is_taken_where_slurm_keeps_no_accounts(slurm: Cluster) -> None:
    assert slurm.run("sbatch", "--test-only", "--account=nope", "--wrap=true").returncode == 0
    accounts = slurm.run("sacct")
    assert (accounts.returncode, accounts.stderr) == (1, "Slurm accounting storage is disabled\n")


def test_a_cancelled_gang_gets_sigterm_and_time_to_end_and_then_is_killed(slurm: Cluster) -> None:
    job = gang(slurm)
    start = time.monotonic()
    assert slurm.run("scancel", job).returncode == 0
    wait_output(slurm, job, " TERM ", 2)
    print(f"sigterm_s={time.monotonic() - start:.2f}")
    assert slurm.state(job) in ("COMPLETING", "CANCELLED")
    wait_for(lambda: not slurm.run("squeue", "--noheader").stdout, 60, "the end of the job")
    took_s = time.monotonic() - start
    print(f"cancelled_s={took_s:.2f}")
    assert slurm.state(job) == "CANCELLED" and took_s > KILL_WAIT_S - 1


@pytest.mark.parametrize(
    "options, batch, tasks",
    [((), 0, 2), (("--batch",), 1, 0), (("--full",), 1, 2)],
    ids=["", "batch", "full"],
)
def test_a_signal_reaches_the_tasks_or_the_batch_script_or_both(
    slurm: Cluster, options: tuple[str, ...], batch: int, tasks: int
) -> None:
    job = gang(slurm, "--export=ALL,TENTHS=20")
    slurm.run("scancel", "--signal=USR1", *options, job)
    slurm.wait_state(job, "COMPLETED")
    told = slurm.output(job)
    assert (told.count("batch USR1"), told.count(" USR1 n"), told.count(" ends ")) == (batch, tasks, 2)


def test_srun_kills_its_tasks_when_it_gets_sigterm_but_forwards_usr1(slurm: Cluster) -> None:
    job = gang(slurm, script="exec srun --ntasks-per-node=1 bash task.sh")
    slurm.run("scancel", "--signal=USR1", "--batch", job)
    wait_output(slurm, job, " USR1 ", 2)
    slurm.run("scancel", "--signal=TERM", "--batch", job)
    slurm.wait_state(job, "FAILED")
    assert " TERM " not in slurm.output(job) and "Killed" in slurm.output(job)


def test_a_preempted_gang_that_ends_within_the_grace_time_is_over_not_requeued(slurm: Cluster) -> None:
    job = gang(slurm, "--export=ALL,AT_TERM=exit 0")
    high = slurm.submit("true", "--partition=high", "--nodes=3", "--exclusive")
    slurm.wait_state(job, "COMPLETED")
    assert slurm.job(job)["Restarts"] == "0" and slurm.output(job).count(" TERM ") == 2
    assert "batch TERM" not in slurm.output(job)
    slurm.wait_state(high, "COMPLETED")


def test_a_preempted_gang_that_requeues_itself_goes_on_when_the_other_job_is_done(slurm: Cluster) -> None:
    again = f"{GANG}\n[ $code != 75 ] || scontrol requeue $SLURM_JOB_ID"
    job = gang(slurm, "--export=ALL,AT_TERM=exit 75,TENTHS=30", script=again)
    high = slurm.submit("date +%s.%N", "--partition=high", "--nodes=3", "--exclusive")
    slurm.wait_state(high, "COMPLETED")
    slurm.wait_state(job, "COMPLETED")
    lines = [line.split() for line in slurm.output(job).splitlines()]
    starts = [float(line[0]) for line in lines if line[1:2] == ["starts"] and line[3] == "1"]
    assert slurm.job(job)["Restarts"] == "1" and len(starts) == 2
    assert min(starts) > float(slurm.output(high))


def test_a_preempted_gang_that_works_on_is_killed_and_requeued_after_the_grace_time(slurm: Cluster) -> None:
    job = gang(slurm)
    high = slurm.submit("true", "--partition=high", "--nodes=3", "--exclusive")
    wait_output(slurm, job, " TERM ", 2)
    start = time.monotonic()
    assert slurm.state(job) == "RUNNING"
    slurm.wait_state(job, "PENDING")
    took_s = time.monotonic() - start
    print(f"requeued_s={took_s:.2f}")
    assert took_s > GRACE_S
    slurm.wait_state(high, "COMPLETED")
    wait_output(slurm, job, " starts ", 4)
    assert slurm.job(job)["Restarts"] == "1"


def test_an_array_with_a_limit_never_runs_more_at_once(slurm: Cluster) -> None:
    script = "echo +1; sleep 1; echo -1"
    job = slurm.submit(script, "--array=0-4%2")
    wait_output(slurm, job, "-1", 5)
    steps = [int(line) for line in slurm.output(job).split()]
    running = [sum(steps[: count + 1]) for count in range(len(steps))]
    assert max(running) == 2 and running[-1] == 0


def test_a_constraint_picks_the_node_that_has_the_feature(slurm: Cluster) -> None:
    assert slurm.run("srun", "--constraint=slow", "hostname").stdout == "n3\n"


def test_a_lost_node_is_noticed_and_its_job_starts_again_on_the_others(slurm: Cluster) -> None:
    job = gang(slurm)
    start = time.monotonic()
    slurm.kill_node("n2")
    wait_for(lambda: slurm.node_state("n2") == "down*", 60, "node n2 down")
    print(f"noticed_s={time.monotonic() - start:.2f}")
    wait_output(slurm, job, " starts n3 1", 1)
    print(f"restarted_s={time.monotonic() - start:.2f}")
    told = slurm.job(job)
    assert (told["NodeList"], told["Restarts"]) == ("n[1,3]", "1")


def test_a_lost_node_ends_a_job_that_must_not_be_requeued(slurm: Cluster) -> None:
    job = gang(slurm, "--no-requeue")
    slurm.kill_node("n2")
    slurm.wait_state(job, "NODE_FAIL")


def test_a_silent_node_works_on_beside_the_gang_that_takes_its_place(slurm: Cluster) -> None:
    job = gang(slurm)
    slurm.silence_node("n2")
    wait_output(slurm, job, " starts n3 1", 1)
    tasks = subprocess.run(["pgrep", "-cfx", ".*bin/bash task.sh"], capture_output=True, text=True).stdout
    slurm.kill_node("n2")
    assert int(tasks) == 3


def test_one_failed_task_ends_the_others_only_when_srun_is_told_so(slurm: Cluster) -> None:
    # 0.5 s: a task that has not started yet misses the signal; &&: sleep gets it too, maybe first
    task = "[ $SLURM_PROCID = 0 ] || { sleep 0.5; exit 3; }; sleep 2 && echo lived"
    both = ("srun", "--nodes=2", "--ntasks-per-node=1")
    lived = slurm.run(*both, "bash", "-c", task)
    killed = slurm.run(*both, "--kill-on-bad-exit=1", "bash", "-c", task)
    assert (lived.returncode, lived.stdout) == (3, "lived\n")
    assert (killed.returncode, killed.stdout) == (143, "")  # the greatest code: 128 + SIGTERM


def test_a_job_without_the_environment_hands_it_to_its_tasks_only_when_srun_is_told_so(
    slurm: Cluster,
) -> None:
    job = slurm.submit("srun true; srun --export=ALL bash -c 'echo $GIVEN $SECRET.'", "--export=GIVEN=1")
    slurm.wait_state(job, "COMPLETED")
    assert "execve(): true: No such file or directory" in slurm.output(job)
    assert slurm.output(job).endswith("1 .\n")


def test_a_job_that_nobody_knows_is_an_error_and_a_finished_one_keeps_its_state(slurm: Cluster) -> None:
    job = slurm.submit("exit 7")
    slurm.wait_state(job, "FAILED")
    told = slurm.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")
    assert (told.stdout, slurm.job(job)["ExitCode"]) == ("FAILED\n", "7:0")
    unknown = slurm.run("squeue", "--noheader", "--states=all", "--jobs=99999", "--format=%T")
    assert (unknown.returncode, unknown.stderr) == (1, "slurm_load_jobs error: Invalid job id specified\n")
    assert slurm.run("scancel", "99999").returncode == 0


def test_nothing_of_a_cluster_runs_afterwards(tmp_path: Path) -> None:
    with cluster(tmp_path / "c") as made:
        job = made.submit("setsid sleep 4242 & srun sleep 4242")
        made.wait_state(job, "RUNNING")
    for pattern in ("sleep 4242", str(tmp_path)):
        assert not subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True).stdout
