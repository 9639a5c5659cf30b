"""Pick the best of some runs, or of a sweep's points, by a metric."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from atelier.engine.config.direction import is_higher_better, required, sign_of
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.record import Record
from atelier.engine.io.storage import join, names
from atelier.flows.run.sweep_ledger import DONE, FOLDER, Ledger, PointEntry
from atelier.infra.report.held_out import WAY_OUT, differing, held_out_of
from atelier.infra.store.run_manifest import Row, manifests, measured
from atelier.infra.store.store import Store

FEWEST_DIGITS = 4


@dataclass(frozen=True)
class Candidate:
    """A finished run or point: label, command line, artifacts and value."""

    label: str
    command: str
    rows: Sequence[Row]
    value: float | None = None
    record: Record | None = None


@dataclass(frozen=True)
class Picked:
    """The candidates, the best first, and their metric."""

    metric: str
    direction: str
    candidates: list[Candidate]

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    @property
    def order(self) -> str:
        return _end(self.direction)

    @property
    def model(self) -> Record | None:
        """The record that the best value was read from."""
        return self.best.record


@dataclass(frozen=True)
class Compared:
    """The metric of a sweep. `direction`: '' in the ledger of an earlier version."""

    word: str
    metric: str
    direction: str


def choose(store: Store, words: Sequence[str], metric: str, *, direction: str = "") -> Picked:
    """Compare the finished runs and points that `words` name. Defaults: the `metric` of their sweeps; the
    `direction` of the sweeps, else the metric's.

    Raises ConfigError for a word that names nothing, and for a metric that none of them has, that was
    measured on different held-out sets, or that has no known direction.
    """
    found: dict[str, Candidate] = {}
    sweeps: list[Compared] = []
    for word in words:
        candidates, compared = _named(store, word)
        several = len(words) > 1 and compared is not None
        found |= {f"{word} {one.label}" if several else one.label: one for one in candidates}
        sweeps += [compared] if compared is not None else []
    chosen = metric or _metric_of(sweeps)
    valued = []
    for label, one in found.items():
        there = measured(store, one.rows, chosen)
        if there is not None:
            valued.append(Candidate(label, one.command, one.rows, *there))
    if not valued:
        raise ConfigError(
            "--by", f"none of {len(found)} has {chosen!r}", _way_out(store, list(found.values()))
        )
    sets = ((one.label, held_out_of(one.record, chosen) if one.record else None) for one in valued)
    if problem := differing(sets):
        raise ConfigError("--by", f"{chosen} of {problem}", WAY_OUT)
    direction = direction or _direction_of(chosen, sweeps)
    valued.sort(key=lambda one: (one.value or 0.0) * sign_of(direction))
    return Picked(chosen, direction, valued)


def _metric_of(sweeps: Sequence[Compared]) -> str:
    """The common metric of all sweeps. Raises ConfigError if there is none, or several."""
    first = next(iter(sweeps), None)
    if first is None:
        raise ConfigError("--by", "is required", "give e.g. --by student_a.eval_loss")
    for one in sweeps:
        if one.metric != first.metric:
            problem = f"{first.word} was compared by {first.metric}, {one.word} by {one.metric}"
            raise ConfigError("pick", problem, f"give e.g. --by {first.metric}")
    return first.metric


def _direction_of(metric: str, sweeps: Sequence[Compared]) -> str:
    """The direction in which the sweeps were compared by `metric`, else its declared one. Raises ConfigError
    if there is none, or several.
    """
    found = {one.direction: one.word for one in sweeps if one.metric == metric and one.direction}
    if len(found) > 1:
        said = " and ".join(f"{word} by its {_end(each)}" for each, word in found.items())
        raise ConfigError("pick", f"{metric}: {said}", "give --highest or --lowest")
    return next(iter(found), "") or required(metric, "--by", "give --highest or --lowest")


def _end(direction: str) -> str:
    return "highest" if is_higher_better(direction) else "lowest"


def _named(store: Store, word: str) -> tuple[list[Candidate], Compared | None]:
    """The finished candidates of a sweep or run, named by its id or the beginning of one, and the sweep's
    metric.
    """
    sweeps = _meant(names(join(store.root, FOLDER)), word)
    there = {manifest.id: manifest for manifest in manifests(store)}
    runs = _meant(there, word)
    if len(sweeps) + len(runs) > 1:
        raise ConfigError(
            "pick", f"{len(sweeps) + len(runs)} sweeps and runs begin with {word!r}", "give more digits"
        )
    if sweeps:
        ledger = Ledger(store, sweeps[0])
        flow = ledger.about().flow
        entries = [entry for entry in ledger.entries() if entry.state == DONE]
        if not entries:
            raise ConfigError("pick", f"no point of sweep {sweeps[0]} is finished", "run it to its end first")
        newest = max(entries, key=lambda entry: entry.ended)
        compared = Compared(word, newest.metric, newest.direction)
        return [_point(flow, entry) for entry in entries], compared
    if runs:
        manifest = there[runs[0]]
        if manifest.status != "finished":
            raise ConfigError("pick", f"run {manifest.id} is not finished", "run its command line again")
        return [Candidate(manifest.id, manifest.command, manifest.tasks)], None
    near = nearest(word, [*names(join(store.root, FOLDER)), *there])
    raise ConfigError(
        "pick",
        f"no sweep or run {word!r}",
        (f"did you mean {near}? " if near else "") + "`atelier runs` lists runs with their sweeps",
    )


def _meant(known: Iterable[str], word: str) -> list[str]:
    """The name that equals `word`, else those that start with it."""
    found = [name for name in known if len(word) >= FEWEST_DIGITS and name.startswith(word)]
    return [word] if word in found else found


def _point(flow: str, entry: PointEntry) -> Candidate:
    return Candidate(f"#{entry.number}", f"atelier {flow} {shlex.join(entry.words)}", entry.rows)


def _way_out(store: Store, candidates: Sequence[Candidate]) -> str:
    """The existing metrics, as an error's way out."""
    there: dict[str, None] = {}
    for row in candidates[0].rows if candidates else ():
        record = store.find(row.kind, row.fingerprint)
        for word, value in record.summary.items() if record is not None else ():
            if isinstance(value, float):
                there[f"{row.model}.{word}"] = None
    return f"there is: {', '.join(list(there)[:12]) or 'no number'}"
