"""One side of `atelier diff`: a run with its products, or a model with its ancestors."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from atelier.engine.config.base import Json, flatten
from atelier.engine.config.error import AtelierError, ConfigError, DamageError
from atelier.engine.config.record import KINDS, Record
from atelier.flows.run.named_run import one_run, runs_with_id
from atelier.infra.report.lineage import Index
from atelier.infra.store.run_manifest import Row, RunManifest, manifests
from atelier.infra.store.store import Store

TRAINED_IN = ("trajectory", "trunk")  # parents whose keys count as the model's own


@dataclass(frozen=True)
class ComparedPart:
    """A product of a run, or an ancestor of a model. `settings` is its identity by configuration key, from a
    run's manifest, `plain` the identity in its record; `gone` says why it has no record.
    """

    kind: str
    fingerprint: str
    parents: Mapping[str, str]
    plain: Mapping[str, Json] = field(default_factory=dict)
    settings: Mapping[str, Json] | None = None
    trajectory: str = ""
    record: Record | None = None
    gone: str = ""


@dataclass(frozen=True)
class Side:
    """One of the two things that are compared. `config` is a run's whole configuration, by key."""

    store: Store
    what: str  # run, or a kind of artifact
    id: str
    name: str
    command: str
    parts: Mapping[str, ComparedPart]
    config: Mapping[str, Json] | None = None

    @property
    def text(self) -> str:
        return f"run {self.id}" if self.what == "run" else f"{self.what} {self.name} {self.id[:8]}"


class Sides:
    """Finds sides in one store, which is read once."""

    def __init__(self, store: Store) -> None:
        self.store, self.index, self.runs = store, Index(store), manifests(store)
        self.rows = {row.fingerprint: row for run in self.runs for row in run.tasks}

    def side(self, word: str) -> Side:
        """The run or artifact called `word`. Raises AtelierError if there is none, ConfigError for several
        runs.
        """
        run = one_run(runs_with_id(self.runs, word), word, "diff")
        if run is not None:
            if run.id != word and any(fp.startswith(word) for fp in self.index.records):
                raise ConfigError("diff", f"{word} begins a run's id and a fingerprint", "give more digits")
            return self._of_run(run)
        try:
            return self._of_artifact(self.store.resolve(word))
        except ConfigError:
            raise
        except AtelierError as error:
            raise ConfigError(
                "diff", f"no run has this id, and {error}", "`atelier runs` lists them"
            ) from None

    def model_of(self, run: Side, other: Side) -> Side:
        """The model of a run to compare with `other`: its only one, or that of the same name. Raises
        ConfigError if there is none.
        """
        (manifest,) = [one for one in self.runs if one.id == run.id]
        rows = [row for row in manifest.tasks if row.kind == other.what]
        named = [row for row in rows if row.model == other.name] or rows
        if len(named) != 1:
            there = ", ".join(row.model for row in rows) or f"none of kind {other.what}"
            raise ConfigError("diff", f"{run.text} has no {other.name} (it has {there})", "name its model")
        record = self.store.find(named[0].kind, named[0].fingerprint)
        if record is None:
            raise ConfigError(
                "diff", f"{named[0].model} of {run.text} no longer exists", "compare the two runs"
            )
        return self._of_artifact(record)

    def _of_run(self, run: RunManifest) -> Side:
        parts = {row.name: self._of_row(row, run) for row in run.tasks}
        config = flatten(run.config)
        return Side(self.store, "run", run.id, run.flow, run.command, parts, config)

    def _of_row(self, row: Row, run: RunManifest) -> ComparedPart:
        record, gone = None, ""
        try:
            record = self.store.find(row.kind, row.fingerprint) if row.kind in KINDS else None
        except DamageError as damage:
            gone = str(damage)
        if record is None:
            task = row.name.removesuffix(f".{row.key}") if row.key else row.name
            state = run.states.get(row.name) or run.states.get(task) or "not run"
            made = state in ("done", "reused")
            gone = gone or ("its record no longer exists" if made else f"it has no result ({state})")
        trajectory = record.parents.get("trajectory", "") if record else ""
        own = trajectory or (row.keeps[-1] if row.keeps else "")
        return ComparedPart(
            row.kind, row.fingerprint, row.parents, self._plain(record), row.identity, own, record, gone
        )

    def _of_artifact(self, record: Record) -> Side:
        parts = {record.kind: self._part(record)}
        parts |= dict(self._above("", parts[record.kind], {record.fingerprint}))
        command = record.provenance.get("command", "")
        return Side(self.store, record.kind, record.fingerprint, record.name, command, parts)

    def _above(self, path: str, part: ComparedPart, seen: set[str]) -> Iterator[tuple[str, ComparedPart]]:
        """The ancestors with the roles that lead to them, each once."""
        for role, fingerprint in sorted(part.parents.items()):
            record = self.index.records.get(fingerprint) or self.index.model_of(fingerprint, part.record)
            record = record or self.index.trajectory_records.get(fingerprint)
            if record is None:
                gone = "its record no longer exists"
                yield f"{path}{role}", ComparedPart("", fingerprint, {}, gone=gone)
            elif record.fingerprint not in seen:
                seen.add(record.fingerprint)
                parent = self._part(record)
                yield f"{path}{role}", parent
                yield from self._above(f"{path}{role}/", parent, seen)

    def _part(self, record: Record) -> ComparedPart:
        row = self.rows.get(record.fingerprint)
        parents = row.parents if row else {k: v for k, v in record.parents.items() if k not in TRAINED_IN}
        own = record.fingerprint if record.kind == "trajectory" else record.parents.get("trajectory", "")
        settings = row.identity if row else None
        return ComparedPart(
            record.kind, record.fingerprint, parents, self._plain(record), settings, own, record
        )

    def _plain(self, record: Record | None) -> dict[str, Json]:
        """The identity in the record and in that of its training, by dotted key."""
        if record is None:
            return {}
        training = self.index.trajectory_records.get(record.parents.get("trajectory", ""))
        return flatten({**(training.identity if training else {}), **record.identity})
