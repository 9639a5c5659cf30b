"""A sweep of 12 points on a pool of two slots survives the death of its submitter, of a worker, and of
everything at once; an Optuna study on the pool that is cut off.
"""

import json
import os
import signal
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from atelier.engine.config.metric import merge
from atelier.flows.sweep.optuna import JOURNAL
from tests.flow.served import Served, processes, wait_for

pytestmark = [pytest.mark.service, pytest.mark.slow]
EVERY = 20  # steps between checkpoints
LOOK_EVERY = 40  # steps between a study's looks at a point: some seconds of training
TINY = ("experiment=tiny", "score.baselines=false", "score.max_tokens=2000", "train.eval_sequences=4")
WORDS = (
    *("pretrain", "-m", "hydra/launcher=prefect", *TINY, "tracker=none"),
    "optim=adamw",  # its rate moves all weights: 1e-3, 3e-3, 1e-2 end at 3.8, 3.4, 4.2
    *("train.steps=120", "train.global_batch=32", f"train.checkpoint_every={EVERY}"),
)
GRID = (*WORDS, "optim.lr=1e-4,1e-3,3e-1,1", "train.seed=1,2,3")  # the best rates lie between them
PATIENCE_S = 900


def points(root: Path) -> list[dict]:
    newest = max((root / "sweeps").glob("*/points"), key=lambda place: place.stat().st_mtime)
    return [json.loads(path.read_text()) for path in sorted(newest.glob("*.json"))]


def models(root: Path) -> int:
    return len(list((root / "model").glob("*/record.json")))


def checkpoints(root: Path) -> dict[str, int]:
    """Trajectory -> its newest checkpoint's step."""
    newest: dict[str, int] = {}
    for path in root.glob("trajectory/*/checkpoints/step-*"):
        name = path.parent.parent.name
        newest[name] = max(newest.get(name, 0), int(path.name.removeprefix("step-")))
    return newest


def first_steps(root: Path) -> dict[str, list[int]]:
    """Trajectory -> the first step of each attempt at it."""
    found: dict[str, dict[str, int]] = {}
    for path in sorted(root.glob("trajectory/*/metrics/metrics-*.jsonl")):
        attempt = path.name.split("-")[1]
        step = json.loads(path.read_text().splitlines()[0])["step"]
        found.setdefault(path.parent.parent.name, {}).setdefault(attempt, step)
    return {name: list(attempts.values()) for name, attempts in found.items()}


def steps_beyond_the_verdict(root: Path) -> dict[int, int]:
    """Pruned trial of the newest study -> steps that were trained after the last look that it was told of."""
    [journal] = root.glob(f"sweeps/*/{JOURNAL}")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = JournalStorage(JournalFileBackend(str(journal)))
    study = optuna.load_study(study_name=journal.parent.name, storage=storage)
    curves = []
    for folder in root.glob("trajectory/*/metrics"):
        lines = merge((path.name, path.read_text()) for path in sorted(folder.iterdir()))
        looks = {line["step"]: line["values"].get("eval/loss") for line in lines}
        curves.append((max(looks, default=0), looks))
    found = {}
    for trial in study.get_trials(states=[TrialState.PRUNED]):
        seen = trial.intermediate_values
        [last] = {step for step, looks in curves if all(looks.get(at) == seen[at] for at in seen)}
        found[trial.number] = last - max(seen)
    return found


def everything(root: Path) -> list[int]:
    """Process ids of all that belongs to the store: servers, workers, flows, supervisors and ranks."""
    found = []
    for pid, words in processes().items():
        try:
            env = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        is_ours = str(root) in " ".join(words) or f"ATELIER_ROOT={root}".encode() in env.split(b"\0")
        if is_ours and pid != os.getpid():
            found.append(pid)
    return found


def strike(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def test_twelve_points_survive_every_death_and_nothing_is_computed_twice(served: Served) -> None:
    root = served.root
    kept: dict[str, int] = {}

    def note() -> None:
        kept.update(checkpoints(root))

    first = served.start(*GRID)
    wait_for(lambda: models(root) >= 2, PATIENCE_S, "two models")
    strike([first.pid])
    first.communicate()
    second = served.start(*GRID)
    wait_for(lambda: models(root) >= 4, PATIENCE_S, "four models")
    note()
    strike([served.pid("worker-local")])
    wait_for(lambda: models(root) >= 5 or second.poll() is not None or served.up(), 60, "a new worker")
    wait_for(lambda: models(root) >= 7, PATIENCE_S, "seven models")
    wait_for(lambda: set(checkpoints(root)) - set(kept), PATIENCE_S, "a training in the middle")
    strike([second.pid])
    second.communicate()
    strike(everything(root))
    note()
    served.up()
    third = served.atelier(*GRID, timeout_s=PATIENCE_S)
    assert third.returncode == 0 and "12 of 12 points finished" in third.stdout, third.stdout + third.stderr
    assert {point["state"] for point in points(root)} == {"done"} and models(root) == 12
    assert len({point["fingerprint"] for point in points(root)}) == 12
    asked = {"artifacts": {"key": {"like_": "sweep-%"}}}
    [page] = served.api("POST", "/artifacts/latest/filter", asked)
    assert "12 points: 12 done" in page["data"] and "(data:image/png;base64," in page["data"]
    attempts = first_steps(root)
    again = {name: steps for name, steps in attempts.items() if len(steps) > 1}
    print(f"attempts of trainings that were cut off: {again}")
    assert all(step > 1 for name, steps in again.items() if name in kept for step in steps[-1:])


def test_optuna_on_the_pool_goes_on_after_a_kill_and_beats_the_grid(served: Served) -> None:
    root = served.root
    grid = min(point["value"] for point in points(root))
    space = ("optim.lr=tag(log,interval(1e-4,1))", "train.seed=1,2,3")
    words = (
        *WORDS,
        f"train.eval_every={LOOK_EVERY}",
        "hydra/sweeper=optuna",
        "hydra.sweeper.trials=20",
        *space,
    )
    first = served.start(*words)
    wait_for(lambda: sum(p["state"] == "done" for p in points(root)) >= 3, PATIENCE_S, "three points")
    strike([first.pid])
    first.communicate()
    said = served.atelier(*words, timeout_s=PATIENCE_S)
    assert said.returncode == 0, said.stdout + said.stderr
    found = points(root)
    best = min(point["value"] for point in found if point["value"] is not None)
    states = [point["state"] for point in found]
    print(f"best of the grid {grid:.4f}, of optuna {best:.4f}; {states.count('pruned')} pruned")
    assert best < grid and "pruned" in states and set(states) <= {"done", "pruned"}
    for point in found:
        if point["state"] == "pruned":
            assert point["value"] is None
    beyond = steps_beyond_the_verdict(root)
    print(f"steps that pruned points trained after the look that ended them: {beyond}")
    assert len(beyond) == states.count("pruned") and all(steps <= LOOK_EVERY for steps in beyond.values())
