"""Which training a word means, and whether it still goes on."""

from dataclasses import dataclass

from atelier.engine.config.error import AtelierError, ConfigError
from atelier.infra.report.lineage import manifest_of, trajectory_segments
from atelier.infra.store.checkpoints import trajectories_with
from atelier.infra.store.removal import holder_of
from atelier.infra.store.run_manifest import Row, RunManifest, is_alive, manifests
from atelier.infra.store.store import Store
from atelier.infra.store.trajectory import read_trajectory

PLACE = "watch"


@dataclass(frozen=True)
class Watched:
    """A training: its trajectories, each the trunk of the next. They may not have begun."""

    name: str
    trajectories: tuple[str, ...]


def watched(store: Store, word: str) -> list[Watched]:
    """The trainings of a run; or the one of a role (in the newest run that has it), of a trajectory or of a
    finished model. Raises ConfigError if the word is none of these.
    """
    if (run := manifest_of(store, word)) is not None:
        if not (found := _trained_in(run)):
            raise ConfigError(PLACE, f"the run {run.id} trains no model", "`atelier runs` lists the others")
        return found
    roles = [
        one
        for run in reversed(manifests(store))
        for row, one in _rows(run)
        if word in (row.key, row.model, row.name)
    ]
    if roles:
        return roles[:1]
    if word.isalnum() and len(word) >= 4 and len(found := trajectories_with(store, word)) == 1:
        record = read_trajectory(store, found[0])
        if record.fingerprint.startswith(word):
            return [Watched(record.name, (record.fingerprint,))]
    try:
        model = store.resolve(word, "model")
    except AtelierError as error:
        raise ConfigError(
            PLACE, f"no run, role, trajectory or model: {error}", "`atelier runs` lists the runs"
        ) from None
    last = model.parents.get("trajectory", "")
    if not last:
        raise ConfigError(PLACE, f"{model.name} was not trained here", "atelier examine takes any model")
    chain = trajectory_segments(store, last, model.summary.get("step", 0))
    return [Watched(model.name, tuple(each.fingerprint for each in chain))]


def is_going(store: Store, one: Watched) -> bool:
    """Whether a process trains it, or a run in progress has still to make its model."""
    if any(holder_of(store.address("trajectory", each)) for each in one.trajectories):
        return True
    return any(
        is_alive(run) is not False and store.find(row.kind, row.fingerprint) is None
        for run in manifests(store)
        for row, other in _rows(run)
        if not set(other.trajectories).isdisjoint(one.trajectories)
    )


def end_of(store: Store, steps: dict[int, str]) -> str:
    """Text on the end of a training, from the trajectories of its checkpoints."""
    if not steps:
        return "it has no checkpoint"
    step, trajectory = max(steps.items())
    models = [each for each in store.records("model") if each.parents.get("trajectory") == trajectory]
    return f"its model is finished, at step {models[0].identity['step']}" if models else f"at step {step}"


def _rows(run: RunManifest) -> list[tuple[Row, Watched]]:
    """The models that a run trains, with their trainings."""
    found = [row for row in run.tasks if row.kind == "model" and row.keeps]
    return [(row, Watched(row.model or row.name, row.keeps)) for row in found]


def _trained_in(run: RunManifest) -> list[Watched]:
    return list({one.trajectories: one for _, one in _rows(run)}.values())
