"""Plan a flow's DAG without running it: for each artifact reuse or run, the reason, cost, and precision."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from atelier.engine.config.error import ConfigError, RefusedError, nearest
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.record import Record
from atelier.engine.config.role import without_pipeline
from atelier.engine.config.tested import notes as hook_notes
from atelier.engine.config.train import Train
from atelier.engine.io.survey import SurveyRow
from atelier.engine.plan.estimate import estimate
from atelier.engine.plan.goodput import steps_between
from atelier.flows.run.auto import short_of, vocab_of
from atelier.flows.run.compose import RunConfig
from atelier.flows.run.curation_cost import CPU_S, cpu_seconds, curation_notes, curation_refusals, texts_of
from atelier.flows.run.data_notes import data_notes, stream_notes, written_row
from atelier.flows.run.disk_fit import too_little_disk
from atelier.flows.run.draw import placed_nodes
from atelier.flows.run.memory_fit import check_vocabulary, inference_plan, known_vocab, too_much
from atelier.flows.run.plan_document import (
    PlanDocument,
    PlanRow,
    PlanTotals,
    PoolRow,
    pool_rows,
    seconds_left,
)
from atelier.flows.run.pools import gpu_notes
from atelier.flows.run.reasons import reasons_of
from atelier.flows.run.registry import parts_of_extensions, survey
from atelier.flows.run.role_notes import later_notes, role_notes, score_notes, spans_of, together
from atelier.flows.run.site_rows import Here, LinkRow, SiteRow, here_of, site_rows
from atelier.flows.run.task_pools import check_nodes, moved_notes
from atelier.flows.run.wall_clock import RUN_S, seconds_of, wall_clock
from atelier.infra.calibration.history import factor
from atelier.infra.code.code_map import TRAINED, maps_of
from atelier.infra.dag import Node, Product
from atelier.infra.run.resume_plan import Resume, made_by_other
from atelier.infra.store.run_manifest import Row, nearest_run, row_name
from atelier.infra.store.store import Store
from atelier.tasks import finetune as finetune_task
from atelier.tasks import train as train_task


def computed(node: Node, product: Product, record: Record | None, pool: Pool) -> str:
    """The precision in which a finished model was trained, or one would be trained on the pool; '' for other
    artifacts, or if unknown.
    """
    if product.kind != "model" or node.task not in TRAINED:
        return ""
    return str(record.summary.get("computed") or "") if record is not None else here(node, pool)


def here(node: Node, pool: Pool) -> str:
    """The precision of a training on the pool: float32 where 16 bits would only be emulated."""
    precision = node.training.train.arithmetic
    return "fp32" if precision == "bf16" and not pool.half else precision


def other_than_here(node: Node, product: Product, record: Record, pool: Pool) -> str:
    """Why a finished model differs in bits from one of this pool; '' if it may be equal."""
    was = computed(node, product, record, pool)
    now = here(node, pool) if was else ""
    return f"computed in {was}, where this pool computes {now}" if was != now else ""


@dataclass(frozen=True)
class Plan:
    """Plan of a flow: its nodes, a row for each artifact (state, reasons, cost), refusals, warnings."""

    flow: str
    nodes: list[Node]
    rows: list[PlanRow]
    refusals: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pace: float = 1.0  # measured / planned step time on this pool, median
    wall_s: float = 0.0  # from the start of the run to its end
    seconds: Mapping[str, float] = field(default_factory=dict)  # of each node with artifacts to make
    there: Mapping[str, list[Node]] = field(default_factory=dict)  # the nodes of other sites
    here: Here = field(default_factory=Here)
    links: list[LinkRow] = field(default_factory=list)
    source: list[SurveyRow] | None = None  # for flows that import a model
    pools: list[PoolRow] = field(default_factory=list)

    def check(self) -> None:
        """Raise RefusedError if the plan is refused."""
        if self.refusals:
            raise RefusedError(self.refusals)

    @property
    def sites(self) -> list[SiteRow]:
        """A row for each site, if there are several."""
        return site_rows({self.here.site: self.nodes, **self.there}, self.rows) if self.there else []

    def with_rows(self, rows: list[PlanRow], vocab: int) -> "Plan":
        """The plan with the rows of all sites, and the resulting link costs."""
        every = [*self.nodes, *(node for nodes in self.there.values() for node in nodes)]
        step_s: dict[str, float] = {row["name"]: row["step_s"] for row in rows}
        of_node = {
            node.name: sum(step_s.get(row_name(node, key), 0.0) for key in node.products) for node in every
        }
        used = parts_of_extensions(every, "link_rows")
        links = [row for part in used for row in part.link_rows(every, of_node, vocab, self.here)]
        return replace(self, rows=rows, links=links)

    def document(self) -> PlanDocument:
        running = [row for row in self.rows if row["state"] != "reuse"]
        totals: PlanTotals = {
            "tasks": len(self.nodes),
            "artifacts": len(self.rows),
            "reuse": len(self.rows) - len(running),
            "run": len(running),
            "flops": sum(row["flops"] for row in running),
            "device_hours": round(sum(row["device_hours"] for row in running), 6),
            "memory_gb": max((row["memory_gb"] for row in running), default=0.0),
            "wall_s": round(self.wall_s, 1),
        }
        return {
            "flow": self.flow,
            "tasks": self.rows,
            "totals": totals,
            "refused": self.refusals,
            "notes": self.notes,
            "pace": round(self.pace, 4),
            "sites": self.sites,
            "links": self.links,
            "pools": self.pools,
        }


@dataclass(frozen=True)
class PlanInputs:
    """Inputs of all rows: products of the nearest finished run by name, and each pool's pace."""

    frozen: RunConfig
    known: dict[str, Row]
    vocab: int  # 0 = unknown
    store: Store
    _paces: dict[str, float] = field(default_factory=dict)  # by pool

    def pace(self, task: str) -> float:
        """Measured / planned step time of the task's pool; a pool on paper has no measurements."""
        pool, name = self.frozen.pool_of(task), self.frozen.pool_name(task)
        if name not in self._paces:
            self._paces[name] = 1.0 if pool.paper else factor(self.store, pool)
        return self._paces[name]


def make_plan(frozen: RunConfig, store: Store) -> Plan:
    """Plan a flow. Raises ConfigError for a vocabulary that the layout does not divide and for an unknown
    --fresh; other refusals are in the plan.
    """
    surveyed = of_source(**frozen.call()) if (of_source := survey(frozen.flow)) else None
    if surveyed is not None and surveyed.refused:
        return Plan(frozen.flow, [], [], surveyed.refused, source=surveyed.rows)
    placed = placed_nodes(frozen, store)
    nodes = placed.here
    before = nearest_run(store, frozen.flow, frozen.document)
    known = {row.name: row for row in before.tasks} if before else {}
    rows: list[PlanRow] = []
    refusals: list[str] = []
    seconds: dict[str, float] = {}
    outdated: dict[str, list[str]] = {}
    later: list[str] = []
    _check_fresh(frozen, nodes)
    vocab = vocab_of(frozen.arguments)
    check_nodes(frozen.pool, frozen.task_pools, nodes)
    plan_inputs = PlanInputs(frozen, known, vocab, store)
    texts = texts_of(nodes, store)
    for node in nodes:
        pool = frozen.pool_of(node.task)
        of_node = replace(plan_inputs, vocab=vocab or known_vocab(node, store))
        check_vocabulary(node, frozen.document, frozen.arguments, of_node.vocab)
        standing = _standing(node, store, frozen.resume)
        refusals += standing.refusals
        mine: list[PlanRow] = []
        maps = maps_of(node)
        for key, product in node.products.items():
            record = store.find(product.kind, product.fingerprint)
            mine.append(_row(node, key, product, record, standing, of_node))
            if node.task == "write" and record is None:
                mine[-1] = {**mine[-1], **written_row(node, pool, store)}
            if record is not None and (other := made_by_other(record, maps.get(key))):
                outdated.setdefault(other, []).append(row_name(node, key))
                mine[-1]["reasons"] = [{"code": other}]
            if record is not None and (other := other_than_here(node, product, record, pool)):
                outdated.setdefault(other, []).append(row_name(node, key))
        rows += mine
        if any(row["state"] != "reuse" for row in mine):
            earlier = [known[row["name"]] for row in mine if row["name"] in known]
            work_s = cpu_seconds(node, texts) / node.ranks if node.task in CPU_S else 0.0
            seconds[node.name] = work_s + seconds_of(node, _left_s(mine), earlier, store)
        sizes = [row["memory_gb"] for row in mine if row["state"] == "run"]
        if (refusal := too_much(node, sizes, pool, of_node.vocab)) is not None:
            refusals.append(refusal)
        if any(row["later"] for row in mine):
            begun = {row["name"]: row["from_step"] for row in mine if row["state"] != "reuse"}
            keys = {key: begun[row_name(node, key)] for key in node.products if row_name(node, key) in begun}
            told, refused = later_notes(node, pool, of_node.vocab, keys, of_node.pace(node.task))
            later, refusals = later + told, refusals + refused
        if any(row["state"] == "run" for row in mine):
            asked = inference_plan(node, nodes, store, pool, of_node.vocab)
            refusals += asked.refusals
            seconds[node.name] = max(seconds.get(node.name, 0.0), asked.seconds)
            if node.ranks > 1 or not pool.is_cpu:
                for row in mine:
                    row["memory_gb"] = row["memory_gb"] or round(asked.memory_gb, 6)
        for part in parts_of_extensions([node], "link_rows"):
            refusals += part.refusals(node, store)
    to_run = {row["name"] for row in rows if row["state"] != "reuse"}
    running = [node for node in nodes if any(row_name(node, key) in to_run for key in node.products)]
    notes = _notes(frozen, outdated, short_of(nodes)) + later
    for pool in frozen.pools:
        notes += role_notes([node for node in running if frozen.pool_of(node.task) is pool], pool, vocab)
    notes += score_notes(frozen.arguments, frozen.pool_of("score"), vocab) + data_notes(nodes, store)
    notes += curation_notes(running, texts) + gpu_notes(frozen.pools) + hook_notes()
    notes += moved_notes(frozen.pool, frozen.task_pools)
    notes += stream_notes(nodes, store)
    refusals += too_little_disk(running, store) + curation_refusals(running, texts, store)
    plan = Plan(
        flow=frozen.flow,
        nodes=nodes,
        rows=rows,
        refusals=refusals,
        notes=notes,
        pace=plan_inputs.pace("train"),
        wall_s=RUN_S + wall_clock(nodes, seconds, frozen.pool, frozen.task_pools) if seconds else 0.0,
        seconds=seconds,
        there=placed.there,
        here=here_of(frozen, nodes),
        source=surveyed and surveyed.rows,
        pools=pool_rows(frozen, nodes, rows),
    )
    return plan.with_rows(rows, vocab)


def _left_s(rows: list[PlanRow]) -> float:
    """Seconds of the remaining steps of a node's trainings; roles of one training take turns."""
    return sum(seconds_left(row) for row in rows if row["state"] != "reuse")


def _notes(frozen: RunConfig, outdated: dict[str, list[str]], short: list[str]) -> list[str]:
    """Warnings to show before the run."""
    found = []
    train = getattr(frozen.arguments, "train", None)
    if isinstance(train, Train) and train.arithmetic == "bf16" and not frozen.pool_of("train").half:
        found.append("these CPUs have no 16-bit arithmetic: train.precision=bf16 is computed in float32")
    for what, names in outdated.items():
        found.append(
            f"{what}; finished before, and reused: {_some(names, 6)} (if results change, raise the VERSION "
            "of its kind, and it is made again)"
        )
    if short and not is_as_shipped(frozen):
        found.append(f"the peak learning rate is never reached: {_some(short, 2)}")
    return found


def is_as_shipped(frozen: RunConfig) -> bool:
    """True if lengths and schedules come unchanged from an experiment, whose author chose them."""
    words = [text.lstrip("+~") for text in frozen.overrides]
    changed = any(
        re.match(r"(train|roles\.\w+)\.(steps|tokens|start)|.*\boptim|roles=", word) for word in words
    )
    return any(word.startswith("experiment=") for word in words) and not changed


def _check_fresh(frozen: RunConfig, nodes: list[Node]) -> None:
    """Raises ConfigError when --fresh names a training task that the flow does not have."""
    names = [node.name for node in nodes if node.task in TRAINED]
    for name in frozen.resume.fresh:
        if name not in names:
            near = nearest(name, names)
            hint = f"did you mean {near}?" if near else f"there are: {', '.join(names)}"
            raise ConfigError("--fresh", f"there is no training task {name}", hint)


def _some(names: list[str], most: int) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


@dataclass(frozen=True)
class Standing:
    """The steps from which a node's trainings continue; refusals and the refused products; roles that only
    teach, each with its students.
    """

    from_steps: Mapping[str, int] = field(default_factory=dict)  # by product
    refusals: tuple[str, ...] = ()
    refused: frozenset[str] = frozenset()
    replayed: frozenset[str] = frozenset()  # for students at other sites
    teaching: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _standing(node: Node, store: Store, resume: Resume) -> Standing:
    if node.task == "finetune":
        each = finetune_task.plan_resume(node, store, resume)
        told = tuple(str(r) for one in each.values() for r in one.refusals)
        begun = {key: one.from_step for key, one in each.items()}
        return Standing(begun, told, frozenset(key for key, one in each.items() if one.refusals))
    if node.task != "train":
        return Standing()
    found = train_task.plan_resume(node, store, resume)
    roles = node.training.roles
    teaching = {
        name: tuple(key for key in found.situations if name in roles[key].teachers)
        for name, one in found.situations.items()
        if one.mode == "frozen"
    }
    told = tuple(str(r) for r in found.refusals)
    replayed = frozenset(name for name in found.asked if found.situations[name].mode == "replay")
    begun = dict.fromkeys(node.products, found.from_step)
    return Standing(begun, told, frozenset(found.refused), replayed, teaching)


def _row(
    node: Node,
    key: str,
    product: Product,
    record: Record | None,
    standing: Standing,
    plan_inputs: PlanInputs,
) -> PlanRow:
    is_done, pool = record is not None, plan_inputs.frozen.pool_of(node.task)
    is_idle = is_done and key not in standing.replayed
    state = "refused" if key in standing.refused else "replay" if is_done else "run"
    state = "reuse" if is_idle else state
    row: PlanRow = {
        "name": row_name(node, key),
        "task": node.task,
        "kind": product.kind,
        "fingerprint": product.fingerprint,
        "state": state,
        "reasons": [] if is_done else reasons_of(row_name(node, key), product, plan_inputs.known),
        "from_step": 0 if is_idle else standing.from_steps.get(key, 0),
        "params": 0,
        "flops": 0.0,
        "memory_gb": 0.0,
        "step_s": 0.0,
        "tokens_per_s": 0.0,
        "mfu": 0.0,
        "hfu": 0.0,
        "device_hours": 0.0,
        "effective_time": 0.0,
        "best_checkpoint_every": 0,
        "layout": node.layout,
        "ranks": Parallel.model_validate(node.layout).ranks if node.layout else 1,
        "later": [],
        "computed": computed(node, product, record, pool),
        "site": "",
        "pool": plan_inputs.frozen.pool_name(node.task),
    }
    vocab = plan_inputs.vocab
    if node.task not in TRAINED or not vocab:
        return row
    config = node.training
    role, settings = config.roles[key], config.train
    begin, last = max(int(role.start), row["from_step"]), role.last(settings.num_steps)
    aside, steps = without_pipeline(config.roles), max(0, last - begin)
    pace = plan_inputs.pace(node.task)
    spans = [] if is_idle else spans_of(node, key, pool, vocab, begin, pace)
    layout = Parallel.model_validate(node.layout).at(begin).of_role(key, is_student=key in aside)
    pads = node.task == "finetune"
    nothing = estimate(role, settings, layout, pool, vocab, 0, pads=pads).times(pace)
    found = together(spans) if spans else nothing
    for name in () if is_done else _first_of(key, node, standing):
        beside = Parallel.model_validate(node.layout).of_role(name, is_student=name in aside)
        teacher = estimate(config.roles[name], settings, beside, pool, vocab, steps)
        found = found.with_teacher(teacher.times(pace))
    if settings.checkpoint_every != "auto":
        row["effective_time"] = round(found.faults.effective(settings.checkpoint_every * found.step_s), 4)
        row["best_checkpoint_every"] = steps_between(found.faults, found.step_s, settings.num_steps)
    row["ranks"] = spans[0].layout.ranks if spans else row["ranks"]
    return {**row, **found.row(), "later": [span.row() for span in spans[1:]]}


def _first_of(key: str, node: Node, standing: Standing) -> list[str]:
    """The teachers that do not train here and whose first student is this role."""
    teachers = node.training.roles[key].teachers
    return [name for name in teachers if key in standing.teaching.get(name, ())[:1]]
