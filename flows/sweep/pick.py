"""Picks the best of some runs, or of a sweep's points, by a metric."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.record import Record
from atelier.engine.io.storage import join, names
from atelier.flows.run.sweep_ledger import DONE, FOLDER, Ledger, PointEntry
from atelier.infra.report.held_out import WAY_OUT, differing, held_out_of
from atelier.infra.store.run_manifest import Row, manifests, measured
from atelier.infra.store.store import Store

FEWEST_DIGITS = 4
RISING = ("accuracy", "auc", "f1", "exact_match")  # metrics of which higher is better


@dataclass(frozen=True)
class Candidate:
    """A finished run or point: what it is called, its command line, what it made and its value."""

    label: str
    command: str
    rows: Sequence[Row]
    value: float | None = None
    record: Record | None = None


@dataclass(frozen=True)
class Picked:
    """The candidates by value, the best first, and what they were compared by."""

    metric: str
    is_rising: bool
    candidates: list[Candidate]

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    @property
    def order(self) -> str:
        return "highest" if self.is_rising else "lowest"

    @property
    def model(self) -> Record | None:
        """The record that the best value was read from."""
        return self.best.record


def choose(store: Store, words: Sequence[str], metric: str, *, highest: bool | None = None) -> Picked:
    """Compare the finished runs and points that `words` name. `highest`: whether higher is better, None = as
    the metric's name says. Raises ConfigError for a word that names nothing and a metric that none of them
    has, or that was measured on different held-out sets.
    """
    found: dict[str, Candidate] = {}
    metrics = [metric] if metric else []
    for word in words:
        for candidate, own in _named(store, word):
            found[candidate.label] = candidate
            metrics += [own] if own else []
    if not metrics:
        raise ConfigError("--by", "what are they compared by?", "give --by student_a.eval_loss, say")
    chosen = metrics[0]
    is_rising = chosen.rpartition(".")[2].endswith(RISING) if highest is None else highest
    valued = []
    for one in found.values():
        there = measured(store, one.rows, chosen)
        if there is not None:
            valued.append(Candidate(one.label, one.command, one.rows, *there))
    if not valued:
        raise ConfigError(
            "--by", f"none of {len(found)} has {chosen!r}", _way_out(store, list(found.values()))
        )
    sets = ((one.label, held_out_of(one.record, chosen) if one.record else None) for one in valued)
    if problem := differing(sets):
        raise ConfigError("--by", f"{chosen} of {problem}", WAY_OUT)
    valued.sort(key=lambda one: (one.value or 0.0) * (-1 if is_rising else 1))
    return Picked(chosen, is_rising, valued)


def _named(store: Store, word: str) -> list[tuple[Candidate, str]]:
    """The finished candidates that a sweep's id, a run's id or the beginning of one names, each with the
    metric it was compared by.
    """
    sweeps = _meant(names(join(store.root, FOLDER)), word)
    there = {manifest.id: manifest for manifest in manifests(store)}
    runs = _meant(there, word)
    if len(sweeps) + len(runs) > 1:
        raise ConfigError(
            "pick", f"{word!r} is the beginning of {len(sweeps) + len(runs)}", "give more of it"
        )
    if sweeps:
        ledger = Ledger(store, sweeps[0])
        flow = ledger.about().flow
        entries = [entry for entry in ledger.entries() if entry.state == DONE]
        if not entries:
            raise ConfigError("pick", f"no point of sweep {sweeps[0]} is finished", "run it to its end first")
        return [(_point(flow, entry), entry.metric) for entry in entries]
    if runs:
        manifest = there[runs[0]]
        if manifest.status != "finished":
            raise ConfigError("pick", f"run {manifest.id} is not finished", "run its command line again")
        return [(Candidate(manifest.id, manifest.command, manifest.tasks), "")]
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
    """The metrics that there are, as the hint of an error."""
    there: dict[str, None] = {}
    for row in candidates[0].rows if candidates else ():
        record = store.find(row.kind, row.fingerprint)
        for word, value in record.summary.items() if record is not None else ():
            if isinstance(value, float):
                there[f"{row.model}.{word}"] = None
    return f"there is: {', '.join(list(there)[:12]) or 'no number'}"
