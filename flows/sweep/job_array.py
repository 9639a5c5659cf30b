"""`hydra/launcher=slurm`: run the points of a sweep as a Slurm job array, one array task for each.

An array task (flows/sweep/array_task.py) runs its point on its own node. This process writes the run's
tracker page when the point is finished, so compute nodes need no access to the tracker.
"""

import shlex

from atelier.engine.config.error import ConfigError, of_system
from atelier.engine.config.parallel import Parallel
from atelier.flows.run.compose import RunConfig
from atelier.flows.run.contexts import new_run_id
from atelier.flows.run.draw import collect_nodes
from atelier.flows.run.sweep_ledger import FAILED, PRUNED, STOPPED
from atelier.flows.sweep.executor import RESTARTS, Ask, Ending, Executor, RemoteExecutor, Running, Tell
from atelier.flows.sweep.pruning import Look
from atelier.infra.code.frozen import freeze
from atelier.infra.launch.batch_job import BatchJob, JobStatus
from atelier.infra.launch.slots import num_slots
from atelier.infra.launch.slurm import SlurmBatch
from atelier.infra.store.store import Store

FORGOTTEN = JobStatus("over", "Slurm no longer knows it")


def check_fits(frozen: RunConfig, store: Store) -> None:
    """Raises ConfigError if the pool is not Slurm's, or a task of the point needs several nodes."""
    pool = frozen.pool
    if pool.launcher != "slurm":
        raise ConfigError(
            "hydra/launcher", f"is slurm, but pool.launcher {pool.launcher!r}", "add pool=slurm"
        )
    if frozen.task_pools:
        raise ConfigError("pool.tasks", "an array's job runs all tasks of a point", "leave it out")
    slots = num_slots(pool)
    for node in collect_nodes(frozen, store):
        ranks = Parallel.model_validate(node.layout).most_ranks if node.layout else node.ranks
        room = ranks * (node.threads if pool.is_cpu else 1)
        if room > slots:
            raise ConfigError(
                "hydra/launcher",
                f"is slurm, which gives a point one node, but {node.name} needs {room} of its {slots} slots",
                "leave it out (each task is then a job over several nodes), or set pool.slots",
            )


class ArrayExecutor(RemoteExecutor):
    """Runs points in Slurm job arrays; `at_once` tasks of an array at a time, 0 = no limit."""

    def __init__(
        self, executor: Executor, ask: Ask, tell: Tell, status: Look | None, batch: SlurmBatch, at_once: int
    ) -> None:
        super().__init__(executor, ask, tell, status)
        self.batch, self.at_once = batch, at_once
        self._standing: dict[int, JobStatus] = {}

    def submit(self, new: list[Running]) -> None:
        try:
            self._submit(new)
        except OSError as error:  # from Slurm or the store
            raise of_system(error) from None

    def _submit(self, new: list[Running]) -> None:
        frozen, store = new[0].point.frozen, new[0].point.store
        fresh = [one for one in new if not self._is_adopted(one)]
        if not fresh:
            return
        for one in fresh:
            one.entry = self.executor.ledger.entry(one.point.number)
            one.entry.run, one.entry.job = new_run_id(), ""
            self.executor.ledger.write(one.entry)
        threads = [node.threads for one in fresh for node in one.point.nodes]
        array = BatchJob(
            id=self.executor.ledger.id,
            name=f"sweep-{self.executor.ledger.id}",
            root=store.root,
            nodes=1,
            ranks=num_slots(frozen.pool),
            threads=1 if frozen.pool.is_cpu else max(threads),
            module="atelier.flows.sweep.array_task",
            more=(freeze(store.root),),
            elements=tuple(one.point.number for one in fresh),
            at_once=self.at_once,
        )
        job = self.batch.submit(array)
        for one in fresh:
            one.entry.job = f"{job}_{one.point.number}"
            self.executor.ledger.write(one.entry)
            self.executor.say(
                f"#{one.entry.number}: {shlex.join(one.point.words)}   Slurm job {one.entry.job}"
            )

    def cancel(self, one: Running) -> None:
        if not one.is_cancelled:
            one.is_cancelled = True
            self.batch.end(one.entry.job)

    def watch(self) -> None:
        standings: dict[str, dict[int, JobStatus]] = {}
        for one in list(self.running):
            job = one.entry.job.partition("_")[0]
            try:
                if job not in standings:
                    standings[job] = self.batch.look_at_elements(job)
            except OSError:  # the next poll asks Slurm again
                return
            standing = standings[job].get(one.point.number, FORGOTTEN)
            if standing.phase != "over":
                self._say(one, standing)
                continue
            self.running.remove(one)
            self._ended(one, standing)

    def _is_adopted(self, one: Running) -> bool:
        entry = self.executor.ledger.entry(one.point.number)
        job, _, _ = entry.job.partition("_")
        if not job:
            return False
        if self.batch.look_at_elements(job).get(entry.number, FORGOTTEN).phase == "over":
            return False
        one.entry = entry
        self.executor.say(f"#{entry.number}: continues as Slurm job {entry.job}")
        return True

    def _say(self, one: Running, standing: JobStatus) -> None:
        if self._standing.get(one.point.number) != standing:
            self._standing[one.point.number] = standing
            self.executor.say(f"#{one.point.number}: {standing.text}")

    def _ended(self, one: Running, standing: JobStatus) -> None:
        if one.point.is_finished():
            self.executor.one_here(one.point, self.tell, self.look)  # all is published; writes the page
            return
        how = self.executor.ledger.end_of(one.entry.run) or {}
        if how.get("state") == FAILED:
            self.tell(one.point, Ending(FAILED, how.get("error", "")))
        elif one.looking.is_hopeless:
            self.tell(one.point, Ending(PRUNED))
        elif one.is_cancelled or standing.is_cancelled:
            self.tell(one.point, Ending(STOPPED, "" if one.is_cancelled else standing.text))
        elif how.get("has_moved") or (not how and one.attempts <= RESTARTS):
            one.attempts += not how
            self.executor.say(f"#{one.point.number}: {standing.text}; another job continues")
            self.running.append(one)
            self.submit([one])
        else:
            words = self.batch.last_words(one.entry.job)
            self.tell(one.point, Ending(FAILED, f"{standing.text} {words}".strip()))
