"""Training state of one role: network, optimiser, step and the state stored in its checkpoints."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import zip_longest
from pathlib import Path

import torch
from torch import Tensor

from atelier.engine.checkpoint.state import Nested, State, Tree
from atelier.engine.config.error import ConfigError
from atelier.engine.config.mixture import WINDOWS, MixturePart
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.registry import ObjectiveSpec
from atelier.engine.config.run_file import Member as MemberSpec
from atelier.engine.config.run_file import SegmentAddress
from atelier.engine.config.seed import seed_of
from atelier.engine.config.train import Train
from atelier.engine.loop.attachments import Attachment, GradientHandler, Inbox, RemoteOutputs, Tap
from atelier.engine.loop.computed_by import ComputedBy
from atelier.engine.loop.counts import Counts
from atelier.engine.loop.decisions import HealthDetector, TeacherLead
from atelier.engine.loop.stage import After, RoleModel, Seen, StepWork
from atelier.engine.loop.weights import RoleWeights
from atelier.engine.model.contract import Model
from atelier.engine.model.transformer import noise_keys
from atelier.engine.objective.chunked import Mix
from atelier.engine.objective.load import RIGHT, logged, reads_teacher_logits
from atelier.engine.parallel.compute import Precision, computed_in
from atelier.engine.parallel.context import own_tokens
from atelier.engine.parallel.grid import Grid

ALL = "*"  # name of the cross-entropy of all scored tokens, if objective lm reads some rows or has a z-loss
NOISE = (("noise_BT", "tokens_BT"), ("encoder_noise_BU", "encoder_tokens_BU", "encoder"))


class RoleState:
    """A role after `step` steps of the gang's clock. It trains only while the clock is at its step. On ranks
    that hold no part of it, `body` is None. `plain`: the model on the meta device.
    """

    def __init__(
        self,
        name: str,
        spec: MemberSpec,
        *,
        grid: Grid,
        body: RoleModel | None,
        weights: RoleWeights,
        plain: Model,
        precision: Precision,
        seed: int,
        health: HealthDetector,
        train: Train,
        parts: Sequence[MixturePart] = (),
        settled: int = 0,
    ) -> None:
        self.name, self.spec, self.role = name, spec, spec.role
        self.grid, self.gang, self.seed = grid, grid.gang, seed
        self.body, self.weights, self.sums = body, weights, plain.sums()
        self.measured = plain.measured
        self.precision: Precision = precision
        self.settings = train
        self.parts = tuple(parts)
        self.health = health
        self.begins_with_states = False  # optimiser states of its start model
        self.remote: RemoteOutputs | None = None  # remote teacher's outputs of this step
        self.attached: dict[str, Attachment] = {}  # extensions' objects by name, stored in its checkpoints
        self.inboxes: dict[str, Inbox] = {}  # inboxes of remote teachers, by lesson
        self.start, self.end = int(spec.role.start), end_of(spec)
        self.step = self.start
        self.stored_step = -1  # newest checkpoint that this process read or began to write
        self.durable_steps: tuple[int, int] = (-1, -1)  # the two newest complete checkpoints
        self.lead = TeacherLead(spec.role.gate, self.start, settled) if spec.role.teacher else None
        self.tokens = self.forwards = self.teacher_forwards = self.num_skipped = 0
        self.computed_by = ComputedBy(spec, computed_in(precision, grid.gang.device))
        self.last: dict[str, float] = {}  # loss and eval/loss as last measured; eval/step: step of eval/loss
        self.has_diverged = False  # takes no more steps
        self.held_out = ""  # name of the windows of the last eval/loss
        self._check()

    def _check(self) -> None:
        alone = [spec for spec in self.role.objective.values() if not type(spec).needs_teacher]
        if self.role.gate != "open" and not alone:
            raise ConfigError(
                f"roles.{self.name}.gate",
                f"nothing is optimised until it opens at {self.role.gate} nats: all objectives need it",
                "add an objective without teacher (lm), or gate=open",
            )

    def attach(self, attached: Attachment) -> None:
        """Store an extension's state in its checkpoints. Raises ConfigError if the name is taken."""
        if attached.name in {"weights", "optimizer", "last", *self.learned(), *self.attached}:
            problem = f"{attached.name} is already stored in its checkpoints by the core or another extension"
            raise ConfigError(f"roles.{self.name}", problem, "leave one of them out, or rename it")
        self.attached[attached.name] = attached

    @property
    def taps(self) -> dict[str, Tap]:
        """By lesson, the taps of extensions on its outputs."""
        return {each.lesson: each for each in self.attached.values() if isinstance(each, Tap)}

    @property
    def gradient_handler(self) -> GradientHandler | None:
        """The extension object that handles its gradients, if any."""
        return self.body.gradient_handler if self.body is not None else None

    @property
    def moves(self) -> bool:
        return self.spec.mode != "frozen"

    @property
    def is_kept(self) -> bool:
        """Whether its checkpoints and metrics are written."""
        return self.spec.mode == "train"

    def is_to_be_saved(self, step: int) -> bool:
        """Whether it is at `step` and not yet stored there."""
        return self.is_kept and self.step == step != self.stored_step and not self.has_diverged

    @property
    def tokens_of_all(self) -> int:
        """Training tokens of the role so far, in this gang and in others."""
        return self.tokens + sum(each.tokens_elsewhere for each in self.attached.values())

    @property
    def spill(self) -> Path | None:
        """The folder for copies for checkpoints if the role is not in memory; None = copies go to memory."""
        owners = self.body.owners if self.body is not None else []
        return owners[0].folder if owners else None

    @property
    def is_asked(self) -> bool:
        """Whether others than its students here need its outputs of this step."""
        return any(tap.is_asked for tap in self.taps.values())

    def is_active(self, clock: int) -> bool:
        """Whether it trains at step `clock`. step_group_at activates frozen roles, with their students."""
        return self.moves and self.step == clock < self.end and not self.has_diverged

    def flops_per_token(self, sequence: int) -> float:
        """FLOPs per training token: forward and backward, or a third of them for a frozen role."""
        return self.role.model.flops_per_token(sequence) / (1 if self.moves else 3)

    def scale_dropout(self, share: float) -> None:
        """Multiply the model's dropout by `share` from the next step on."""
        if self.body is not None and self.moves:
            self.body.scale_dropout(share)

    def needs_logits(self, teacher: str) -> bool:
        """Whether, on this rank and in this step, the role learns from this teacher's logits."""
        is_taught = self.body is not None and self.is_distilling()
        return is_taught and reads_teacher_logits(self.compared_with(teacher).values())

    def compared_with(self, teacher: str) -> dict[str, ObjectiveSpec]:
        """The objectives that compare with this teacher, by name."""
        role = self.role
        return {name: spec for name, spec in role.objective.items() if role.teacher_of(name) == teacher}

    def is_distilling(self) -> bool:
        """Whether the next step distils: the gate is open and the step is a multiple of `period`."""
        is_due = (self.step - self.start) % self.role.period == 0
        is_open = self.lead is not None and self.lead.is_open
        return is_open and is_due and any(type(spec).needs_teacher for spec, _ in self._weighted().values())

    def _weighted(self) -> Mix:
        """All objectives with a weight at the next step, with their weights."""
        weights = {name: (spec, self._weight(spec)) for name, spec in self.role.objective.items()}
        return {name: (spec, weight) for name, (spec, weight) in weights.items() if weight}

    def _weight(self, spec: ObjectiveSpec) -> float:
        lead = self.lead.nats if self.lead is not None else 0.0
        return spec.weight * spec.schedule.factor(self.step, self.start, self.end, lead)

    def weights_that_move(self) -> dict[str, float]:
        """The next step's weights of objectives with a schedule."""
        return {
            name: self._weight(spec)
            for name, spec in self.role.objective.items()
            if not spec.schedule.is_constant
        }

    def mix(self) -> Mix:
        """The active objectives with their shares: weight / sum of active weights."""
        if not self.moves:
            return {self.text: (LM(), 1.0)}
        is_distilling = self.is_distilling()
        active = {
            name: (spec, weight)
            for name, (spec, weight) in self._weighted().items()
            if is_distilling or not type(spec).needs_teacher
        }
        whole = sum(weight for _, weight in active.values())
        return {name: (spec, weight / whole) for name, (spec, weight) in active.items()}

    def reads(self, name: str) -> tuple[int, ...] | None:
        """The parts of the mixture that an objective reads; None = all rows, as for objectives with a teacher
        and without sources.
        """
        spec = self.role.objective.get(name.partition(".")[0])
        if spec is None or not self.parts:
            return None
        if not type(spec).needs_teacher or type(spec).reads != WINDOWS:
            return (
                self.parts_of(type(spec).reads) if {part.kind for part in self.parts} != {WINDOWS} else None
            )
        sources = getattr(spec, "sources", ())
        return tuple(n for n, part in enumerate(self.parts) if part.source in sources) if sources else None

    def divisor(self, name: str, counts: Counts) -> int:
        """The divisor of an objective's sum, or of the sum over all scored tokens, for a mean."""
        spec = self.role.objective.get(name.partition(".")[0])
        every_token = spec is not None and type(spec).is_of_every_token
        return counts.of(self.reads(name), every_token=every_token)

    def parts_of(self, kind: str) -> tuple[int, ...]:
        """The parts of the mixture with rows of this kind."""
        return tuple(n for n, part in enumerate(self.parts) if part.kind == kind)

    @property
    def text(self) -> str:
        """The name of the cross-entropy of all scored tokens among the sums; of its own loss if it predicts
        no tokens.
        """
        if not self.role.predicts:
            return next(iter(self.role.objective))
        lm = self.role.objective.get("lm")
        return "lm" if self.reads("lm") is None and not getattr(lm, "z_weight", 0.0) else ALL

    def logged(self) -> list[str]:
        """The names of the sums that a step computes."""
        names = [logged(name, spec) for name, (spec, _) in self.mix().items()]
        return [name for each in zip_longest(*names) for name in each if name is not None]

    def _shares(self, counts: Counts) -> Mix:
        """The objectives with shares rescaled for sums divided by all scored tokens, so that an objective of
        few rows keeps its weight.
        """
        scales = {name: counts.divisor / max(1, self.divisor(name, counts)) for name in self.mix()}
        return {name: (spec, share * scales[name]) for name, (spec, share) in self.mix().items()}

    def work(self, batches: list[dict[str, Tensor]], clock: int, counts: Counts) -> StepWork:
        """The step's work on this rank's tokens. Dropout keys depend on (seed, role, step, sample,
        position).
        """
        mine = []
        for batch in batches:
            more = {}
            if getattr(self.role.model, "dropout", 0.0) and self.moves:
                more = self._noise(batch, clock)
            mine.append(own_tokens(batch | more, self.grid))
        return StepWork(mine, self._shares(counts), self._parts(), text=self.text)

    def _noise(self, batch: dict[str, Tensor], clock: int) -> dict[str, Tensor]:
        """Dropout keys of all tokens."""
        samples_B, found = batch["samples_B"], {}
        for name, other, *words in NOISE:
            if other in batch:
                seed = seed_of(self.seed, self.role.seed_name or self.name, clock, *words)
                places = torch.arange(batch[other].shape[1], device=samples_B.device)
                found[name] = noise_keys(seed, samples_B, places)
        return found

    def _parts(self) -> dict[str, tuple[int, ...]]:
        found = {name: self.reads(name) for name in self.mix()}
        return {name: parts for name, parts in found.items() if parts is not None}

    def train(self, work: StepWork, after: After) -> None:
        """Forward and backward passes of all micro-batches."""
        if self.gradient_handler is not None:
            self.gradient_handler.begin(self.step, self.segment(self.step + 1).fingerprint)
        if self.body is not None:
            self.body.train(work, after)

    def infer(self, work: StepWork, after: Seen) -> None:
        """Forward passes of all micro-batches; uses no random generator and leaves no state behind."""
        if self.body is not None:
            with torch.no_grad():
                self.body.infer(work, after)

    def evaluate(self, batches: list[dict[str, Tensor]], name: str) -> Tensor:
        """Sum of one objective over held-out batches and number of right rows, float64; this rank's
        contribution. The name `text` is the next-token loss, for any role.
        """
        total = torch.zeros(2, dtype=torch.float64, device=self.gang.device)
        if self.body is None:
            return total
        self.gang.heartbeat.at("look")
        spec, found = self.role.objective.get(name, LM()), self.reads(name)
        spec = spec.model_copy(update={"z_weight": 0.0}) if isinstance(spec, LM) else spec
        parts = {} if found is None else {name: found}
        work = StepWork(
            [own_tokens(batch, self.grid) for batch in batches], {name: (spec, 1.0)}, parts, text=self.text
        )

        def add(index: int, _: Tensor) -> None:
            sums = work.results.pop(index).sums
            total[0] += sums[name].double()
            total[1] += sums.get(name + RIGHT, 0)

        # eager: an evaluation is too short to compile a second graph
        with torch.compiler.set_stance("force_eager") if self.body.is_compiled else nullcontext():
            self.body.set_training(False)
            self.infer(work, add)
            self.body.set_training(True)
        self.body.reshard()
        return total if self.grid.is_counted else torch.zeros_like(total)

    def update(self, norm: float, *, is_good: bool) -> float:
        """Clip by the global norm and take the optimiser's step, or skip it if not `is_good`; returns lr."""
        spec = self.role.optim
        tokens = self.settings.tokens_before(self.step) - self.settings.tokens_before(self.start)
        rate = spec.lr * spec.schedule.factor(self.step, self.start, self.end, tokens)
        rate *= self.settings.progressive.lr_at(self.step)
        self.num_skipped = 0 if is_good else self.num_skipped + 1
        self.health.num_skipped += not is_good
        with self.gang.regions(f"optimiser {self.name}"):
            self.weights.update(rate, spec.clip / (norm + 1e-6), is_good=is_good)
        self.step += 1
        return rate

    def row_divisor(self, batch: dict[str, Tensor], counts: Counts) -> int:
        """The divisor of a micro-batch's sum over tokens: the step's scored tokens, unless an extension
        handles its gradients.
        """
        return (
            counts.divisor if self.gradient_handler is None else self.gradient_handler.divisor(batch, counts)
        )

    def check_skipped(self) -> None:
        """Raise AtelierError if skipped steps in a row reach its patience."""
        self.health.check_patience(f"roles.{self.name}", self.step, self.num_skipped)

    def segment(self, step: int) -> SegmentAddress:
        """The trajectory segment of the checkpoint of `step`; a role's first checkpoint is at its start
        step.
        """
        first = self.spec.segments[0]
        if step == first.start:
            return first
        return next(part for part in self.spec.segments if part.start < step <= part.end)

    def state(self) -> State:
        """Everything to checkpoint, under names independent of role and layout. Tensors are live."""
        return self.weights.state() | {
            **self.learned(),
            "last": dict(self.last),
            **{name: kept for name, each in self.attached.items() if (kept := each.state())},
        }

    def learned(self) -> dict[str, Tree]:
        """State from its steps besides weights and optimiser: counts, running averages, decisions."""
        return {
            "lead": {**self.lead.state()} if self.lead is not None else {},
            "counts": {
                "tokens": self.tokens,
                "forwards": self.forwards,
                "teacher_forwards": self.teacher_forwards,
                "num_skipped": self.num_skipped,
            },
            "health": {**self.health.state()},
        }

    def take_back(self, learned: Nested) -> None:
        """Restore the state that `learned` returned."""
        if self.lead is not None and "lead" in learned:  # not in older checkpoints
            self.lead.restore(learned["lead"])
        counts = learned["counts"]
        self.tokens, self.forwards = counts["tokens"], counts["forwards"]
        self.teacher_forwards, self.num_skipped = counts["teacher_forwards"], counts["num_skipped"]
        self.health.restore(learned.get("health", {}))

    def restore(self, state: Nested, step: int) -> None:
        """Restore the values of a loaded `state()`; its tensors were filled in place."""
        self.take_back(state)
        self.last = dict(state["last"])
        for name, attached in self.attached.items():
            attached.restore(state.get(name, {}), step)
        self.step = self.stored_step = step
        self.durable_steps = (-1, step)
        self.weights.restored()


def end_of(spec: MemberSpec) -> int:
    """The step at which a member's training ends; 0 for a frozen one."""
    return spec.segments[-1].end if spec.segments else 0


def is_finite(*numbers: float) -> bool:
    return all(math.isfinite(number) for number in numbers)
