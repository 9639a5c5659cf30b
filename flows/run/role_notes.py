"""Notes of a plan about single roles: bytes read for a model that is scored in less memory than its size,
quantities scaled by a base width, reports of extensions; the price of each of a training's layouts.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from atelier.engine.config.base import Spec
from atelier.engine.config.data import Score
from atelier.engine.config.extensions import extension_of
from atelier.engine.config.kind_files import extension_part
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.role import without_pipeline
from atelier.engine.config.sections import extensions_of, sections_of
from atelier.engine.config.train import Train
from atelier.engine.plan.estimate import Estimate, Setting, estimate
from atelier.engine.plan.search import mesh
from atelier.engine.plan.streamed import SCORED, StreamedPass, streamed_pass
from atelier.flows.run.auto import trained
from atelier.flows.run.memory_fit import limit_gb
from atelier.flows.run.plan_document import LaterRow
from atelier.infra.code.code_map import TRAINED
from atelier.infra.dag import Node
from atelier.infra.launch.slots import num_slots


def role_notes(nodes: list[Node], pool: Pool, vocab: int) -> list[str]:
    """Lines about the roles that these nodes train."""
    return _width_notes(nodes) + _layout_notes(nodes, pool, vocab) + _key_notes(nodes)


def _width_notes(nodes: list[Node]) -> list[str]:
    """A line for every role whose model has a base width (muP)."""
    notes = []
    for node in nodes:
        for name, role in node.training.roles.items() if node.task == "train" else ():
            model = role.model
            if isinstance(model, GPT) and model.base_width and role.moves:
                ratio, by_muon = model.width_ratio, role.optim.kind == "muon"
                rates = "lr is the same" if by_muon else f"lr times {1 / ratio:.3g}"
                notes.append(
                    f"{node.name}: {name} is {ratio:.3g} times as wide as model.base_width "
                    f"{model.base_width}: for matrices in blocks {rates}, init_std times {ratio**-0.5:.3g}; "
                    f"logits times {model.logit_scale:.3g}"
                )
    return notes


def _key_notes(nodes: list[Node]) -> list[str]:
    """The reports of extensions for trainings that use their keys."""
    notes = []
    for node in nodes:
        train = node.training.train if node.task in TRAINED else None
        rows = node.training.num_labels if node.task == "finetune" else 0
        for key, asked in sections_of(train).items() if train is not None else ():
            report = extension_part(extension_of(type(asked)), "report")
            if foretold := getattr(report, "foretold", None):
                notes.append(f"{node.name}: train.{key}: {foretold(train, rows=rows)}")
    return notes


def _layout_notes(nodes: list[Node], pool: Pool, vocab: int) -> list[str]:
    """The reports of layout extensions for the roles that these nodes train."""
    notes: list[str] = []
    for node in nodes if vocab else ():
        extensions = extensions_of(Parallel.model_validate(node.layout)) if node.task == "train" else ()
        for name in sorted(extensions):
            if of_role := getattr(extension_part(name, "report"), "of_role", None):
                notes += _lines_of_roles(node, pool, vocab, of_role)
    return notes


def _lines_of_roles(node: Node, pool: Pool, vocab: int, of_role: Callable[..., str]) -> list[str]:
    config, lines = node.training, list[str]()
    aside = without_pipeline(config.roles)
    for name, role in config.roles.items():
        layout = Parallel.model_validate(node.layout).of_role(name, is_student=name in aside)
        setting, limit = Setting.of(role, config.train, pool, vocab), limit_gb(pool, layout.ranks)
        if name not in config.frozen and (said := of_role(name, setting, config.train, layout, limit)):
            lines.append(f"{node.name}: {said}")
    return lines


def score_notes(arguments: Spec, pool: Pool, vocab: int) -> list[str]:
    """A line for every scored model of the run that is larger than `score.memory_gb`."""
    score, train = getattr(arguments, "score", None), getattr(arguments, "train", None)
    if not isinstance(score, Score) or not isinstance(train, Train) or not score.memory_gb or not vocab:
        return []
    notes = []
    for name, role in trained(arguments).items():
        model = role.model if role.model.vocab != "auto" else role.model.resolved(vocab)
        passed = streamed_pass(
            model, score.memory_gb, SCORED, train.sequence, pool.device, is_cpu=pool.is_cpu
        )
        if passed is not None:
            notes.append(_read_again(name or "the model", passed, score.memory_gb))
    return notes


def _read_again(name: str, passed: StreamedPass, gb: float) -> str:
    said = f"score.memory_gb: {name} is read from its files, {_gb(passed.read)} a pass"
    if passed.num_experts:
        said += (
            f", {passed.in_memory} of {passed.num_experts} experts of {_gb(passed.expert)} in the {gb:g} GB"
        )
    said += f"; {passed.read_s:.2g} s at {passed.gbps:g} GB/s, while {passed.tokens} tokens compute "
    return said + f"{passed.compute_s:.2g} s; convert=cast halves the bytes"


def _gb(size: float) -> str:
    return f"{size / 1e9:.3g} GB"


class LayoutSpan(NamedTuple):
    """A role's steps on one layout: the first of them, and the estimate."""

    begin: int
    layout: Parallel
    estimate: Estimate

    @property
    def seconds(self) -> float:
        return 3600 * self.estimate.device_hours / max(1, self.layout.ranks)

    def row(self) -> LaterRow:
        """As plain JSON."""
        found = self.estimate
        return {
            "step": self.begin,
            "ranks": self.layout.ranks,
            "step_s": round(found.step_s, 6),
            "memory_gb": round(found.memory_gb, 6),
            "device_hours": round(found.device_hours, 6),
        }


def spans_of(node: Node, key: str, pool: Pool, vocab: int, first: int, pace: float = 1.0) -> list[LayoutSpan]:
    """The spans of a role's steps from `first` on; a layout that does not change is one span. Each step is
    longer than planned by `pace`.
    """
    config = node.training
    role, settings = config.roles[key], config.train
    aside, pads = without_pipeline(config.roles), node.task == "finetune"
    last = role.last(settings.num_steps)
    found = []
    for begin, end, whole in Parallel.model_validate(node.layout).spans(first, last):
        layout = whole.of_role(key, is_student=key in aside)
        priced = estimate(role, settings, layout, pool, vocab, end - begin, pads=pads)
        found.append(LayoutSpan(begin, layout, priced.times(pace)))
    return found


def together(spans: list[LayoutSpan]) -> Estimate:
    """The estimate of the first span, with the hours and FLOPs of all."""
    first, *later = (span.estimate for span in spans)
    return replace(
        first,
        flops=first.flops + sum(each.flops for each in later),
        device_hours=first.device_hours + sum(each.device_hours for each in later),
    )


def later_notes(
    node: Node, pool: Pool, vocab: int, begun: Mapping[str, int], pace: float
) -> tuple[list[str], list[str]]:
    """Lines about the spans after the first, over the roles to train (each with the step from which it
    continues), and refusals of those that do not fit.
    """
    notes: list[str] = []
    refusals: list[str] = []
    by_step: dict[int, list[LayoutSpan]] = {}
    if pool.members:
        refusals.append(f"{node.name}: parallel.later is not for a pool of several machines; leave it out")
    for key, first in begun.items():
        first = max(first, int(node.training.roles[key].start))
        for span in spans_of(node, key, pool, vocab, first, pace)[1:]:
            by_step.setdefault(span.begin, []).append(span)
    for step, spans in sorted(by_step.items()):
        layout = Parallel.model_validate(node.layout).at(step)
        gb, step_s = (sum(getattr(span.estimate, name) for span in spans) for name in ("memory_gb", "step_s"))
        shape = f"{mesh(layout)} ({layout.ranks} rank{'s' * (layout.ranks > 1)})"
        seconds = sum(span.seconds for span in spans)
        notes.append(
            f"{node.name}: from step {step} on {shape}: {step_s:.2g} s a step, {gb:.2g} GB a rank,"
            f" {seconds:.3g} s"
        )
        place = f"{node.name}: parallel.later.{step}"
        if gb > (limit := limit_gb(pool, layout.ranks)):
            refusals.append(f"{place} needs {gb:.1f} GB on each rank of {limit:.1f}; give other axes")
        threads = layout.threads if isinstance(layout.threads, int) else 1
        needed = layout.ranks * (threads if pool.is_cpu else 1)
        if needed > (slots := num_slots(pool)) and not pool.paper:
            refusals.append(f"{place} needs {needed} slots of the pool's {slots}; give fewer ranks")
    return notes, refusals
