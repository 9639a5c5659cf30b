"""Train every model that a run file describes: python -m atelier.engine.train run.json

A single process runs directly; a gang needs RANK and WORLD_SIZE in each process: `torchrun --nproc-per-node 8
-m atelier.engine.train run.json`, or Atelier's launcher. Started again, it resumes from the newest good
checkpoints. Exit codes: 0 done, 75 stopped on request with a checkpoint, 2 bad input, 1 failed. stdout: JSON
lines.
"""

import gc
import sys
import time
from dataclasses import replace
from pathlib import Path

from atelier.engine.config.base import parse
from atelier.engine.config.error import AllDivergedError, AtelierError, DivergedError, StoppedError, of_system
from atelier.engine.config.run_file import RunFile, SegmentAddress, Training, Trainings
from atelier.engine.io import source_check
from atelier.engine.io.artifact import open_input
from atelier.engine.io.process import began, leave, read_run, say_last
from atelier.engine.loop.build import BuildContext, build_roles
from atelier.engine.loop.diverged import not_published, together
from atelier.engine.loop.hooks import limits_of
from atelier.engine.loop.report import ProgressReport
from atelier.engine.loop.resume import resume_point_together
from atelier.engine.loop.role_state import RoleState
from atelier.engine.loop.rollback import History, RolledBack
from atelier.engine.loop.save import forget
from atelier.engine.loop.services import TrainingServices, check_training
from atelier.engine.loop.step import train_step
from atelier.engine.loop.stop import STOPPED, StopRequest
from atelier.engine.loop.training import Trainer
from atelier.engine.parallel.gang import Gang, start_gang


def train(run: RunFile, gang: Gang, stop: StopRequest) -> None:
    """Run all trainings in order; checkpoints are removed last, when everything is published. Diverged roles
    of one training do not stop the others. Raises DivergedError for them at the end, or AllDivergedError if
    nothing is published.
    """
    config = parse(Trainings, run.config, "config")
    scratch = Path(run.scratch)
    inputs = {key: open_input(url) for key, url in run.inputs.items()}
    build_context = BuildContext(
        gang=gang, layout=run.layout.for_world(gang.world), inputs=inputs, scratch=scratch
    )
    report = ProgressReport(total=sum(each.end for each in config.trainings), is_first=gang.is_first)
    services = TrainingServices(
        build_context=build_context,
        outputs=run.outputs,
        report=report,
        stop=stop,
        peak_flops=config.peak_tflops * 1e12,
        began=began(),
        file_bytes=config.file_bytes,
    )
    done: list[SegmentAddress] = []
    diverged: dict[str, AllDivergedError | DivergedError] = {}
    for number, training in enumerate(config.trainings):
        roles: list[RoleState] = []
        if number:
            gc.collect()  # free the roles of the training before
        try:
            roles = run_training(training, services)
        except (AllDivergedError, DivergedError) as error:
            names = ", ".join(member.output for member in training.members.values() if member.output)
            diverged[names] = error.with_traceback(None)  # a traceback would keep the roles in memory
        services = replace(services, began=time.monotonic())
        report.before += training.end
        if not training.train.keep:
            done += [segment for role in roles if role.is_kept for segment in role.spec.segments]
    forget(done, gang)
    if diverged:
        raise together(diverged, len(config.trainings))


def run_training(training: Training, services: TrainingServices) -> list[RoleState]:
    """Train all roles from their checkpoints to their ends and publish the requested outputs; returns the
    roles that took part. After a rollback it starts again from earlier checkpoints.

    Raises StoppedError after a clean stop, with everything checkpointed.
    """
    gang = services.build_context.gang
    gang.heartbeat.rest("load")
    gang.heartbeat.watch(training.train.health.hang_s)
    check_training(training, services)
    history = History()
    while True:
        try:
            return train_from(history, training, services)
        except RolledBack as back:
            history = back.history
        gc.collect()  # free the old roles before they are built again


def train_from(history: History, training: Training, services: TrainingServices) -> list[RoleState]:
    """One attempt, from the newest checkpoints that fit `history` to the end. Returns the roles that took
    part; none if everything is finished.

    All roles see the batches of one clock, the gang's step; roles that are ahead wait for it. A role is a
    network with optimiser, objectives and checkpointed decisions. Checkpoints are written every
    `train.checkpoint_every` steps, where another trajectory branches off, at the end, and before a stop.
    """
    gang, layout = services.build_context.gang, services.build_context.layout
    where = resume_point_together(  # a step for each role
        training.members, history.at_most, gang.aside, lambda: limits_of(training, layout)
    )
    roles = build_roles(training, where.steps, services.build_context)  # this rank's parts, initialised
    if not roles and where.diverged:
        raise not_published(where.diverged.values(), list(where.diverged))
    if not roles:
        return []
    trainer = Trainer(training, roles, services)  # data, held-out sets, metric files, checkpoints
    try:
        trainer.load(where, history)
        trainer.save_if_due(trainer.begin)
        for clock in trainer.diverged.clocks(trainer.begin, trainer.end):
            step = trainer.begin_step(
                clock
            )  # roles and data of the step; a stop request saves and raises StoppedError
            # forward, backward and update of every role, students beside their teacher; a bad step: no update
            outcomes = train_step(step.group, step.data.batches, clock=clock, counts=step.counts, gang=gang)
            outcomes |= trainer.after_step(step)  # extensions step the roles that they own
            outcomes |= step.passed_over()  # roles that leave this step out, rolled back or away
            trainer.measure(step, outcomes)
            trainer.exchange(step, outcomes)  # exchange with others, if an extension does
            trainer.evaluate_if_due(outcomes)
            trainer.log(step, outcomes)  # a metric line of every role
            trainer.act_on_faults(step, outcomes)  # after a bad step: continue, raise RolledBack, or end
            trainer.save_if_due(clock + 1)
            trainer.show_progress(step, outcomes)
        trainer.settle()  # the last checkpoints are written
    finally:
        trainer.stop_reading()
    trainer.publish()
    return list(roles.values())


def main(arguments: list[str]) -> int:
    """Train what the run file, the only argument, describes; returns the exit code."""
    (path,) = arguments
    run: RunFile | None = None
    try:
        run = read_run(path)
        source_check.check_sources(run.sources)
        stop = StopRequest(Path(run.scratch))
        stop.watch_supervisor()
        gang = start_gang(run.layout, run.gpu)
        stop.listen()
        train(run, gang, stop)
    except StoppedError:
        return STOPPED
    except (AtelierError, OSError) as problem:
        error = of_system(problem) if isinstance(problem, OSError) else problem
        say_last(run, error)
        return error.exit_code
    gang.close()
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
