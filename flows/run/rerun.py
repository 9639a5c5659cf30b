"""Run a past run again: its words with new ones in place of its own, and the nodes that these change."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from atelier.engine.config.base import Json, canonical, flatten
from atelier.engine.config.error import AtelierError, ConfigError, nearest
from atelier.flows.run.catalog import check_flow
from atelier.flows.run.compose import LENGTHS, RerunRequest, RunConfig, compose
from atelier.flows.run.draw import collect_nodes
from atelier.flows.run.named_run import one_run, runs_called
from atelier.flows.run.overrides import with_keys
from atelier.flows.run.reasons import Reason, changes_between, text_of
from atelier.infra.dag import Node, Product
from atelier.infra.store.lease import Holder
from atelier.infra.store.run_manifest import (
    Row,
    RunManifest,
    comparable,
    is_alive,
    parents_of,
    read_manifests,
    row_name,
)
from atelier.infra.store.store import Store

PLACE, FROM = "rerun", "rerun --from"
LISTS = "`atelier runs --all` lists them"
NOT_KEPT = ("parallel", "train.micro_batch", "train.checkpoint_every")  # decided anew: they change no result
FEW = 3


@dataclass(frozen=True)
class Rerun:
    """A past run and its new configuration. `changed`: nodes that differ from those of the past run, in the
    order of the flow; `notes`: what of the project has changed since.
    """

    past: RunManifest
    frozen: RunConfig
    nodes: list[Node]
    changed: list[str]
    notes: list[str] = field(default_factory=list)


def past_run(store: Store, word: str) -> RunManifest:
    """The run that `word` means (named_run.py). Raises ConfigError if there is none, if
    there are several, or if it is active; DamageError if its manifest cannot be read.
    """
    there, damaged = read_manifests(store)
    found = one_run(runs_called(there, word), word, PLACE)
    if found is None:
        if word in damaged:
            raise damaged[word]
        raise ConfigError(PLACE, f"no run {word}", LISTS)
    check_flow(found.flow, f"{PLACE} {found.id}")
    if is_alive(found):
        raise ConfigError(PLACE, f"run {found.id} is still running", "wait for it, or stop it first")
    return found


def rerun(
    store: Store,
    word: str,
    words: Sequence[str] = (),
    from_task: str = "",
    *,
    default_pool: str = "",
    from_form: bool = False,
) -> Rerun:
    """The run called `word` with `words` in place of its own. `default_pool`: for a run that no pool served.

    Raises ConfigError as `past_run` does, for words that do not fit, for a task that the flow lacks, and if
    anything that `from_task` is made from would be another thing than in that run.
    """
    past = past_run(store, word)
    new = list(words) if from_form else with_keys(past.flow, list(words))
    flow = PastFlow(past, store, from_form)
    own, base, notes = _recorded(flow)
    asked = merged(own, new)
    frozen, nodes = flow.composed(asked)
    if default_pool and not frozen.pool.is_served:
        frozen, nodes = flow.composed(merged(asked, [f"pool={default_pool}"]))
    changed = [node.name for node in nodes if _is_changed(node, rows_of(past))]
    if is_alive(past) is None:
        host = Holder.read(past.holder).host if past.holder else "unknown"
        notes.append(f"run {past.id} has no end; it may be active on its machine ({host})")
    if from_task:
        _check_task(past, nodes, from_task, new)
    first = first_before(nodes, changed, from_task) if from_task else None
    if first is not None:
        way_out = f"--from {first.name}, or without --from all that changes is made"
        where = f"{first.name}, which is before {from_task}"
        why = _reason(flow, first, where, own, base, new)
        raise ConfigError(f"{FROM} {from_task}", why, way_out)
    request = RerunRequest(past.id, tuple(new), from_task)
    return Rerun(past, replace(frozen, rerun=request), nodes, changed, notes)


def first_before(nodes: Sequence[Node], changed: Collection[str], name: str) -> Node | None:
    """The first changed node for which the node called `name` waits, directly or through others; or None."""
    found = {name}
    for node in reversed(nodes):  # against the order of the flow
        if node.name in found:
            found |= {*node.waits}
    return next((n for n in nodes if n.name in found - {name} and n.name in changed), None)


def merged(own: Iterable[str], new: Iterable[str]) -> list[str]:
    """The words of a run without those whose keys are in `new`, then `new`. Steps and tokens are one key.
    Decisions about trainings of other code were for that run alone.
    """
    new = list(new)
    given = {_key(word) for word in new}
    if not given.isdisjoint(LENGTHS):
        given |= {*LENGTHS}
    kept = [word for word in own if _key(word) not in given and not _key(word).startswith("resume")]
    return [*kept, *new]


def rows_of(past: RunManifest) -> dict[str, Row]:
    return {row.name: row for row in past.tasks}


@dataclass(frozen=True)
class PastFlow:
    """The flow of a past run, to compose with other words."""

    past: RunManifest
    store: Store
    from_form: bool

    def composed(self, words: list[str]) -> tuple[RunConfig, list[Node]]:
        """The configuration and its nodes. Raises ConfigError with the run."""
        try:
            frozen = compose(self.past.flow, words, from_form=self.from_form)
            return frozen, collect_nodes(frozen, self.store)
        except ConfigError as error:
            raise ConfigError(f"{PLACE} {self.past.id}", str(error)) from None


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


def _recorded(flow: PastFlow) -> tuple[list[str], list[Node] | None, list[str]]:
    """The words that compose the run's own configuration, the nodes of these words, and notes. If conf/ or a
    default has changed since, the recorded values are added to its overrides, so that they stay. The nodes
    are None if these words no longer compose: new ones may mend that.
    """
    own, past = merged(flow.past.overrides, ()), flow.past
    try:
        frozen, nodes = flow.composed(own)
    except AtelierError:
        return own, None, []
    if not any(_is_changed(node, rows_of(past)) for node in nodes):
        return own, nodes, []
    now, recorded = flatten(frozen.document), flatten(dict(past.config))
    other = {
        key: word
        for key, value in recorded.items()
        if key in now and canonical(value) != canonical(now[key]) and not _is_under(key, NOT_KEPT)
        if (word := _word(key, value))
    }
    if not other:
        return own, nodes, []
    kept = [*own, *other.values()]
    try:
        nodes = flow.composed(kept)[1]
    except AtelierError:
        return own, nodes, []
    return (
        kept,
        nodes,
        [f"{word} as in run {past.id}: it would now be {now[key]}" for key, word in other.items()],
    )


def _word(key: str, value: Json) -> str:
    """The override that sets a plain value, '' for a mapping or a list of mappings."""
    if isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(x, dict | list) for x in value)
    ):
        return ""
    return f"{key}={json.dumps(value, ensure_ascii=False)}"


def _is_under(key: str, places: Iterable[str]) -> bool:
    return any(key == place or key.startswith(f"{place}.") for place in places)


def _is_changed(node: Node, rows: Mapping[str, Row]) -> bool:
    return any(
        row_name(node, key) not in rows or rows[row_name(node, key)].fingerprint != product.fingerprint
        for key, product in node.products.items()
    )


def _task_of(row: Row) -> str:
    return row.name.removesuffix(f".{row.key}") if row.key else row.name


def _check_task(past: RunManifest, nodes: Sequence[Node], name: str, new: Sequence[str]) -> None:
    """Raises ConfigError unless the flow has the tflow."""
    names = [node.name for node in nodes]
    if name in names:
        return
    there = f"there are: {', '.join(names)}"
    if name in {_task_of(row) for row in past.tasks}:
        by = f" with {' '.join(new)}" if new else ""
        raise ConfigError(FROM, f"the flow {past.flow} no longer has the task {name}{by}", there)
    near = nearest(name, names)
    raise ConfigError(FROM, f"no task {name}", f"did you mean {near}? {there}" if near else there)


def _reason(
    flow: PastFlow, node: Node, where: str, own: list[str], base: list[Node] | None, new: list[str]
) -> str:
    """Why a node is another one than in the past run: the new words that change it, each that does so alone,
    else all of them; or what has changed without them.
    """
    before = next((one.products for one in base or () if one.name == node.name), None)
    if new and before != node.products:
        alone = [word for word in new if len(new) > 1 and _changes(flow, node, before, merged(own, [word]))]
        return f"{' '.join(alone or new)} changes {where}"
    rows, reasons = rows_of(flow.past), list[Reason]()
    for key, product in node.products.items():
        row = rows.get(row_name(node, key))
        now = (comparable(product), parents_of(product))
        reasons += changes_between((row.identity, row.parents), now) if row else [Reason(new=True)]
    why = "; ".join(text_of(one) for one in reasons[:FEW]) or "its code has another version"
    return f"{where}, is another one now than in run {flow.past.id} ({why})"


def _changes(flow: PastFlow, node: Node, before: Mapping[str, Product] | None, words: list[str]) -> bool:
    try:
        found = flow.composed(words)[1]
    except AtelierError:
        return False  # one word needs another
    return any(one.name == node.name and one.products != before for one in found)
