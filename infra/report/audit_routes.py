"""The routes of text to a model as the config of its audit, with the inputs that the audit reads."""

from collections.abc import Mapping

from atelier.engine.config.audit import AuditConfig, AuditLesson, AuditRoute
from atelier.engine.config.error import AtelierError
from atelier.engine.config.record import Record
from atelier.engine.io.storage import join, size
from atelier.infra.dag import Reference
from atelier.infra.report.ancestry import TextRoute, routes
from atelier.infra.report.lineage import Index
from atelier.infra.store.data_plans import plan_of, recorded_plan
from atelier.infra.store.store import Store

Inputs = dict[str, tuple[str, str]]
WORDS = {
    "own": "its own text",
    "init": "the model that it started from",
    "teacher": "its teacher",
    "tokenizer": "its tokenizer",
    "written": "text that a model wrote",
    "imitated": "imitations that a model wrote",
    "adopted": "from outside",
    "unreadable": "cannot be seen",
}


def audit_config(
    store: Store, model: Record, sets: Mapping[str, Record], indices: Mapping[str, str]
) -> tuple[AuditConfig, Inputs]:
    """The config, and kind and fingerprint of each input. `indices`: fingerprints of indices of words by the
    fingerprint of their corpus; those that are finished are used.
    """
    index, inputs = Index(store), Inputs()
    found = [_route(store, index, each, inputs) for each in routes(index, model)]
    usable: dict[str, str] = {}
    for kind, corpus in [given for given in inputs.values() if given[0] == "corpus"]:
        own = indices.get(corpus, "")
        if own and store.find("word_index", own) is not None:
            usable[_named(inputs, kind, corpus)] = _named(inputs, "word_index", own)
    inputs |= {f"set.{name}": (record.kind, record.fingerprint) for name, record in sets.items()}
    return AuditConfig(sets=tuple(sets), routes=tuple(found), indices=usable), inputs


def unseen_and_corpora(store: Store, model: Record) -> tuple[tuple[str, ...], list[Reference]]:
    """Fingerprints of a model's ancestors that cannot be seen, and the corpora on the routes to it that can
    be indexed. A corpus of which a file is missing or cut cannot be seen.
    """
    found = routes(Index(store), model)
    unseen = {each.end.fingerprint for each in found if each.kind == "unreadable"}
    ends = {each.end.fingerprint: each.end.record for each in found}
    corpora = [record for record in ends.values() if record is not None and record.kind == "corpus"]
    torn = {record.fingerprint for record in corpora if not _has_files(store, record)}
    whole = [
        Reference(kind=record.kind, fingerprint=record.fingerprint, name=record.name, node="")
        for record in corpora
        if record.fingerprint not in torn
    ]
    return tuple(sorted(unseen | torn)), whole


def _has_files(store: Store, record: Record) -> bool:
    """Whether the files of an artifact are there with their sizes. Their digests are compared when they are
    read.
    """
    address = store.address(record.kind, record.fingerprint)
    try:
        return all(size(join(address, file.path)) == file.bytes for file in record.files)
    except OSError:
        return False


def _named(inputs: Inputs, kind: str, fingerprint: str) -> str:
    """The name of an input, which is added if it is new."""
    name = f"{kind}.{fingerprint[:16]}"
    inputs[name] = (kind, fingerprint)
    return name


def _route(store: Store, index: Index, route: TextRoute, inputs: Inputs) -> AuditRoute:
    words = words_of(route)
    lessons = tuple(
        AuditLesson(student=each.student, first=each.first, last=each.last, teacher_end=each.teacher_end)
        for each in route.lessons
    )
    end = route.end.record
    if route.unknown or end is None:
        lost = route.unknown or f"the record of {route.end.label} {route.end.fingerprint[:8]} is gone"
        is_tokenizer = "tokenizer" in route.via
        return AuditRoute(
            kind=route.kind,
            words=words,
            is_tokenizer=is_tokenizer,
            unknown=f"{words}: {lost}",
            lessons=lessons,
        )
    text = _named(inputs, end.kind, end.fingerprint)
    plain = AuditRoute(
        kind=route.kind, words=words, is_tokenizer="tokenizer" in route.via, text=text, lessons=lessons
    )
    read, tokenizer = route.training, _tokenizer_of(index, route)
    named = {"tokenizer": _named(inputs, "tokenizer", tokenizer)} if tokenizer else {}
    if read is None:
        lost = any(each.record is not None and "trajectory" in each.record.parents for each in route.chain)
        unknown = f"{words}: no record tells which steps read it" if lost else ""
        return plain.model_copy(update={"inputs": named, "unknown": unknown})
    try:
        plan = plan_of(store, index.trajectory_records, index.records, read)
    except (AtelierError, ValueError, KeyError, TypeError) as error:
        return plain.model_copy(update={"inputs": named, "unknown": f"{words}: {error}"})
    parents: dict[str, str] = {}
    for each in read.trajectories:
        record = index.trajectory_records.get(each)
        parents |= dict(record.parents) if record is not None else {}
    for key in {"tokenizer", *(stream.input for stream in plan.streams)}:
        known = index.records.get(parents.get(key, ""))
        if known is not None:
            named[key] = _named(inputs, known.kind, known.fingerprint)
    before = route.chain[-2].record if len(route.chain) > 1 else None
    is_tokens = before is not None and before.kind == "tokens"
    return plain.model_copy(
        update={
            "tokens": _named(inputs, before.kind, before.fingerprint) if before and is_tokens else "",
            "source": read.source,
            "plan": plan,
            "inputs": named,
            "start": read.start,
            "end": read.end,
            "after": max(read.end, read.counted_to),
            "left_out": read.left_out,
            "all_left_out": read.all_left_out,
            "consumed": read.consumed,
            "is_recorded": recorded_plan(store, read.planned) is not None,
        }
    )


def _tokenizer_of(index: Index, route: TextRoute) -> str:
    """The tokenizer of the last artifact on the way that has one among its parents."""
    for each in reversed(route.chain):
        if each.record is not None and (found := each.record.parents.get("tokenizer")) in index.records:
            return found or ""
    return ""


def words_of(route: TextRoute) -> str:
    """The way in words: what read the text, and each station from the model to it."""
    stations = []
    for each in route.chain:
        record = each.record
        name = f"{record.name} {each.fingerprint[:8]}" if record else f"{each.fingerprint[:8]} (gone)"
        kind = record.kind if record else each.label
        stations.append(f"{kind} {name}")
    lessons = "".join(
        f"; {each.student} was taught in steps {each.first} to {each.last}"
        + (f" by what it had read before step {each.teacher_end}" if each.teacher_end is not None else "")
        for each in route.lessons
    )
    via = ", ".join(WORDS[each] for each in route.via) or WORDS[route.kind]
    return f"{via}: {' <- '.join(stations)}{lessons}"
