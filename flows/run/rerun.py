"""Run a past run again: its words with new ones in place of its own, and the nodes that these change."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from atelier.engine.config.base import Json, canonical, flatten
from atelier.engine.config.error import AtelierError, ConfigError, nearest
from atelier.flows.run.catalog import check_flow
from atelier.flows.run.compose import LENGTHS, RerunRequest, RunConfig, compose
from atelier.flows.run.draw import collect_nodes
from atelier.flows.run.overrides import with_keys
from atelier.flows.run.reasons import Reason, changes_between, text_of
from atelier.infra.dag import Node
from atelier.infra.store.lease import Holder
from atelier.infra.store.run_manifest import (
    Row,
    RunManifest,
    called,
    comparable,
    described,
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
    """The run with this id, or whose id begins or ends with `word`. Raises ConfigError if there is none, if
    there are several, or if it is active; DamageError if its manifest cannot be read.
    """
    there, damaged = read_manifests(store)
    found = called(there, word, PLACE)
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
    anything but `from_task` and what follows it would be another thing than in that run.
    """
    past = past_run(store, word)
    new = list(words) if from_form else with_keys(past.flow, list(words))
    own, notes = _recorded(past, store, from_form=from_form)
    asked = merged(own, new)
    frozen = _composed(past, asked, from_form=from_form)
    if default_pool and not frozen.pool.is_served:
        asked = merged(asked, [f"pool={default_pool}"])
        frozen = _composed(past, asked, from_form=from_form)
    nodes = collect_nodes(frozen, store)
    changed = [node.name for node in nodes if _is_changed(node, rows_of(past))]
    if is_alive(past) is None:
        host = Holder.read(past.holder).host if past.holder else "unknown"
        notes.append(f"run {past.id} has no end; it may be active on its machine ({host})")
    if from_task:
        _check_from(past, nodes, from_task, changed, _Words(own, new, from_form), store)
    request = RerunRequest(past.id, tuple(new), from_task)
    return Rerun(past, replace(frozen, rerun=request), nodes, changed, notes)


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


def following(nodes: Sequence[Node], name: str) -> set[str]:
    """The node and all that wait for it."""
    found = {name}
    for node in nodes:  # in the order of the flow
        if not found.isdisjoint(node.waits):
            found.add(node.name)
    return found


@dataclass(frozen=True)
class _Words:
    """The words of a request: the past run's own, and the new ones."""

    own: list[str]
    new: list[str]
    from_form: bool


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


def _composed(past: RunManifest, words: list[str], *, from_form: bool = False) -> RunConfig:
    try:
        return compose(past.flow, words, from_form=from_form)
    except ConfigError as error:
        raise ConfigError(f"{PLACE} {past.id}", str(error)) from None


def _recorded(past: RunManifest, store: Store, *, from_form: bool) -> tuple[list[str], list[str]]:
    """The words that compose the run's own configuration, and notes. If conf/ or a default has changed since,
    the recorded values are added to its overrides, so that they stay.
    """
    own = merged(past.overrides, ())
    try:
        frozen = compose(past.flow, own, from_form=from_form)
        if not any(_is_changed(node, rows_of(past)) for node in collect_nodes(frozen, store)):
            return own, []
    except AtelierError:
        return own, []  # the new words may mend it; if not, composing them says so
    now, before = flatten(frozen.document), flatten(dict(past.config))
    other = {
        key: value
        for key, value in before.items()
        if key in now and canonical(value) != canonical(now[key]) and not _is_under(key, NOT_KEPT)
    }
    kept = {key: word for key, value in other.items() if (word := _word(key, value))}
    try:
        compose(past.flow, [*own, *kept.values()], from_form=from_form)
    except AtelierError:
        kept = {}
    notes = [f"{word} as in run {past.id}: it would now be {now[key]}" for key, word in kept.items()]
    return [*own, *kept.values()], notes


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
    return row.name.removesuffix(f".{row.key}") if row.key and row.name != row.key else row.name


def _check_from(
    past: RunManifest,
    nodes: list[Node],
    name: str,
    changed: list[str],
    words: _Words,
    store: Store,
) -> None:
    """Raises ConfigError unless the flow has the task, and nothing changes but it and what follows it."""
    names = [node.name for node in nodes]
    if name not in names:
        was = name in {_task_of(row) for row in past.tasks}
        by = f" with {' '.join(words.new)}" if words.new else ""
        problem = f"the flow {past.flow} no longer has the task {name}{by}" if was else f"no task {name}"
        near = nearest(name, names)
        raise ConfigError(
            FROM,
            problem,
            (f"did you mean {near}? " if near and not was else "") + f"there are: {', '.join(names)}",
        )
    after = following(nodes, name)
    others = [one for one in changed if one not in after]
    if not others:
        return
    first = next(node for node in nodes if node.name == others[0])
    waited = following(nodes, first.name)
    where = f"which is before {name}" if name in waited else f"which does not follow {name}"
    allowed = f"--from {first.name}, or " if set(others) <= waited and set(changed) <= waited else ""
    way_out = f"{allowed}without --from all that changes is made"
    keys = _blamed(past, first.name, words, store)
    if keys:
        raise ConfigError(f"{FROM} {name}", f"{' '.join(keys)} changes {first.name}, {where}", way_out)
    why = "; ".join(text_of(one) for one in _reasons(first, rows_of(past))[:FEW])
    problem = f"{first.name}, {where}, is another one now than in run {past.id} ({why})"
    raise ConfigError(f"{FROM} {name}", problem, way_out)


def _reasons(node: Node, rows: Mapping[str, Row]) -> list[Reason]:
    found: list[Reason] = []
    for key, product in node.products.items():
        row = rows.get(row_name(node, key))
        if row is None:
            found.append({"new": True})
        else:
            now = (comparable(product), parents_of(product))
            found += changes_between((row.identity, row.parents), now)
    return found


def _blamed(past: RunManifest, name: str, words: _Words, store: Store) -> list[str]:
    """The new words that change the node: each that does so alone, else all of them; empty if it differs
    without them too.
    """

    def rows(new: Sequence[str]) -> list[str]:
        frozen = compose(past.flow, merged(words.own, new), from_form=words.from_form)
        found = [node for node in collect_nodes(frozen, store) if node.name == name]
        return [row.fingerprint for node in found for row in described(node)]

    if not words.new:
        return []
    try:
        before = rows(())
    except AtelierError:
        return words.new
    if before == rows(words.new):
        return []
    alone = list[str]()
    for word in words.new:
        try:
            alone += [word] if rows([word]) != before else []
        except AtelierError:
            continue  # it needs another one
    return alone or words.new
