"""Fields of every result: machine, versions, command, numbers. Printed, and kept in benchmarks/results."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def about() -> dict[str, Any]:
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    found = {}
    for library in ("torch", "prefect", "mlflow", "hydra-core", "numpy", "tokenizers"):
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": found,
        "command": " ".join(["python", "benchmarks/" + Path(sys.argv[0]).name, *map(_plain, sys.argv[1:])]),
        "date": time.strftime("%Y-%m-%d"),
        "code": commit(),
    }


def commit() -> str:
    """The commit of this checkout, with `+` where its files differ; '' without one."""
    top = Path(__file__).resolve().parent.parent
    git = ["git", "-C", str(top)]
    told = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run(
        [*git, "status", "--porcelain", "-uno", "--", ".", ":!benchmarks/results", ":!docs", ":!*.md"],
        capture_output=True, text=True,
    )  # fmt: skip
    return told.stdout.strip() + ("+" if changed.stdout.strip() else "") if not told.returncode else ""


def _plain(argument: str) -> str:
    """A result names no folder of the machine that it came from."""
    return "PATH" if argument.startswith(("/", "~")) else argument


def use_own_code() -> None:
    """Have the processes that a benchmark starts import this checkout, whatever is installed."""
    top = Path(__file__).resolve().parent.parent
    os.environ["PYTHONPATH"] = f"{top / 'src'}{os.pathsep}{top}"


def keep(name: str, numbers: dict[str, Any], *, is_trial: bool = False, made_by: Iterable[str] = ()) -> None:
    """Print the numbers with the machine and, unless it was only a trial, write results/<name>.json.
    `made_by`: the commits of parts that were made before.
    """
    document = {"benchmark": name, "machine": about(), "numbers": numbers}
    if others := sorted({*made_by} - {document["machine"]["code"]}):
        document["machine"]["code of parts"] = others
    if not is_trial:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))
