"""Everything around a training's steps: loop state besides the roles, and work due before and after a step.
The loop itself is in engine/train.py.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import NoReturn

import torch

from atelier.engine.config.base import Json
from atelier.engine.config.error import AtelierError, DataError, StoppedError
from atelier.engine.config.metric import MetricLine
from atelier.engine.config.run_file import Training
from atelier.engine.loop.counts import Counts
from atelier.engine.loop.diverged import Diverged
from atelier.engine.loop.hooks import HookContext, Hooks
from atelier.engine.loop.prefetch import StepData
from atelier.engine.loop.profile import Profiler
from atelier.engine.loop.publish import check_digest, publish
from atelier.engine.loop.replica_check import check_copies
from atelier.engine.loop.report import MetricLog
from atelier.engine.loop.resume import ResumePoint, protected_steps, students_first
from atelier.engine.loop.role_state import RoleState
from atelier.engine.loop.rollback import History, RolledBack, act, drop_later, part, pass_over, remember
from atelier.engine.loop.save import Retention, Saver
from atelier.engine.loop.services import TrainingServices
from atelier.engine.loop.step import StepGroup, StepOutcome, step_group_at
from atelier.engine.loop.straggler import StragglerDetector
from atelier.engine.loop.training_data import TrainingData

Outcomes = dict[str, StepOutcome]  # by role, students first


@dataclass
class LoopStep:
    """A step that has begun: roles that take it, roles that pass it over, and its data on this rank."""

    clock: int  # roles advance from `clock` to `clock + 1` steps
    group: StepGroup
    passing: list[RoleState]
    data: StepData
    counts: Counts  # of all ranks
    began: float  # time.perf_counter()
    is_usual: bool  # this process has computed a similar one, so nothing is compiled
    later: list[list[StepGroup]] = field(default_factory=list)  # groups of each extension's roles
    read: dict[str, Counts] = field(default_factory=dict)  # by these roles
    timing: dict[str, float] = field(default_factory=dict)  # times, once it has ended

    def passed_over(self) -> Outcomes:
        """Advance the roles that pass the step over."""
        return {member.name: pass_over(member) for member in self.passing}


class Trainer:
    """The steps of a training from its resume point to its end, on one gang and one clock."""

    def __init__(self, training: Training, members: dict[str, RoleState], services: TrainingServices) -> None:
        self.training, self.train = training, training.train.here()
        self.members, self.services = members, services
        self.gang, self.report = services.build_context.gang, services.report
        self.order = [members[name] for name in students_first(training.members) if name in members]
        context = services.build_context
        self.data = TrainingData(training, context)
        self._until = training.until or None
        self.hooks = Hooks(HookContext(training, members, context, self.data, services.stop, self._warn))
        self.begin = self.end = max(self.hooks.last, *(member.end for member in self.order))
        self.data.end = self.end
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
        self.stall_s = 0.0
        self.has_begun = False
        self.ended: list[RoleState] = []  # roles that take no step here
        self.profiler = Profiler(self.train.profile, self.gang, self.order, context.scratch, self.report)
        self.straggler = StragglerDetector(self.gang, self.train.health.straggler)
        self.known: set[tuple[str, ...]] = set()  # computed so far: role, active objectives, sizes
        goes_on = not self.hooks.needs_all
        self.diverged = Diverged(self.order, self.train.health, self.report, goes_on=goes_on)

    def _warn(self, text: str) -> None:
        self.report.say(warning=text)

    def load(self, where: ResumePoint, history: History) -> None:
        """Bring every role to its resume point, where the gang's clock begins.

        Raises RolledBack if a checkpoint is past a bad step that another one lists.
        """
        self.diverged.remember(where.diverged)
        self.begin = where.clock(self.training.members)
        self.ended = [member for member in self.order if where.steps.get(member.name) == member.end]
        self.begin = self.hooks.start(self.begin)
        for member in self.order:
            if where.has_checkpoint.get(member.name):
                self.saver.restore(member, where.steps[member.name])
                self.hooks.restored(member)
        damages = {"damages": where.damages} if where.damages else {}
        self.report.say(resumed=self.begin if any(where.has_checkpoint.values()) else 0, **damages)
        for text in self.data.notes():
            self._warn(text)
        compiled = [one.name for one in self.order if one.body is not None and one.body.is_compiled]
        self.report.say(
            layout={
                "ranks": self.gang.world,
                "device": str(self.gang.device),
                "threads": torch.get_num_threads(),
                "micro_batch": self.data.micro_batch,
                "compiled": compiled,
                "on_disk": [member.name for member in self.order if member.body and member.body.owners],
                "streamed": [member.name for member in self.order if member.body and member.body.is_streamed],
            }
        )
        if (outdated := remember(self.members, history)) is not None:
            self._roll_back(outdated)
        if history.bad:
            self._save(self.begin)  # otherwise a run stopped again and again would roll back forever

    def begin_step(self, clock: int) -> LoopStep:
        """Choose the roles of a step, fetch its data and agree on its counts.

        Raises StoppedError, with everything checkpointed, if any rank was asked to stop; DataError if no
        token is scored.
        """
        self.hooks.before_step(clock)
        began = time.perf_counter()
        later = self.hooks.begin(clock)
        group, passing = part(step_group_at(self.hooks.others, clock), clock)
        if self.hooks.sits_out(clock):
            return self._passed_over(clock, [*group.moving(), *passing], began)
        sizes = self.train.at(clock)
        every = [member for each in (group, *chain(*later)) for member in each.all()]
        now = {(m.name, *m.mix(), f"{sizes.global_batch} x {sizes.sequence}") for m in every}
        for member in every:
            member.scale_dropout(self.train.progressive.dropout_at(clock))
        is_usual, self.known = now <= self.known, self.known | now
        self.gang.heartbeat.begin(clock + 1, is_usual=is_usual)
        self.straggler.begin()
        self.profiler.begin(clock + 1)
        with self.gang.regions("data"):
            data = self.data.at(clock)
        counts = self._agree(data, clock)
        return LoopStep(clock, group, passing, data, counts, began, is_usual, later)

    def after_step(self, step: LoopStep) -> Outcomes:
        """Take the step of extensions' roles."""
        outcomes, step.read = self.hooks.after_step(step.later, step.clock, step.data, step.counts)
        return outcomes

    def _passed_over(self, clock: int, passing: list[RoleState], began: float) -> LoopStep:
        """A step that all roles leave out."""
        self.gang.heartbeat.rest("wait")
        self.straggler.begin()
        self.profiler.begin(clock + 1)
        counts = Counts(0, 0, *[(0,) * len(self.training.parts)] * 2)
        if clock == self._until or self.gang.from_first(self.services.stop.is_asked):
            self._stop(clock)
        nothing = StepData([], counts)
        return LoopStep(clock, StepGroup((), {}), passing, nothing, counts, began, is_usual=False)

    def _agree(self, data: StepData, clock: int) -> Counts:
        """Sum the step's counts over all ranks. Raises StoppedError if any rank has a stop request, DataError
        if no token of the step is scored.
        """
        own = data.counts.numbers()
        told = [int(self.services.stop.is_asked), *self.straggler.tell()]
        numbers = self.gang.sum(torch.tensor([*own, *told])).tolist()
        counts, (num_asked, *heard) = Counts.of_numbers(numbers[: len(own)]), numbers[len(own) :]
        if slow := self.straggler.slow_rank(heard):
            self.report.say(warning=f"step {clock + 1}: {slow}")
        self.hooks.timed(clock, heard[: self.gang.world])
        if num_asked or clock == self._until:
            self._stop(clock)
        if not counts.scored and not any(counts.parts):
            raise DataError(
                f"step {clock}: no token of its {self.train.global_batch} sequences is scored; "
                "train.sequence is too short"
            )
        return counts

    def _stop(self, clock: int) -> NoReturn:
        self._save(clock)
        self.saver.settle(is_last=True)
        self.report.say(stopped=self.report.before + clock)
        raise StoppedError(f"stopped at step {clock}")

    def measure(self, step: LoopStep, outcomes: Outcomes) -> None:
        """Count the step's tokens and measure its times."""
        self.straggler.end(step.data.wait_s, is_usual=step.is_usual and not step.passing)
        step.timing = self._timing(step, time.perf_counter() - step.began)
        for name in outcomes:
            self.members[name].tokens += step.read.get(name, step.counts).tokens

    def _timing(self, step: LoopStep, step_s: float) -> dict[str, float]:
        timing = {
            "step_s": step_s,
            "data_wait_s": step.data.wait_s,
            "checkpoint_stall_s": self.stall_s,
        }
        if step.counts.tokens:
            timing["tokens_per_s"] = step.counts.tokens / step_s
        if not self.has_begun:
            self.has_begun = True
            timing["startup_s"] = max(0.0, time.monotonic() - self.services.began - step_s)
        timing |= self.straggler.timing()
        self.stall_s = 0.0
        if self.services.peak_flops and step.counts.tokens:
            # a frozen teacher has no backward pass, two thirds of the FLOPs
            sequence = self.train.at(step.clock).sequence
            every = [member for group in (step.group, *chain(*step.later)) for member in group.all()]
            each = sum(member.flops_per_token(sequence) for member in every)
            peak = self.services.peak_flops * self.gang.world
            timing["mfu"] = each * step.counts.tokens / step_s / peak
        return timing

    def exchange(self, step: LoopStep, outcomes: Outcomes) -> None:
        """Let extensions exchange the step's results with others."""
        step_s = step.timing["step_s"] if step.is_usual else 0.0  # the first one is not representative
        step.timing |= self.hooks.exchange(step.clock, outcomes, step_s)

    def evaluate_if_due(self, outcomes: Outcomes) -> None:
        """Add held-out means to the outcomes of roles that are due. A step due only to another role's
        checkpoint does not count: metrics do not depend on other roles.
        """
        every = self.train.eval_every or self.train.save_every
        for name, outcome in outcomes.items():
            member = self.members[name]
            is_due = member.step % every == 0 or member.step == member.end
            if member.is_kept and is_due and not self.data.held_out.is_empty:
                with self.gang.regions(f"evaluate {name}"):
                    outcome.looks = self.data.held_out.means(member)
                with self._settled_by_errors():
                    self.diverged.check_held_out(member, outcome.looks)
                member.last |= outcome.looks | {"eval/step": member.step}
                member.held_out = self.data.held_out.name

    def log(self, step: LoopStep, outcomes: Outcomes) -> None:
        """Write a metric line for every kept role."""
        for name, outcome in outcomes.items():
            member = self.members[name]
            if member.is_kept:
                line = MetricLine(
                    step=step.clock + 1,
                    role=name,
                    tokens=member.tokens_of_all,
                    values=outcome.values(),
                    timing=step.timing | self.hooks.timing(name) | {"time": time.time()},
                    device=self.gang.device_name,
                )
                self.curves[name].add(line)

    def act_on_faults(self, step: LoopStep, outcomes: Outcomes) -> None:
        """Act on bad steps by the health settings; compare replayed teachers with their digests, and replicas
        of weights.

        Raises RolledBack, or AtelierError if training has to stop.
        """
        for name in outcomes:
            member = self.members[name]
            if step.clock + 1 == member.end:
                self._check_replayed(member)
        bad = [name for name, outcome in outcomes.items() if outcome.bad]
        for name in bad:
            self.curves[name].flush()
        if bad:
            with self._settled_by_errors():
                history = act(self.members, outcomes, self.report, self.diverged)
            if history is not None:
                self._roll_back(history)
        every = self.train.health.digest_every
        if every and (step.clock + 1) % every == 0:
            self._check_copies(step.clock + 1)

    def _check_replayed(self, member: RoleState) -> None:
        if member.spec.mode == "replay" and member.spec.digest:
            check_digest(member, most=self.services.file_bytes)

    @contextmanager
    def _settled_by_errors(self) -> Iterator[None]:
        """On an error of all ranks, finish the checkpoint under way before raising."""
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

    def save_if_due(self, step: int) -> None:
        """Checkpoint the roles at `step`, every `checkpoint_every` steps and at branch points."""
        if step % self.train.save_every == 0 or step in self.protected:
            self._save(step)

    def _save(self, step: int) -> None:
        """Checkpoint every kept role at `step` that is not stored there yet, students first."""
        due = [member for member in self.order if member.is_to_be_saved(step)]
        if due and step > 0:
            self.gang.heartbeat.rest("save")
            with self.gang.regions("checkpoint"):
                self._check_copies(step)
                self.stall_s += self.saver.save(due, step)

    def show_progress(self, step: LoopStep, outcomes: Outcomes) -> None:
        """Print progress after the step."""
        losses = {name: outcome.loss for name, outcome in outcomes.items() if not outcome.passed_over}
        self.report.progress(
            step.clock + 1, step.timing["step_s"], losses, is_last=step.clock + 1 == self.end
        )
        self.profiler.end(step.clock + 1)

    def settle(self) -> None:
        """Wait until the last checkpoints are written, and close the metric files."""
        self.saver.settle(is_last=True)
        for curve in self.curves.values():
            curve.flush()

    def stop_reading(self) -> None:
        """End the prefetching thread and the profiler."""
        self.data.close()
        self.hooks.close()
        self.profiler.close()

    def _data_summary(self, member: RoleState) -> dict[str, Json]:
        """Entries on data for a role's summary."""
        if not self.gang.is_first:
            return {}
        steps = range(member.start, member.end if member.health.rolled_back else member.start)
        left_out = [step for step in steps if member.health.passes_over(step + 1)]
        return {**self.data.summary(), **self.data.consumed(member.start, member.end, left_out)}

    def publish(self) -> None:
        """Write the outputs of all roles that have one, once no extension waits for others.

        Raises StoppedError if a stop was requested before, DivergedError if roles were ended.
        """
        if self.hooks.needs_all:
            for member in self.ended:  # others were checked when they ended
                self._check_replayed(member)
        self.hooks.conclude(self.end)
        self.gang.heartbeat.rest("publish")
        for member in self.order:
            if member.spec.output and not member.has_diverged:
                url = self.services.outputs[member.spec.output]
                publish(
                    member,
                    url,
                    inputs=self.services.build_context.inputs,
                    scratch=self.services.build_context.scratch,
                    most=self.services.file_bytes,
                    rows=self._data_summary(member),
                )
        self.gang.barrier()
        self.hooks.finish()
        self.diverged.check()
