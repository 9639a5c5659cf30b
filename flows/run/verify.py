"""Compute finished nodes of a past run again, into scratch, and compare the bytes with those in the store."""

import importlib
import json
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypedDict

from atelier.engine.config.base import Json, canonical, fingerprint, flatten
from atelier.engine.config.direction import TIMED
from atelier.engine.config.document import section_of
from atelier.engine.config.error import AtelierError, StoppedError
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.record import FileEntry, Record
from atelier.engine.io.first_difference import first_difference
from atelier.engine.io.storage import is_local, join, local_path, remove
from atelier.flows.run.compose import RunConfig
from atelier.flows.run.contexts import new_run_id, open_context
from atelier.flows.run.parting import lines_of, parting
from atelier.flows.run.work import work
from atelier.infra.code.code_map import maps_of
from atelier.infra.code.provenance import versions
from atelier.infra.dag import Node, Product
from atelier.infra.report.lineage import trajectory_segments
from atelier.infra.run.context import Listener, RunContext
from atelier.infra.run.resume_plan import Resume, made_by_other
from atelier.infra.store.run_manifest import RunManifest, manifests, row_name
from atelier.infra.store.store import SHORT, Store
from atelier.infra.tracking.factory import TrackerSpec

EQUAL, DIFFERS, FAILED, UNKNOWN = "equal", "differs", "failed", "unknown"
ATTEMPT = "payload-"  # first letters of the folder of one attempt
END = 10**9  # after the last step of a training
MOST = 4  # values of a curve that are shown


class ScratchStore(Store):
    """A store for a trial: the artifacts and trajectories `own` (kind, fingerprint) are made and found below
    `root`. Whatever else is asked for is read from the store `behind`, which does not change.
    """

    def __init__(self, behind: Store, root: str, own: Collection[tuple[str, str]]) -> None:
        super().__init__(root)
        self.behind = behind
        self._own = {(kind, fingerprint[:SHORT]) for kind, fingerprint in own}

    def address(self, kind: str, fingerprint: str) -> str:
        is_own = (kind, fingerprint[:SHORT]) in self._own
        return super().address(kind, fingerprint) if is_own else self.behind.address(kind, fingerprint)

    def shorts(self, kind: str) -> list[str]:
        others = [short for short in self.behind.shorts(kind) if (kind, short) not in self._own]
        return sorted([*super().shorts(kind), *others])


class VerifiedRow(TypedDict):
    """An artifact that was computed again: `state` is equal, differs, failed (it could not be computed) or
    unknown (there is nothing to compare). `sha256` is the digest of all its files and its summary; `differs`
    has the differing files, each with the first difference, and `notes` what else has changed since.
    """

    task: str
    name: str
    kind: str
    fingerprint: str
    state: str
    sha256: str
    differs: list[str]
    notes: list[str]
    kept: str  # folder with what was computed, if it differs


def verify(
    frozen: RunConfig,
    past: RunManifest,
    nodes: Sequence[Node],
    store: Store,
    listener: Listener,
    stop: threading.Event,
) -> Iterator[VerifiedRow]:
    """Compute each node again from its inputs in the store, which does not change, and compare. Raises
    StoppedError when `stop` is set.
    """
    runs = {one.id: one for one in manifests(store)}
    for node in nodes:
        yield from _verified(frozen, runs, past, node, store, listener, stop)


def _verified(
    frozen: RunConfig,
    runs: Mapping[str, RunManifest],
    past: RunManifest,
    node: Node,
    store: Store,
    listener: Listener,
    stop: threading.Event,
) -> Iterator[VerifiedRow]:
    records = {key: store.find(p.kind, p.fingerprint) for key, p in node.products.items()}
    found = {key: record for key, record in records.items() if record is not None}
    if why := _impossible(node, found, store):
        yield from (_row(node, key, UNKNOWN, notes=[why]) for key in node.products)
        return
    first = next(iter(found.values()))
    maker = runs.get(first.provenance.get("run", ""), past)
    node, notes = _as_made(node, first, maker)
    name = f"verify-{new_run_id()}"
    root = join(store.root, "scratch", name, "store")
    own = {(p.kind, p.fingerprint) for p in node.products.values()}
    own |= {("trajectory", one) for p in node.products.values() for one in p.trajectories}
    scratch = ScratchStore(store, root, own)
    silent = replace(frozen, tracker=TrackerSpec(), resume=Resume())
    context = open_context(silent, store, maker.command, name, listener, stop=stop).of_task(node.task)
    context = replace(context, store=scratch, run_id=maker.id, flow=maker.flow, others={})
    try:
        work(node, context, {}, {})
        rows = [_compared(node, key, found.get(key), store, scratch, notes) for key in node.products]
    except StoppedError:
        _clear(store, name, context)
        raise
    except AtelierError as error:
        rows = [_row(node, key, FAILED, notes=[str(error), *notes]) for key in node.products]
    if all(row["state"] == EQUAL for row in rows):
        _clear(store, name, context)
        yield from rows
        return
    moved = _set_aside(store, name, past)
    for row in rows:
        row["kept"] = row["kept"].replace(name, moved)
        row["notes"] = [text.replace(name, moved) for text in row["notes"]]
        yield row


def _set_aside(store: Store, name: str, past: RunManifest) -> str:
    """Move the scratch of a trial that has ended into that of the past run, and return its place there.
    Garbage collection takes a folder of its own for a run that may be active. A remote store cannot move it.
    """
    if not is_local(store.root):
        return name
    folder = local_path(join(store.root, "scratch"))
    (folder / past.id).mkdir(mode=0o700, exist_ok=True)
    (folder / name).rename(folder / past.id / name)
    return f"{past.id}/{name}"


def _clear(store: Store, name: str, context: RunContext) -> None:
    """Remove the scratch folders, in the store and on this machine."""
    remove(join(store.root, "scratch", name))
    remove(str(context.scratch))


def _compared(
    node: Node, key: str, record: Record | None, store: Store, scratch: Store, notes: list[str]
) -> VerifiedRow:
    product = node.products[key]
    again = scratch.find(product.kind, product.fingerprint)
    if record is None or again is None:
        return _row(node, key, UNKNOWN, notes=["the store has no such artifact"])
    damages = [f"damaged in the store: {damage}" for damage in store.check(record)]
    differs = damages or _differing(record, again, store, scratch)
    differs += _parted(product, store, scratch) if differs else []
    code = made_by_other(record, maps_of(node).get(key))
    notes = [*notes, *([code] if code else []), *(_versions(record) if differs else [])]
    return _row(
        node,
        key,
        DIFFERS if differs else EQUAL,
        sha256=_digest(record),
        differs=differs,
        notes=notes,
        kept=scratch.address(product.kind, product.fingerprint) if differs else "",
    )


def _impossible(node: Node, found: Mapping[str, Record], store: Store) -> str:
    """Why a node cannot be computed again and compared; '' if it can."""
    if not found:
        return "it is not finished: there is nothing to compare"
    if hasattr(importlib.import_module(f"atelier.tasks.{node.task}"), "reuse"):
        return "it acts outside the store, on a tracker: that is not done again"
    gone = [role for role, (kind, fp) in node.inputs.items() if store.find(kind, fp) is None]
    return f"its input {gone[0]} no longer exists" if gone else ""


def _as_made(node: Node, record: Record, maker: RunManifest) -> tuple[Node, list[str]]:
    """The node with the layout and micro-batch with which it was made, and notes."""
    notes, changes = list[str](), dict[str, Json | int]()
    layouts = section_of(record.dump()["provenance"]).get("layouts")
    given = [one for one in layouts if isinstance(one, dict)] if isinstance(layouts, list) else []
    if given and canonical(given[-1]) != canonical(node.layout):
        changes |= {"layout": given[-1], "ranks": Parallel.model_validate(given[-1]).ranks}
        notes.append("computed with the layout with which it was made, not with the present one")
    if len({canonical(one) for one in given}) > 1:
        notes.append(f"it was made on {len(given)} layouts: bits may differ where the last one alone is used")
    train = section_of(node.config.get("train")) if "train" in node.config else {}
    batch = section_of(maker.config.get("train")).get("micro_batch") if "train" in maker.config else None
    if batch is not None and "micro_batch" in train and train["micro_batch"] != batch:
        changes["config"] = {**node.config, "train": {**train, "micro_batch": batch}}
    return node.model_copy(update=changes), notes


def _plain(entry: FileEntry) -> str:
    """The file's path without the folder of the attempt."""
    folder, _, rest = entry.path.partition("/")
    return rest if folder.startswith(ATTEMPT) and rest else entry.path


def _files(record: Record) -> dict[str, FileEntry]:
    return {_plain(entry): entry for entry in record.files}


def _digest(record: Record) -> str:
    files: dict[str, Json] = {path: entry.sha256 for path, entry in _files(record).items()}
    return fingerprint({"files": files, "summary": _summary(record)})


def _summary(record: Record) -> dict[str, Json]:
    """The record's summary by dotted key, without measured times."""
    found = flatten(record.dump()["summary"])
    last = {key: key.rpartition(".")[2] for key in found}
    return {key: value for key, value in found.items() if last[key] not in TIMED and not _is_time(last[key])}


def _is_time(key: str) -> bool:
    """Whether a key of a summary is a measured time."""
    return key == "seconds" or key.endswith("_s")


def _differing(record: Record, again: Record, store: Store, scratch: Store) -> list[str]:
    """The files and keys of the summary that differ, each with its first difference."""
    found = list[str]()
    ours, theirs = _files(record), _files(again)
    for path in sorted({*ours, *theirs}):
        if path not in theirs or path not in ours:
            found.append(f"{path}: only {'the store' if path in ours else 'the new one'} has it")
        elif ours[path].sha256 != theirs[path].sha256:
            urls = [
                join(where.address(record.kind, record.fingerprint), entry.path)
                for where, entry in ((store, ours[path]), (scratch, theirs[path]))
            ]
            found.append(f"{path}: {first_difference(*urls)}")
    old, new = _summary(record), _summary(again)
    for key in sorted({*old, *new}):
        if canonical(old.get(key)) != canonical(new.get(key)):
            found.append(f"summary {key}: {_short(old.get(key))} | {_short(new.get(key))}")
    return found


def _parted(product: Product, store: Store, scratch: Store) -> list[str]:
    """The step at which a training's curves part, as one line; none for other artifacts."""
    if not product.trajectories:
        return []
    try:
        ours, theirs = (
            lines_of(trajectory_segments(one, product.trajectories[-1], END)) for one in (store, scratch)
        )
    except AtelierError:
        return []
    found = parting(ours, theirs)
    if found.step is None:
        return [f"its curve is equal in all {found.common} steps"] if found.common else []
    pairs = [f"{key} {one} | {other}" for key, (one, other) in found.values.items()][:MOST]
    return [f"its curve parts at step {found.step}: {', '.join(pairs)}"]


def _versions(record: Record) -> list[str]:
    """Libraries of which this machine has another version than the one that made the record."""
    was, now = section_of(record.dump()["provenance"]).get("versions"), versions()
    if not isinstance(was, dict):
        return []
    return [f"{name} {old} then, {now.get(name)} now" for name, old in was.items() if old != now.get(name)]


def _short(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _row(
    node: Node,
    key: str,
    state: str,
    *,
    sha256: str = "",
    differs: Sequence[str] = (),
    notes: Sequence[str] = (),
    kept: str = "",
) -> VerifiedRow:
    product = node.products[key]
    return {
        "task": node.name,
        "name": row_name(node, key),
        "kind": product.kind,
        "fingerprint": product.fingerprint,
        "state": state,
        "sha256": sha256,
        "differs": list(differs),
        "notes": list(notes),
        "kept": kept,
    }
