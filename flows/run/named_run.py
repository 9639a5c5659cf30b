"""Which run, and which task of a run, a word on the command line means."""

from collections import Counter
from collections.abc import Iterable, Sequence

from atelier.engine.config.error import ConfigError, nearest
from atelier.infra.report.listing import run_row
from atelier.infra.store.run_manifest import RunManifest, is_alive, manifests
from atelier.infra.store.store import Store

FEWEST = 4  # characters of an id that find a run
LIST = "`atelier runs --all` lists them"
MOST = 3  # of the ids in an error


def run_called(store: Store, word: str, place: str) -> RunManifest:
    """The run that `word` means, as `runs_called` finds it. Raises ConfigError at `place` if there is none,
    or several.
    """
    there = manifests(store)
    found = one_run(runs_called(there, word), word, place)
    if found is not None:
        return found
    known = [one.id for one in there] + [name for one in there if (name := given_name(one))]
    near = nearest(word, known)
    text = f"no run is called {word}" if there else f"no run {word}: the store {store.root} has no run"
    raise ConfigError(place, text, (f"did you mean {near}? " if near else "") + LIST)


def one_run(found: Sequence[RunManifest], word: str, place: str) -> RunManifest | None:
    """The only run of those that `word` may mean; None if there is none. Raises ConfigError at `place` for
    several.
    """
    if len(found) > 1:
        ids = ", ".join(one.id for one in found[-MOST:])
        last = f"the last {MOST}: {ids}" if len(found) > MOST else ids
        raise ConfigError(place, f"{len(found)} runs are called {word}", f"give one's id: {last}")
    return found[0] if found else None


def runs_called(runs: Iterable[RunManifest], word: str) -> list[RunManifest]:
    """The runs that a word may mean, the oldest first: by id or page in Prefect, else by the first or last
    characters of the id, else by name. Of several with a name, the only one in progress is meant.
    """
    there, last = list(runs), word.rstrip("/").rpartition("/")[2]
    found = (
        [one for one in there if last and one.links.get("flow_run") == last]
        or runs_with_id(there, word)
        or [one for one in there if given_name(one) == word]
    )
    active = [one for one in found if given_name(one) == word and is_alive(one)]
    return active if len(active) == 1 else found


def runs_with_id(runs: Sequence[RunManifest], word: str) -> list[RunManifest]:
    """The run with this id, else those whose id begins or ends with `word` (4 or more characters)."""
    near = [one for one in runs if one.id.startswith(word) or one.id.endswith(word)]
    return [one for one in near if one.id == word] or (near if len(word) >= FEWEST else [])


def given_name(manifest: RunManifest) -> str:
    """The name that the user gave the run with name=; '' if none."""
    is_given = any(word.lstrip("+").startswith("name=") for word in manifest.overrides)
    return str(manifest.config.get("name") or "") if is_given else ""


def tasks_of(manifest: RunManifest) -> list[str]:
    """Names of the run's tasks, in the order of its plan. A task with several products is listed once."""
    return list(dict.fromkeys(_by_product(manifest).values()))


def task_called(manifest: RunManifest, word: str, place: str) -> str:
    """The run's task with this name, or the one that makes the product with this name. Raises ConfigError at
    `place` if there is none, or several.
    """
    there, by_product = tasks_of(manifest), _by_product(manifest)
    if word in there:
        return word
    makers = {by_product[row.name] for row in manifest.tasks if word in (row.name, row.model)}
    if len(makers) == 1:
        return makers.pop()
    near = nearest(word, there)
    problem = f"{len(makers)} tasks make {word}" if makers else f"the run {manifest.id} has no task {word!r}"
    way_out = (f"did you mean {near}? " if near else "") + f"its tasks: {', '.join(there)}"
    raise ConfigError(place, problem, way_out)


def _by_product(manifest: RunManifest) -> dict[str, str]:
    """The task of each product, by names. A product of several has its key behind the task's name."""
    names = {row.name for row in manifest.tasks}
    bases = {
        row.name: row.name.removesuffix(f".{row.key}") if row.key else row.name for row in manifest.tasks
    }
    sizes = Counter((bases[row.name], row.task) for row in manifest.tasks)
    return {
        row.name: base if sizes[base := bases[row.name], row.task] > 1 and base not in names else row.name
        for row in manifest.tasks
    }


def status_of(manifest: RunManifest) -> str:
    """running, finished, stopped or failed, as in the manifest; crashed if its process is gone."""
    return run_row(manifest)["status"]
