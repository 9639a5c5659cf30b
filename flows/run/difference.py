"""How two runs, or two models, differ: configuration, data, code, environment, layout, scores, curves."""

from collections.abc import Iterator, Mapping
from typing import TypedDict

from atelier.engine.config.base import Json, canonical, flatten
from atelier.engine.config.document import section_of
from atelier.engine.config.error import ConfigError, DamageError
from atelier.engine.config.record import CURATED, DATA_KINDS, Record
from atelier.flows.run.parting import TOLERANCE, devices_of, lines_of, parting
from atelier.flows.run.reasons import changes_between, text_of
from atelier.flows.run.sides import ComparedPart, Side
from atelier.infra.code.code_change import changed
from atelier.infra.report.lineage import NUMBERS, step_of, trajectory_segments
from atelier.infra.store.trajectory import code_at, read_code

SCORED = ("eval_loss", "loss", "bits_per_byte", "accuracy", "perplexity")
SIZES = (*(key for key in NUMBERS if key not in SCORED), "train_tokens", "held_out_tokens")
SCORES = ("model", "adapter", "scores", "evaluation", "exam")
END = 10**9  # after the last step of a training that has not ended


class ComparedRow(TypedDict):
    """One of the two compared things."""

    what: str  # run, or the kind of an artifact
    id: str
    name: str
    command: str


class KeyRow(TypedDict):
    """A value that differs; None = absent. `of`: whose, '' = of the whole run."""

    key: str
    first: Json
    second: Json
    of: str


class ArtifactRow(TypedDict):
    """An artifact that differs, by its role, with fingerprints and the reasons."""

    name: str
    kind: str
    first: str
    second: str
    because: list[str]


class CodeRow(TypedDict):
    """Files of code that differ, with functions where known, and the artifacts that they made."""

    files: list[str]
    artifacts: list[str]


class PartingRow(TypedDict):
    """Comparison of two curves: `step` and `values` where they part, `loss_step` where the loss does, None =
    nowhere in the `common` steps. `tolerance` is relative; `first` and `second` are first and last steps.
    """

    of: str
    is_one: bool  # both are the same training
    step: int | None
    values: dict[str, tuple[float | None, float | None]]
    loss_step: int | None
    common: int
    first: tuple[int, int] | None
    second: tuple[int, int] | None
    tolerance: float


class Difference(TypedDict):
    """Output of `atelier diff --json`. `alone` has the tasks that only one of two runs has; `unknown` says
    what could not be compared, and why.
    """

    first: ComparedRow
    second: ComparedRow
    configuration: list[KeyRow]
    data: list[ArtifactRow]
    artifacts: list[ArtifactRow]
    code: list[CodeRow]
    environment: list[KeyRow]
    layout: list[KeyRow]
    scores: list[KeyRow]
    curves: list[PartingRow]
    alone: dict[str, list[str]]
    unknown: list[str]


def difference(first: Side, second: Side) -> Difference:
    """Compare two sides. Raises ConfigError when they share nothing."""
    shared = [name for name in first.parts if name in second.parts]
    if (first.what, second.what).count("run") == 1 or not shared:
        problem = f"{first.text} and {second.text} share no task and no kind of artifact"
        raise ConfigError("diff", problem, "compare two runs, two models, or a run with a model")
    pairs = {name: (first.parts[name], second.parts[name]) for name in shared}
    unknown: list[str] = []
    rows = [row for name, pair in pairs.items() if (row := _artifact(name, *pair)) is not None]
    moved = {name: pair for name, pair in pairs.items() if not _is_one(first, second, *pair)}
    top = changes_between((_settings(*pairs[shared[0]])[0], {}), (_settings(*pairs[shared[0]])[1], {}))
    keys = [
        KeyRow(key=one.get("key", ""), first=one.get("old"), second=one.get("new"), of="")
        for one in top
        if "key" in one
    ]
    if first.config is not None and second.config is not None:
        keys = _keys(first.config, second.config)
    for name, pair in moved.items():
        for side, part in zip((first, second), pair, strict=True):
            if part.gone:
                unknown.append(f"code, environment and scores of {name} of {side.text}: {part.gone}")
    curves = _curves(first, second, pairs, unknown)
    return {
        "first": _thing(first),
        "second": _thing(second),
        "configuration": keys,
        "data": [row for row in rows if row["kind"] in (*DATA_KINDS, *CURATED)],
        "artifacts": [row for row in rows if row["kind"] not in (*DATA_KINDS, *CURATED)],
        "code": _code(first, second, moved, unknown),
        "environment": _environment(moved, curves[1]),
        "layout": [row for name, pair in moved.items() for row in _layout(name, *pair)],
        "scores": [row for name, pair in pairs.items() for row in _scores(name, *pair)],
        "curves": curves[0],
        "alone": {
            "first": [name for name in first.parts if name not in second.parts],
            "second": [name for name in second.parts if name not in first.parts],
        },
        "unknown": unknown,
    }


def _thing(side: Side) -> ComparedRow:
    return {"what": side.what, "id": side.id, "name": side.name, "command": side.command}


def _is_one(first: Side, second: Side, ours: ComparedPart, theirs: ComparedPart) -> bool:
    """Whether both sides have the same files, which one process made."""
    return first.store.root == second.store.root and ours.fingerprint == theirs.fingerprint


def _keys(ours: Mapping[str, Json], theirs: Mapping[str, Json], of: str = "") -> list[KeyRow]:
    return [
        KeyRow(key=key, first=ours.get(key), second=theirs.get(key), of=of)
        for key in sorted({*ours, *theirs})
        if (key in ours) != (key in theirs) or canonical(ours.get(key)) != canonical(theirs.get(key))
    ]


def _settings(ours: ComparedPart, theirs: ComparedPart) -> tuple[Mapping[str, Json], Mapping[str, Json]]:
    """Identities whose keys are of one form."""
    if ours.settings is not None and theirs.settings is not None:
        return ours.settings, theirs.settings
    return ours.plain, theirs.plain


def _artifact(name: str, ours: ComparedPart, theirs: ComparedPart) -> ArtifactRow | None:
    """The row of an artifact that differs; None if it is the same."""
    if ours.fingerprint == theirs.fingerprint:
        return None
    before, now = _settings(ours, theirs)
    because = [text_of(one) for one in changes_between((before, ours.parents), (now, theirs.parents))]
    if ours.record is not None and theirs.record is not None:
        old, new = ours.record, theirs.record
        if old.version != new.version:
            because.append(f"version of the task: {old.version} -> {new.version}")
        because += [f"{key}: {a} -> {b}" for key, a, b in _numbers(old, new, SIZES) if a != b]
    because = because or ["another version of the task, or another training: settings and parents are equal"]
    return {
        "name": name,
        "kind": ours.kind or theirs.kind,
        "first": ours.fingerprint,
        "second": theirs.fingerprint,
        "because": because,
    }


def _numbers(old: Record, new: Record, keys: tuple[str, ...]) -> Iterator[tuple[str, float, float]]:
    for key in keys:
        before, now = old.summary.get(key), new.summary.get(key)
        if isinstance(before, int | float) and isinstance(now, int | float):
            yield key, before, now


def _code(
    first: Side, second: Side, pairs: Mapping[str, tuple[ComparedPart, ComparedPart]], unknown: list[str]
) -> list[CodeRow]:
    """The differing files of all artifacts, those with the same files together."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name, (ours, theirs) in pairs.items():
        if ours.record is None or theirs.record is None:
            continue
        old, new = ours.record.provenance.get("code"), theirs.record.provenance.get("code")
        if old is None and new is None:  # a task that runs without the engine
            continue
        if not isinstance(old, dict) or not isinstance(new, dict):
            unknown.append(f"code of {name}: only one of the two recorded it")
        elif files := changed(old, new):
            detailed = changed(_detailed(first, ours), _detailed(second, theirs))
            known = {text.split(" ")[0]: text for text in detailed}
            files = [known.get(file.split(" ")[0], file) for file in files]
            found.setdefault(tuple(files), []).append(name)
    return [CodeRow(files=[*files], artifacts=names) for files, names in found.items()]


def _detailed(side: Side, part: ComparedPart) -> dict[str, dict[str, str]]:
    """The map of functions of the code that trained a model; {} when it is not kept."""
    step = step_of(part.record) if part.record is not None and part.trajectory else None
    address = side.store.address("trajectory", part.trajectory)
    digest = code_at(address, step) if step is not None else None
    return dict(read_code(address, digest)) if digest else {}


def _environment(
    pairs: Mapping[str, tuple[ComparedPart, ComparedPart]], devices: Mapping[str, tuple[str, str]]
) -> list[KeyRow]:
    """Libraries, commit, machine and device that differ, each difference once, with its artifacts."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for name, (ours, theirs) in pairs.items():
        if ours.record is not None and theirs.record is not None:
            for row in _keys(_surroundings(ours.record), _surroundings(theirs.record)):
                place = (row["key"], str(row["first"] or "none"), str(row["second"] or "none"))
                found.setdefault(place, []).append(name)
    for name, (one, other) in devices.items():
        if one and other and one != other:
            found.setdefault(("device", one, other), []).append(name)
    return [
        KeyRow(key=key, first=one, second=other, of=", ".join(names))
        for (key, one, other), names in sorted(found.items())
    ]


def _surroundings(record: Record) -> dict[str, Json]:
    """Where and with what a record was made, as text by name."""
    about = section_of(record.dump()["provenance"])
    commit, diff = about.get("commit") or "", about.get("diff") or ""
    found: dict[str, Json] = {"commit": f"{commit}{f' with changes {diff}' if diff else ''}"}
    found["host"] = about.get("host")
    versions = about.get("versions")
    return found | (dict(versions) if isinstance(versions, Mapping) else {})


def _layouts(part: ComparedPart) -> Json:
    return section_of(part.record.dump()["provenance"]).get("layouts") if part.record is not None else None


def _layout(name: str, ours: ComparedPart, theirs: ComparedPart) -> list[KeyRow]:
    old, new = _layouts(ours), _layouts(theirs)
    if not isinstance(old, list) or not isinstance(new, list) or canonical(old) == canonical(new):
        return []
    if len(old) != len(new):
        return [KeyRow(key="layouts", first=old, second=new, of=name)]
    return [row for pair in zip(old, new, strict=True) for row in _keys(*map(flatten, pair), of=name)]


def _scores(name: str, ours: ComparedPart, theirs: ComparedPart) -> list[KeyRow]:
    if ours.record is None or theirs.record is None or ours.kind not in SCORES:
        return []
    found = _numbers(ours.record, theirs.record, SCORED)
    return [KeyRow(key=key, first=one, second=other, of=name) for key, one, other in found]


def _curves(
    first: Side, second: Side, pairs: Mapping[str, tuple[ComparedPart, ComparedPart]], unknown: list[str]
) -> tuple[list[PartingRow], dict[str, tuple[str, str]]]:
    """The comparisons of all trainings, and the devices of each."""
    rows, devices = [], {}
    for name, (ours, theirs) in pairs.items():
        if not ours.trajectory or not theirs.trajectory:
            continue
        try:
            old, new = (
                lines_of(trajectory_segments(side.store, part.trajectory, END))
                for side, part in ((first, ours), (second, theirs))
            )
        except DamageError as damage:
            unknown.append(f"curve of {name}: {damage}; {damage.way_out}")
            continue
        for side, lines in ((first, old), (second, new)):
            if not lines:
                unknown.append(f"curve of {name} of {side.text}: its training has no metrics in the store")
        devices[name] = (", ".join(devices_of(old)), ", ".join(devices_of(new)))
        is_apart = bool(_layout(name, ours, theirs)) or devices[name][0] != devices[name][1]
        tolerance = TOLERANCE if is_apart else 0.0
        is_one = first.store.root == second.store.root and ours.trajectory == theirs.trajectory
        found = parting(old, new, tolerance=tolerance)
        rows.append(PartingRow(of=name, is_one=is_one, tolerance=tolerance, **vars(found)))
    return rows, devices
