"""The training loop: one gang, one clock, any number of roles on the same batches; trainings differ only in
their roles.
"""

import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from atelier.engine.config.error import AtelierError, DataError, StoppedError
from atelier.engine.config.metric import MetricLine
from atelier.engine.config.run_file import FILE_BYTES, Training
from atelier.engine.loop.build import BuildContext, auto_micro_batch, build_member
from atelier.engine.loop.counts import Counts
from atelier.engine.loop.evaluation import HeldOut
from atelier.engine.loop.prefetch import Prefetcher, StepData
from atelier.engine.loop.publish import check_digest, publish
from atelier.engine.loop.replica_check import check_copies
from atelier.engine.loop.report import MetricLog, ProgressReport
from atelier.engine.loop.resume import ResumePoint, protected_steps, resume_point_together, students_first
from atelier.engine.loop.role_state import RoleState
from atelier.engine.loop.rollback import History, RolledBack, act, drop_later, part, pass_over, remember
from atelier.engine.loop.samples import Samples
from atelier.engine.loop.save import Retention, Saver
from atelier.engine.loop.step import StepGroup, StepOutcome, step_group_at, train_step
from atelier.engine.loop.stop import StopRequest
from atelier.engine.loop.straggler import StragglerDetector
from atelier.engine.plan.checks import at_step, check_layout, check_readers, check_schedules, check_teaching


@dataclass(frozen=True)
class TrainingServices:
    """Services used by a training: build context, outputs, progress reporter, stop request, peak FLOP/s of a
    rank.
    """

    build_context: BuildContext
    outputs: Mapping[str, str]
    report: ProgressReport
    stop: StopRequest
    peak_flops: float  # of one rank, a second; 0 = unknown
    began: float  # time.monotonic() from which the startup of this training is counted
    file_bytes: int = FILE_BYTES  # of weights in one file of a model that is published


def run_training(training: Training, services: TrainingServices) -> list[RoleState]:
    """Train all roles from their checkpoints to their ends and publish the requested outputs; returns the
    roles that took part.

    Raises StoppedError after a clean stop, with everything checkpointed.
    """
    gang, train = services.build_context.gang, training.train
    gang.heartbeat.rest("load")
    gang.heartbeat.watch(train.health.hang_s)
    roles = {name: member.role for name, member in training.members.items()}
    check_layout(services.build_context.layout, roles, train)
    check_teaching(roles)
    check_schedules({name: role for name, role in roles.items() if training.members[name].segments}, train)
    check_readers(roles, [stream.rows for stream in training.streams if stream.rows is not None])
    history = History()
    while True:
        try:
            return _run_from(history, training, services)
        except RolledBack as back:
            history = back.history
        gc.collect()  # free the old roles before they are built again


def _run_from(history: History, training: Training, services: TrainingServices) -> list[RoleState]:
    """Train from the newest checkpoints that fit `history`; raises RolledBack when a rollback extends it."""
    gang = services.build_context.gang
    where = resume_point_together(training.members, history.at_most, gang.aside)
    chosen = {
        name: spec
        for name, spec in training.members.items()
        if name in where.steps or any(training.members[other].role.teacher == name for other in where.steps)
    }
    members = {
        name: build_member(name, spec, training=training, build_context=services.build_context)
        for name, spec in chosen.items()
    }
    if members:
        loop = Loop(training, members, where, services, history)
        loop.run()
        gang.heartbeat.rest("publish")
        loop.publish()
    return list(members.values())


class Loop:
    def __init__(
        self,
        training: Training,
        members: dict[str, RoleState],
        where: ResumePoint,
        services: TrainingServices,
        history: History,
    ) -> None:
        self.training, self.train, self.members, self.services = training, training.train, members, services
        self.gang, self.report = services.build_context.gang, services.report
        self.order = [members[name] for name in students_first(training.members) if name in members]
        self.end = max(member.end for member in self.order)
        self.protected = protected_steps(training.members)
        self.curves = {
            member.name: MetricLog(member.spec.segments, is_first=self.gang.is_first and member.is_kept)
            for member in self.order
        }
        self.saver = Saver(
            retention=Retention(self.train, self.protected),
            curves=self.curves,
            gang=self.gang,
            report=self.report,
        )
        self.begin = where.clock(training.members)
        self.stall_s = 0.0
        self.has_begun = False
        self.straggler = StragglerDetector(self.gang, self.train.health.straggler)
        self.known: set[tuple[Any, ...]] = (
            set()
        )  # step configurations computed so far: role, distilling or not, batch and sequence
        self._place(where)
        self.outdated = remember(members, history)
        self.has_rolled_back = bool(history.bad)

    def _place(self, where: ResumePoint) -> None:
        """Bring every role to its resume step and report where the gang begins."""
        for member in self.order:
            if where.has_checkpoint.get(member.name):
                self.saver.restore(member, where.steps[member.name])
        build_context = self.services.build_context
        micro_batch = auto_micro_batch(self.train, build_context.layout, self.gang.device)

        def micro_batch_at(step: int) -> int:
            return auto_micro_batch(
                at_step(self.train, build_context.layout, step), build_context.layout, self.gang.device
            )

        samples = Samples(self.training, build_context.inputs, build_context.scratch)
        self.feed = Prefetcher(
            samples.blend,
            self.train,
            micro_batch_at,
            last=self.end,
            grid=build_context.grid("", is_student=False),
            num_parts=len(self.training.parts),
        )
        windows, rows, sources = samples.held_out()
        self.held_out = HeldOut(
            windows,
            rows,
            sources=sources,
            num_windows=self.train.eval_sequences,
            micro_batch=micro_batch,
            gang=self.gang,
        )
        damages = {"damages": where.damages} if where.damages else {}
        is_resumed = any(where.has_checkpoint.values())
        self.report.say(resumed=self.begin if is_resumed else 0, **damages)
        compiled = [
            member.name for member in self.order if member.body is not None and member.body.is_compiled
        ]
        self.report.say(
            layout={
                "ranks": self.gang.world,
                "device": str(self.gang.device),
                "threads": torch.get_num_threads(),
                "micro_batch": micro_batch,
                "compiled": compiled,
            }
        )

    def run(self) -> None:
        """Train from `begin` to the end, or until a StoppedError."""
        try:
            if self.outdated is not None:
                self._roll_back(self.outdated)
            if self.has_rolled_back:
                self._save(self.begin)  # else a run that is stopped again and again would roll back forever
            self._save_if_due(self.begin)
            for clock in range(self.begin, self.end):
                began = time.perf_counter()
                step_group, passing = part(step_group_at(self.members, clock), clock)
                is_usual = self._begin(step_group, clock)
                data = self.feed.at(clock)
                counts = self._agree(data, clock)
                outcomes: dict[str, StepOutcome] = {}
                if step_group.roots:
                    outcomes = train_step(
                        step_group, data.batches, clock=clock, counts=counts, gang=self.gang
                    )
                outcomes |= {member.name: pass_over(member) for member in passing}
                self.straggler.end(data.wait_s, is_usual=is_usual and not passing)
                step_s = time.perf_counter() - began
                self._after(clock + 1, step_group, outcomes, counts.tokens, step_s, data.wait_s)
            self.saver.settle(is_last=True)
            for curve in self.curves.values():
                curve.flush()
        finally:
            self.feed.close()

    def _begin(self, step_group: StepGroup, clock: int) -> bool:
        """Begin a step; returns whether this process has computed one like it, so that nothing is
        compiled.
        """
        sizes = self.train.at(clock)
        now = {(m.name, m.is_distilling(), sizes.global_batch, sizes.sequence) for m in step_group.all()}
        for member in step_group.all():
            member.scale_dropout(self.train.progressive.dropout_at(clock))
        is_usual, self.known = now <= self.known, self.known | now
        self.gang.heartbeat.begin(clock + 1, is_usual=is_usual)
        self.straggler.begin()
        return is_usual

    def _agree(self, data: StepData, clock: int) -> Counts:
        """Sum the step's counts over all ranks; stops all ranks here if any of them has a stop request.

        Raises StoppedError for that, DataError when no token of the step is scored.
        """
        own = data.counts.numbers()
        told = [int(self.services.stop.is_asked), *self.straggler.tell()]
        numbers = self.gang.sum(torch.tensor([*own, *told])).tolist()
        counts, (num_asked, *heard) = Counts.of_numbers(numbers[: len(own)]), numbers[len(own) :]
        if slow := self.straggler.slow_rank(heard):
            self.report.say(warning=f"step {clock + 1}: {slow}")
        if num_asked:
            self._stop(clock)
        if not counts.scored and not any(counts.parts):
            raise DataError(
                f"step {clock}: no token of its {self.train.global_batch} sequences is scored; "
                "train.sequence is too short"
            )
        return counts

    def _stop(self, clock: int) -> None:
        self._save(clock)
        self.saver.settle(is_last=True)
        self.report.say(stopped=self.report.before + clock)
        raise StoppedError(f"stopped at step {clock}")

    def _after(
        self,
        step: int,
        step_group: StepGroup,
        outcomes: dict[str, StepOutcome],
        num_tokens: int,
        step_s: float,
        wait_s: float,
    ) -> None:
        """After a step: held-out evaluation, metric lines, digest check of replays, checkpoints, progress."""
        timing = self._timing(step_group, num_tokens, self.train.at(step - 1).sequence, step_s, wait_s)
        for name, outcome in outcomes.items():
            member = self.members[name]
            member.tokens += num_tokens
            if member.is_kept:
                self._look_if_due(member, outcome)
                line = MetricLine(
                    step=step,
                    role=name,
                    tokens=member.tokens,
                    values=outcome.values(),
                    timing=timing | {"time": time.time()},
                )
                self.curves[name].add(line)
            if member.spec.mode == "replay" and step == member.end and member.spec.digest:
                check_digest(member, most=self.services.file_bytes)
        self._act(outcomes)
        every = self.train.health.digest_every
        if every and step % every == 0:
            self._check_copies(step)
        self._save_if_due(step)
        losses = {name: outcome.loss for name, outcome in outcomes.items() if not outcome.passed_over}
        self.report.progress(step, step_s, losses, is_last=step == self.end)

    def _timing(
        self, step_group: StepGroup, num_tokens: int, sequence: int, step_s: float, wait_s: float
    ) -> dict[str, float]:
        timing = {
            "step_s": step_s,
            "tokens_per_s": num_tokens / step_s,
            "data_wait_s": wait_s,
            "checkpoint_stall_s": self.stall_s,
        }
        if not self.has_begun:
            self.has_begun = True
            timing["startup_s"] = max(0.0, time.monotonic() - self.services.began - step_s)
        timing |= self.straggler.timing()
        self.stall_s = 0.0
        if self.services.peak_flops:
            # a frozen teacher has no backward pass, which is two thirds
            each = sum(member.flops_per_token(sequence) for member in step_group.all())
            timing["mfu"] = each * num_tokens / step_s / (self.services.peak_flops * self.gang.world)
        return timing

    def _look_if_due(self, member: RoleState, outcome: StepOutcome) -> None:
        # never at a step due only to another role's checkpoint: metrics do not depend on other roles
        every = self.train.eval_every or self.train.save_every
        if self.held_out.is_empty or (member.step % every and member.step != member.end):
            return
        outcome.looks = self.held_out.means(member)
        member.last |= outcome.looks | {"eval/step": member.step}
        member.held_out = self.held_out.name

    def _act(self, outcomes: dict[str, StepOutcome]) -> None:
        """Act as the roles' health settings say when a step went wrong."""
        bad = [name for name, outcome in outcomes.items() if outcome.bad]
        if not bad:
            return
        for name in bad:
            self.curves[name].flush()
        with self._settled_by_errors():
            history = act(self.members, outcomes, self.report)
        if history is not None:
            self._roll_back(history)

    @contextmanager
    def _settled_by_errors(self) -> Iterator[None]:
        """On an error of all ranks, finish the checkpoint that is under way before raising."""
        try:
            yield
        except AtelierError:
            self.saver.settle()
            raise

    def _check_copies(self, step: int) -> None:
        with self._settled_by_errors():
            check_copies(self.order, self.gang, step)

    def _roll_back(self, history: History) -> NoReturn:
        self.gang.heartbeat.rest("roll back")
        self.saver.settle()
        drop_later(self.order, history, self.gang)
        raise RolledBack(history)

    def _is_due(self, step: int) -> bool:
        return step % self.train.save_every == 0 or step in self.protected

    def _save_if_due(self, step: int) -> None:
        if self._is_due(step):
            self._save(step)

    def _save(self, step: int) -> None:
        """Checkpoint every kept role that is at `step` and not stored there yet, students first."""
        due = [
            member for member in self.order if member.is_kept and member.step == step != member.stored_step
        ]
        if due and step > 0:
            self.gang.heartbeat.rest("save")
            self._check_copies(step)
            self.stall_s += self.saver.save(due, step)

    def publish(self) -> None:
        """Write the outputs of all roles that have one."""
        for member in self.order:
            if member.spec.output:
                url = self.services.outputs[member.spec.output]
                publish(
                    member,
                    url,
                    inputs=self.services.build_context.inputs,
                    scratch=self.services.build_context.scratch,
                    most=self.services.file_bytes,
                )
        self.gang.barrier()
