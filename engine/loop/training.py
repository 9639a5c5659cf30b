"""The loop. One gang, one clock, any number of roles on the same batches; what differs between trainings is
their roles.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine.artifact import Input
from engine.data.blend import Blend, Dataset
from engine.data.examples import Examples
from engine.data.windows import Windows
from engine.loop.build import House, auto_micro_batch, build_member, memory_gb
from engine.loop.feed import Feed, StepData
from engine.loop.look import HeldOut
from engine.loop.member import Member
from engine.loop.publish import TOKENIZER, check_digest, publish
from engine.loop.report import Curve, Report
from engine.loop.resume import Plan, plan_together, protected_steps, students_first
from engine.loop.retention import Retention
from engine.loop.save import Saver
from engine.loop.step import Circle, Outcome, circle_at, take_step
from engine.loop.stop import StopRequest
from engine.spec.error import ConfigError, DataError, StoppedError
from engine.spec.metric import MetricLine
from engine.spec.run import Stream, Training


@dataclass(frozen=True)
class Surroundings:
    """What is outside a training: where it is built, whom it tells, who may stop it, what a rank could
    compute at best.
    """

    house: House
    outputs: Mapping[str, str]
    report: Report
    stop: StopRequest
    peak_flops: float  # of one rank, a second; 0 = unknown


def run_training(training: Training, around: Surroundings) -> list[Member]:
    """Train all roles from where their checkpoints are to their ends and publish the wanted ones; returns the
    roles that took part.

    StoppedError after a clean stop: everything is in checkpoints then.
    """
    gang, train = around.house.gang, training.train
    around.house.layout.model_copy(update={"shard": gang.world // around.house.layout.replicate}).check_batch(
        train.global_batch, train.micro_batch
    )
    where = plan_together(training.members, gang.aside)
    chosen = {
        name: spec
        for name, spec in training.members.items()
        if name in where.steps or any(training.members[other].role.teacher == name for other in where.steps)
    }
    members = {
        name: build_member(name, spec, train=train, house=around.house) for name, spec in chosen.items()
    }
    if members:
        loop = Loop(training, members, where, around)
        loop.run()
        loop.publish()
    return list(members.values())


class Loop:
    def __init__(
        self, training: Training, members: dict[str, Member], where: Plan, around: Surroundings
    ) -> None:
        self.training, self.train, self.members, self.around = training, training.train, members, around
        self.gang, self.report = around.house.gang, around.report
        self.order = [members[name] for name in students_first(training.members) if name in members]
        self.end = max(member.end for member in self.order)
        self.protected = protected_steps(training.members)
        self.curves = {
            member.name: Curve(member.spec.segments, is_first=self.gang.is_first and member.is_kept)
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
        self._place(where)

    def _place(self, where: Plan) -> None:
        """Bring every role to its step and say where the gang begins."""
        for member in self.order:
            if where.has_checkpoint.get(member.name):
                self.saver.restore(member, where.steps[member.name])
        micro_batch = auto_micro_batch(self.train, self.gang)
        streams = self._streams()
        self.feed = Feed(
            Blend(streams, self.train.seed),
            global_batch=self.train.global_batch,
            micro_batch=micro_batch,
            last=self.end,
            gang=self.gang,
        )
        windows = self._held_out()
        self.held_out = HeldOut(
            windows, num_windows=self.train.eval_sequences, micro_batch=micro_batch, gang=self.gang
        )
        damages = {"damages": where.damages} if where.damages else {}
        is_resumed = any(where.has_checkpoint.values())
        self.report.say(resumed=self.begin if is_resumed else 0, **damages)
        compiled = [member.name for member in self.order if member.root.is_compiled]
        self.report.say(
            layout={
                "ranks": self.gang.world,
                "device": str(self.gang.device),
                "threads": torch.get_num_threads(),
                "micro_batch": micro_batch,
                "compiled": compiled,
            }
        )

    def _input(self, key: str) -> Input:
        inputs = self.around.house.inputs
        if key not in inputs:
            raise ConfigError("streams", f"no input {key!r}", f"inputs are: {', '.join(inputs) or 'none'}")
        return inputs[key]

    def _streams(self) -> list[tuple[Dataset, float]]:
        return [(self._open(stream, "train"), stream.weight) for stream in self.training.streams]

    def _open(self, stream: Stream, split: str) -> Dataset:
        source, scratch = self._input(stream.input), self.around.house.scratch
        if stream.kind == "windows":
            return Windows(source, scratch, split, self.train.sequence)
        tokenizer = self._input("tokenizer").file(TOKENIZER, scratch)
        return Examples(
            source,
            tokenizer,
            scratch,
            sequence=self.train.sequence,
            num_examples=stream.num_examples,
            draw=stream.draw,
            seed=self.train.seed,
            split=split,
        )

    def _held_out(self) -> list[tuple[Windows, float]]:
        scratch, sequence = self.around.house.scratch, self.train.sequence
        return [
            (Windows(self._input(stream.input), scratch, "held_out", sequence), stream.weight)
            for stream in self.training.streams
            if stream.kind == "windows"
        ]

    def run(self) -> None:
        """From `begin` to the end, or to a StoppedError."""
        try:
            self._save_if_due(self.begin)
            for clock in range(self.begin, self.end):
                began = time.perf_counter()
                data = self.feed.at(clock)
                num_scored, num_tokens = self._agree(data, clock)
                circle = circle_at(self.members, clock)
                outcomes = take_step(circle, data.batches, clock=clock, num_scored=num_scored, gang=self.gang)
                step_s = time.perf_counter() - began
                self._after(clock + 1, circle, outcomes, num_tokens, step_s, data.wait_s)
            self.saver.settle(is_last=True)
            for curve in self.curves.values():
                curve.flush()
        finally:
            self.feed.close()

    def _agree(self, data: StepData, clock: int) -> tuple[int, int]:
        """Scored and real tokens of the step over all ranks; stops all ranks here when any of them was asked
        to.
        """
        numbers = torch.tensor([data.num_scored, data.num_tokens, int(self.around.stop.is_asked)])
        num_scored, num_tokens, num_asked = self.gang.sum(numbers).tolist()
        if num_asked:
            self._stop(clock)
        if not num_scored:
            raise DataError(
                f"step {clock}: no token of its {self.train.global_batch} sequences is scored; "
                "train.sequence is too short"
            )
        return num_scored, num_tokens

    def _stop(self, clock: int) -> None:
        self._save(clock)
        self.saver.settle(is_last=True)
        self.report.say(stopped=self.report.before + clock)
        raise StoppedError(f"stopped at step {clock}")

    def _after(
        self,
        step: int,
        circle: Circle,
        outcomes: dict[str, Outcome],
        num_tokens: int,
        step_s: float,
        wait_s: float,
    ) -> None:
        """What follows a step: held-out looks, metric lines, a replay's proof, checkpoints, progress."""
        timing = self._timing(circle, num_tokens, step_s, wait_s)
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
            self._check_skipped(member)
            if member.spec.mode == "replay" and step == member.end and member.spec.digest:
                check_digest(member)
        self._save_if_due(step)
        losses = {name: outcome.loss for name, outcome in outcomes.items()}
        self.report.progress(step, step_s, losses, is_last=step == self.end)

    def _timing(self, circle: Circle, num_tokens: int, step_s: float, wait_s: float) -> dict[str, float]:
        timing = {
            "step_s": step_s,
            "tokens_per_s": num_tokens / step_s,
            "data_wait_s": wait_s,
            "checkpoint_stall_s": self.stall_s,
            "memory_gb": memory_gb(self.gang.device),
        }
        self.stall_s = 0.0
        if self.around.peak_flops:
            # a frozen teacher has no backward pass, which is two thirds
            each = sum(member.flops_per_token(self.train.sequence) for member in circle.all())
            timing["mfu"] = each * num_tokens / step_s / (self.around.peak_flops * self.gang.world)
        return timing

    def _look_if_due(self, member: Member, outcome: Outcome) -> None:
        # never where only another role has a checkpoint: metric values do not depend on who is in the gang
        every = self.train.eval_every or self.train.checkpoint_every
        if self.held_out.is_empty or (member.step % every and member.step != member.end):
            return
        outcome.eval_loss = member.last["eval/loss"] = self.held_out.loss(member)
        member.last["eval/step"] = member.step

    def _check_skipped(self, member: Member) -> None:
        if member.num_skipped:
            self.curves[member.name].flush()
            member.check_skipped()

    def _is_due(self, step: int) -> bool:
        return step % self.train.checkpoint_every == 0 or step in self.protected

    def _save_if_due(self, step: int) -> None:
        if self._is_due(step):
            self._save(step)

    def _save(self, step: int) -> None:
        """Checkpoint every kept role that stands at `step` and is not stored there yet, students before their
        teachers.
        """
        due = [
            member for member in self.order if member.is_kept and member.step == step != member.stored_step
        ]
        if due and step > 0:
            self.stall_s += self.saver.save(due, step)

    def publish(self) -> None:
        """Write the outputs of all roles that have one."""
        for member in self.order:
            if member.spec.output:
                url = self.around.outputs[member.spec.output]
                tokenizer = self.around.house.inputs.get("tokenizer")
                publish(member, url, tokenizer=tokenizer, scratch=self.around.house.scratch)
        self.gang.barrier()
