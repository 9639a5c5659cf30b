"""Sweeps in this process: shared work, skipped points, resuming; and bad sweeps."""

import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

from atelier.engine.config.metric import merge
from atelier.flows.cli.main import run
from atelier.infra.store.store import Store
from tests.checkout import TOP
from tests.flow.command import Atelier
from tests.flow.served import wait_for

TINY = ("experiment=tiny", "tracker=none", "score.baselines=false", "score.max_tokens=2000")
SHORT = (*TINY, "train.steps=4", "train.sequence=16", "train.eval_sequences=2", "model.num_layers=1")
ONLY_IF = "hydra/sweeper=optuna train.seed=1,2 hydra.sweeper.only_if"
GRID = ("-m", "optim.lr=1e-3,2e-3", "train.seed=1,2")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweep")


def points(root: Path, sweep: str = "") -> list[dict]:
    """The points of a sweep, or the newest one, by number."""
    newest = max((root / "sweeps").glob(f"{sweep}*/points"), key=lambda place: place.stat().st_mtime)
    return [json.loads(path.read_text()) for path in sorted(newest.glob("*.json"))]


@dataclass(frozen=True)
class Swept:
    """A sweep that ran: its id, what it printed, and the gangs that it started."""

    id: str
    out: str
    gangs: list[str]


@pytest.fixture(scope="module")
def swept(root: Path) -> Swept:
    """The grid, finished in a store that had nothing; later points of it may have been added."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out:
        patch.setenv("ATELIER_ROOT", str(root))
        patch.setenv("PREFECT_HOME", str(root / "prefect"))
        before = {path.name for path in (root / "sweeps").glob("*")}
        gangs = Atelier(root).gangs()
        assert run(["pretrain", *SHORT, *GRID]) == 0
    [made] = {path.name for path in (root / "sweeps").glob("*")} - before
    return Swept(made, out.getvalue(), Atelier(root).gangs()[len(gangs) :])


def test_a_dry_run_says_what_would_run_and_leaves_nothing(
    atelier: Atelier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    monkeypatch.setenv("ATELIER_ROOT", str(root))
    said = atelier("pretrain", *SHORT, *GRID, "--dry-run")
    assert said.code == 0, said.err
    assert "4 points, 4 to run" in said.out
    assert not (root / "sweeps").exists() and not (root / "scratch").exists()


def test_a_dry_run_names_the_points_that_a_plan_refuses(atelier: Atelier) -> None:
    said = atelier("pretrain", *SHORT, "-m", "model=gpt_nano,ernie_titan_260b", "--dry-run")
    assert said.code == 2 and "2 points, 1 to run, 1 refused" in said.out, said.out + said.err
    assert "ernie_titan_260b: train: needs" in said.err and "gpt_nano" not in said.err


def test_a_group_may_be_a_glob(atelier: Atelier) -> None:
    for sweeper in ("grid", "halving"):
        words = (
            "model=glob(gpt_*,exclude=[gpt_1*,gpt_e*,gpt_t*])",
            f"hydra/sweeper={sweeper}",
            "train.eval_every=1",
            "--dry-run",
        )
        said = atelier("pretrain", *SHORT, "-m", *words)
        assert said.code == 0 and "model=gpt_nano" in said.out and "2 points, 2 to run" in said.out, said.err


def test_a_grid_runs_every_point_and_extended_only_the_new_ones(
    atelier: Atelier, root: Path, swept: Swept
) -> None:
    assert "4 of 4 points finished" in swept.out and swept.gangs.count("train") == 4
    gangs, before = atelier.gangs(), {tuple(one["words"]): one["number"] for one in points(root, swept.id)}
    said = atelier("pretrain", *SHORT, "-m", "optim.lr=1e-3,2e-3,4e-3", "train.seed=1,2")
    assert said.code == 0 and "6 of 6 points finished" in said.out, said.err
    new = atelier.gangs()[len(gangs) :]
    assert [new.count(task) for task in ("curate", "encode", "train")] == [0, 0, 2]
    after = {tuple(point["words"]): point["number"] for point in points(root, swept.id)}
    assert after.items() > before.items() and sorted(after.values()) == list(range(6))


def test_the_same_sweep_again_starts_nothing_and_names_the_best(
    atelier: Atelier, root: Path, swept: Swept
) -> None:
    gangs = atelier.gangs()
    said = atelier("pretrain", *SHORT, *GRID)
    assert said.code == 0 and atelier.gangs() == gangs
    best = min(points(root, swept.id), key=lambda point: point["value"])
    assert f"best     atelier pretrain {' '.join(best['words'])}" in said.out
    report = next((root / "sweeps").glob(f"{swept.id}*/report/report.html")).read_text()
    assert "Parallel coordinates" in report and "functional ANOVA" in report


@pytest.mark.slow
def test_hydra_s_own_launcher_runs_the_points_too(atelier: Atelier) -> None:
    assert atelier("pretrain", *SHORT, "-m", "optim.lr=1e-3,2e-3").code == 0  # some are there already
    gangs = atelier.gangs()
    said = atelier("pretrain", *SHORT, "-m", "optim.lr=1e-3,2e-3", "train.seed=1,3", "hydra/launcher=basic")
    assert said.code == 0 and "4 of 4 points finished" in said.out, said.err
    assert atelier.gangs()[len(gangs) :].count("train") == 2


def test_the_best_point_is_picked_by_any_of_its_numbers_and_has_an_alias(
    atelier: Atelier, root: Path, swept: Swept
) -> None:
    sweep, found = swept.id, points(root, swept.id)
    best = min(found, key=lambda point: point["value"])
    said = atelier("pick", sweep[:5])
    wanted = f"best     #{best['number']}: lowest model.eval_loss of {len(found)}"
    assert said.code == 0 and wanted in said.out, said.err
    [model] = [row["fingerprint"] for row in best["made"] if row["kind"] == "model"]
    assert Store(str(root)).resolve("model@best").fingerprint == model
    worst = max(found, key=lambda point: point["value"])
    said = atelier("pick", sweep, "--highest", "--alias", "worst", "--json")
    assert json.loads(said.out)["best"]["label"] == f"#{worst['number']}"
    [kept] = [row["fingerprint"] for row in worst["made"] if row["kind"] == "model"]
    assert Store(str(root)).resolve("model@worst").fingerprint == kept != model
    said = atelier("generate", "model@best", "--prompt", "def ", "--max-tokens", "4")
    assert said.code == 0, said.err


def test_a_pick_says_what_it_cannot_compare(atelier: Atelier, swept: Swept) -> None:
    sweep = swept.id
    assert atelier("pick", sweep).code == atelier("pick", sweep, "--highest", "--alias", "worst").code == 0
    for words, wrong in (
        (("nothing",), "no sweep or run 'nothing'"),
        ((sweep, "--by", "model.beauty"), "model.eval_loss, model.loss"),
        ((sweep, "--alias", "v1"), "'v1' cannot be given"),
        ((sweep, "--highest", "--lowest"), "give one of them"),
        ((), "required: what"),
    ):
        said = atelier("pick", *words)
        assert said.code == 2 and wrong in said.err, (words, said.err)
    said = atelier("generate", "model@worse")
    assert said.code == 2 and "there is model@best, model@worst" in said.err


@pytest.mark.slow
def test_what_differs_only_in_its_student_trains_in_one_gang(atelier: Atelier) -> None:
    words = (*TINY, "train.steps=8", "train.checkpoint_every=4", "roles.student_a.start=4")
    before = atelier.gangs().count("train")
    said = atelier("distill", *words, "-m", "roles.student_a.optim.lr=1e-3,2e-3,3e-3")
    assert said.code == 0 and "3 of 3 points finished" in said.out, said.err
    assert atelier.gangs().count("train") == before + 1


def test_a_failing_point_does_not_keep_the_others_from_running(atelier: Atelier, root: Path) -> None:
    (root / "broken.jsonl").write_text("{no json\n")
    (root / "texts").mkdir()
    for path in (TOP / "docs").rglob("*.md"):
        (root / "texts" / f"{path.stem}.txt").write_text(path.read_text())
    sources = f"data.source={root}/broken.jsonl,{root}/texts/*.txt"
    said = atelier("pretrain", *SHORT, "-m", sources)
    assert said.code == 1 and "1 of 2 points finished" in said.out
    states = {point["words"][-1]: point for point in points(root)}
    [failed] = [point for point in states.values() if point["state"] == "failed"]
    assert "broken.jsonl" in failed["error"] and failed["error"].split(";")[0] in said.out


@pytest.mark.slow
def test_optuna_goes_on_with_its_study_and_prunes(atelier: Atelier, root: Path) -> None:
    words = (*TINY, "train.steps=24", "train.eval_every=4", "hydra/sweeper=optuna", "hydra.sweeper.startup=2")
    space = "optim.lr=tag(log,interval(1e-4,1e-1))"
    said = atelier("pretrain", "-m", *words, space, "hydra.sweeper.trials=2")
    assert said.code == 0, said.err
    assert [point["state"] for point in points(root)] == ["done", "done"]
    said = atelier("pretrain", "-m", *words, space, "hydra.sweeper.trials=6")
    assert said.code == 0, said.err
    found = points(root)
    assert len(found) == 6 and {point["state"] for point in found} == {"done", "pruned"}


@pytest.mark.slow
def test_a_study_whose_journal_is_gone_or_broken_keeps_its_points(atelier: Atelier, root: Path) -> None:
    words = (
        *SHORT,
        "hydra/sweeper=optuna",
        "hydra.sweeper.trials=3",
        "optim.lr=interval(2e-4,1e-2)",
    )
    assert atelier("pretrain", "-m", *words).code == 0
    found = points(root)
    journal = max((root / "sweeps").glob("*/optuna.journal"), key=lambda path: path.stat().st_mtime)
    journal.write_bytes(b"\0\0 no json\n" * 3)
    said = atelier("pretrain", "-m", *words)
    assert said.code == 2 and "optuna.journal cannot be read" in said.err and "move it away" in said.err
    journal.unlink()
    said = atelier("pretrain", "-m", *words)
    assert said.code == 0 and "3 points were restored from the sweep's own files" in said.out, said.err
    assert points(root) == found


@pytest.mark.slow
def test_optuna_varies_a_key_only_where_it_means_something_and_trades_metrics_off(
    atelier: Atelier, root: Path
) -> None:
    words = (
        *("hydra/sweeper=optuna", "hydra.sweeper.trials=5", "hydra.sweeper.startup=9"),
        *("optim=muon,adamw", "optim.matrix_lr=interval(0.01,0.04)", "model.hidden=choice(32,64)"),
        "hydra.sweeper.only_if={optim.matrix_lr: {optim: muon}}",
        "hydra.sweeper.metric=[model.eval_loss,model.params]",
        "hydra.sweeper.direction=[minimize,minimize]",
    )
    said = atelier("pretrain", "-m", *SHORT, *words)
    assert said.code == 0, said.out + said.err
    rates = ["".join(point["words"]).count("optim.matrix_lr=") for point in points(root)]
    assert rates == ["".join(point["words"]).count("optim=muon") for point in points(root)]
    assert set(rates) == {0, 1}
    small = min(points(root), key=lambda p: (p["facts"]["params"], p["value"]))
    assert f"no point is better in every metric than #{small['number']}: model.eval_loss" in said.out


def held_out_curves(root: Path, every: int) -> list[dict[int, float]]:
    """The held-out losses by step of each trajectory that is first measured at step `every`."""
    curves = []
    for folder in root.glob("trajectory/*/metrics"):
        lines = merge((path.name, path.read_text()) for path in sorted(folder.iterdir()))
        found = {line["step"]: line.get("values", {}).get("eval/loss") for line in lines}
        curves.append({step: loss for step, loss in found.items() if loss is not None})
    return [losses for losses in curves if min(losses, default=0) == every]


@pytest.mark.slow
def test_halving_trains_the_better_half_on_and_keeps_the_best(atelier: Atelier, root: Path) -> None:
    words = (*TINY, "train.steps=36", "train.eval_every=9", "optim=adamw")
    sweep = ("-m", "optim.lr=1e-5,3e-4,3e-3,1e-2", "hydra/sweeper=halving")
    assert atelier("pretrain", *words, "optim.lr=3e-3").code == 0  # a point that is finished takes part
    said = atelier("pretrain", *words, *sweep)
    assert said.code == 0, said.err
    [done] = [point for point in points(root) if point["state"] == "done"]
    curves = held_out_curves(root, every=9)
    assert len(curves) == 4 and 18 in min(curves, key=lambda losses: losses[9])
    best = min((losses for losses in curves if 18 in losses), key=lambda losses: losses[18])
    assert 27 in best  # where the learning rate's decay to step 36 begins; others may stop a little late
    assert "optim.lr=0.003" in done["words"] and f"rung 18: #{done['number']} continue" in said.out


@pytest.mark.slow
def test_the_same_sweep_twice_at_once_is_refused_and_killed_goes_on(atelier: Atelier, root: Path) -> None:
    words = ["pretrain", *TINY, "train.steps=400", "train.checkpoint_every=20", "-m", "train.seed=11,12"]
    command, env = [sys.executable, "-m", "atelier", *words], os.environ | {"ATELIER_ROOT": str(root)}
    before = atelier.gangs().count("train")
    first = subprocess.Popen(command, cwd=TOP, env=env, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: atelier.gangs().count("train") > before, 60, "the first training")
        said = atelier(*words)
        assert said.code == 2 and f"is being run by process {first.pid}" in said.err
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    said = atelier(*words)
    assert said.code == 0 and "2 of 2 points finished" in said.out, said.err


@pytest.mark.parametrize(
    "words, place, way_out",
    [
        ("optim.lrr=1,2", "optim.lrr", "did you mean"),
        ("trian.seed=1,2", "trian: no such key", "did you mean train"),
        ("train.seed=range(5,1)", "train.seed=range(5,1)", "give at least one value"),
        ("model=gpt_nano,gpt_huge", "gpt_huge", "there are"),
        ("train.seed=1,-2", "train.seed", "greater than or equal to 0"),
        ("hydra/sweeper=optuna train.seed=1", "nothing is varied", "interval"),
        ("hydra/sweeper=halving train.seed=1,2 train.eval_every=0", "train.eval_every", "give e.g."),
        (
            "hydra/sweeper=halving train.seed=1,2 train.eval_every=2 hydra.sweeper.metric=scores.accuracy",
            "hydra.sweeper.metric: training does not record scores.accuracy",
            "compare by <model>.eval_loss",
        ),
        (
            "hydra/sweeper=optuna train.seed=1,2 hydra.sweeper.prune=true hydra.sweeper.metric=scores.loss",
            "hydra.sweeper.prune: is true, but no training of this sweep records scores.loss",
            "give auto or false",
        ),
        (
            "hydra/sweeper=optuna train.seed=1,2 hydra.sweeper.prune=maybe",
            "is 'maybe'",
            "true, false or auto",
        ),
        ("hydra/sweeper=grit train.seed=1,2", "hydra/sweeper=grit", ""),
        (
            "hydra/sweeper=optuna train.seed=1,2 hydra.sweeper.only_if={optim.lr:{train.seed:1}}",
            "optim.lr is not",
            "",
        ),
        ("hydra/sweeper=optuna train.seed=1,2 hydra.sweeper.only_if={train.seed:3}", "only_if", "give e.g."),
        ("hydra.sweeper.direction=upwards train.seed=1,2", "hydra.sweeper.direction", "minimize"),
    ],
)
def test_a_bad_sweep_is_refused_before_its_first_point(
    atelier: Atelier, words: str, place: str, way_out: str
) -> None:
    gangs = atelier.gangs()
    said = atelier("pretrain", *TINY, "-m", *words.split())
    assert said.code == 2 and place in said.err and way_out in said.err and "Traceback" not in said.err
    assert atelier.gangs() == gangs
