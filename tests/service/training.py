"""A small training on a stack, started as a form does it: its processes, progress and results."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from atelier.engine.config.metric import merge
from atelier.infra.stack.deployments import SILENCE
from tests.checkout import TOP
from tests.flow.served import Served, basic, processes, wait_for

STEPS, EVERY = 600, 20
WORDS = (
    "model=gpt_nano", "model.hidden=32", "model.num_heads=2", "train.eval_sequences=4",
    "score.baselines=false", "score.max_tokens=500",
)  # fmt: skip
LENGTH = (f"train.steps={STEPS}", f"train.checkpoint_every={EVERY}")
DATA = ("corpus", "tokenizer", "tokens")
ORPHAN_S = 15.0
SLOT_S = 90.0
PATIENCE_S = 300.0  # a loaded machine; nothing waits that long when it is quiet
ENDS = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


class Training:
    """One run of `pretrain` on the pool local, from its submission on."""

    def __init__(self, served: Served, *words: str, steps: int = STEPS, every: int = EVERY) -> None:
        length = (f"train.steps={steps}", f"train.checkpoint_every={every}")
        self.served, self.words = served, [*WORDS, *length, *(words or ("tracker=none",))]
        self.parent = served.submit("pretrain", experiment="tiny", overrides=self.words)

    def until_step(self, step: int) -> "Training":
        """Return when a checkpoint of `step` or later is there and the gang trains on."""

        def has_come() -> bool:
            state = self.served.state(self.parent)
            assert state["type"] not in ENDS, state
            return max(steps(self.served.root), default=0) >= step and bool(self.supervisors())

        wait_for(has_come, PATIENCE_S, f"checkpoint {step}")
        return self

    def supervisors(self) -> list[int]:
        return supervisors(self.served.root)

    def flow(self) -> int:
        """The child's flow process: the parent of the supervisor."""
        [supervisor] = self.supervisors()
        return parent_of(supervisor)

    def runs(self) -> list[dict[str, Any]]:
        """Runs of `work` that were started for the node `train`, oldest first."""
        found = [run for run in self.served.children(self.parent) if run["name"] == "train"]
        return sorted(found, key=lambda run: run["created"])

    def wait(self, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """The final state; one for missing heartbeats alone does not count, because the process reclaims its
        run.
        """

        def end() -> dict[str, Any] | None:
            state = self.served.state(self.parent)
            return state if state["type"] in ENDS and state["message"] != SILENCE else None

        return wait_for(end, timeout_s, "the end of the run")

    def again(self) -> subprocess.CompletedProcess[str]:
        """The same command from the command line, to its end."""
        return self.served.atelier("pretrain", "experiment=tiny", *self.words, "pool=local")


def run_here(root: Path, *words: str) -> None:
    """`atelier <words>` in its own process, without any server, to its end."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_TRACKING"))}
    command = [sys.executable, "-m", "atelier", *words]
    done = subprocess.run(
        command, env=kept | {"ATELIER_ROOT": str(root)}, cwd=TOP, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def copy_data(source: Path, target: Path) -> None:
    """Corpus, tokenizer and tokens: nothing but training is left to do."""
    for kind in DATA:
        shutil.copytree(source / kind, target / kind, dirs_exist_ok=True)


def forget_all_but_data(root: Path) -> None:
    """What earlier tests made: the same training is to be made again."""
    for kind in ("model", "trajectory", "scores", "report", "registration", "runs", "scratch", "live"):
        shutil.rmtree(root / kind, ignore_errors=True)


def curve(root: Path) -> list[dict[str, Any]]:
    """Metric lines of the store's one training, a trunk's and then its branch's."""
    return sorted(itertools.chain(*curves(root).values()), key=lambda line: line["step"])


def rate(root: Path) -> float:
    """Steps a second of the store's one training."""
    lines = curve(root)
    return len(lines) / (lines[-1]["timing"]["time"] - lines[0]["timing"]["time"])


def best_rate(root: Path) -> float:
    """Likewise in its fastest moments: what the same training may reach when nothing else runs."""
    seconds = sorted(gap for _, gap in gaps(root))
    return 1 / seconds[len(seconds) // 10]


def gaps(root: Path) -> list[tuple[float, float]]:
    """When each step of the store's one training ended, and the seconds since the one before."""
    times = [line["timing"]["time"] for line in curve(root)]
    return [(now, now - before) for before, now in itertools.pairwise(times)]


def drawn(served: Served, key: str = "loss") -> list[int]:
    """Steps of every point on the one training's whole curve in MLflow."""
    found = curves(served.root)
    trajectory = max(found, key=lambda name: found[name][-1]["step"])
    about = json.loads((served.root / "trajectory" / trajectory / "trajectory.json").read_text())
    wanted = f"tags.`atelier.trajectory` = '{about['fingerprint']}' and tags.`atelier.kind` = 'trajectory'"
    found = mlflow(served, "experiments/search", {"max_results": 100})
    ids = [one["experiment_id"] for one in found["experiments"]]
    [run] = mlflow(served, "runs/search", {"experiment_ids": ids, "filter": wanted})["runs"]
    query = f"metrics/get-history?run_id={run['info']['run_id']}&metric_key={key}&max_results=25000"
    return sorted(point["step"] for point in mlflow(served, query)["metrics"])


def mlflow(served: Served, path: str, body: Any = None) -> Any:
    """One call of MLflow's API, signed in."""
    request = urllib.request.Request(
        f"{served.mlflow}/api/2.0/mlflow/{path}",
        data=json.dumps(body).encode() if body is not None else None,
        headers={"Content-Type": "application/json", **basic("atelier", served.password)},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def steps(root: Path) -> list[int]:
    """Steps of all committed checkpoints."""
    return sorted(int(path.name[5:]) for path in root.glob("trajectory/*/checkpoints/step-*"))


def digests(root: Path, *kinds: str) -> dict[tuple[str, str], dict[str, str]]:
    """(kind, fingerprint) -> file -> sha256, as the records say."""
    found = {}
    for kind in kinds or ("model", "scores"):
        for path in root.glob(f"{kind}/*/record.json"):
            record = json.loads(path.read_text())
            files = {file["path"].split("/", 1)[1]: file["sha256"] for file in record["files"]}
            found[(kind, record["fingerprint"])] = files
    assert found, f"nothing was made in {root}"
    return found


def curves(root: Path) -> dict[str, list[dict[str, Any]]]:
    """Trajectory -> its merged metric lines, those without any left out."""
    found = {}
    for folder in root.glob("trajectory/*/metrics"):
        lines = merge((path.name, path.read_text()) for path in folder.iterdir())
        found[folder.parent.name] = lines
    return found


def values(root: Path) -> dict[str, list[Any]]:
    """Trajectory -> of every step what does not depend on time."""
    return {
        name: [(line["step"], line["role"], line["tokens"], line["values"]) for line in lines]
        for name, lines in curves(root).items()
    }


def gangs(root: Path, task: str = "train") -> list[Path]:
    """Scratch folders of every gang that was ever started for `task`."""
    return sorted(path.parent for path in root.glob(f"scratch/*/*/*-{task}/guard.json"))


def told(root: Path) -> int:
    """The last step that a rank of a training has reported."""
    text = "".join(path.read_text() for path in root.glob("scratch/*/*/*-train/rank0.out"))
    lines = [json.loads(line) for line in text.splitlines() if line.startswith('{"progress"')]
    return max(line["progress"] for line in lines)


def supervisors(root: Path) -> list[int]:
    """Process ids of the living supervisors of trainings."""
    text = str(root)
    return sorted(
        pid
        for pid, words in processes().items()
        if "atelier.infra.launch.supervisor" in words
        and any(text in word and "-train/" in word for word in words)
    )


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def flow_processes(root: Path) -> dict[str, int]:
    """Prefect run -> process id of every flow process of this store."""
    found = {}
    for pid, words in processes().items():
        if "atelier.infra.stack.flow_process" in words:
            with suppress(OSError):
                said = (Path("/proc") / str(pid) / "environ").read_text().split("\0")
                about = dict(line.split("=", 1) for line in said if "=" in line)
                if about.get("ATELIER_ROOT") == str(root):
                    found[about.get("PREFECT__FLOW_RUN_ID", "")] = pid
    return found


def stale(served: Served, pool: str = "local") -> list[str]:
    """Runs that hold a slot of the pool though they have no process."""
    wanted = {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}
    body = {"flow_runs": {"state": wanted}, "work_pools": {"name": {"any_": [pool]}}}
    runs = {run["id"] for run in served.api("POST", "/flow_runs/filter", body)}
    return sorted(runs - flow_processes(served.root).keys())


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def seconds_until(condition: Callable[[], Any], limit_s: float, what: str) -> float:
    began = time.monotonic()
    wait_for(condition, limit_s, what)
    return round(time.monotonic() - began, 1)


def are_gone(pids: Iterable[int]) -> bool:
    return not set(pids) & processes().keys()
