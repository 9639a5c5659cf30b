"""Whole runs in stores with strange names and foreign environment variables: all tasks complete and the same
command again reuses each of them, or one line refuses the run.
"""

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atelier.engine.io import storage
from atelier.infra.store.store import Store
from tests.checkout import python_path
from tests.foreign.kinds import environments, store_paths
from tests.foreign.search import Case

COUNT, SLOW = 2, True
RUN = ("pretrain", "experiment=tiny")
# variables that choose other places, ports and servers than a run of one machine has
NOT_HERE = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "PREFECT_API_URL", "PREFECT_API_KEY")
TALKATIVE = ("PREFECT_DEBUG_MODE", "PREFECT_LOGGING_LEVEL")  # with them Prefect prints tracebacks of its own
PROGRESS = ("pretrain: ", "> ", "+ ", "  ", "finished tasks are kept", *environments.NOTES)
PROGRAM = [environments.AS_IT_IS]


def draw(rng: random.Random) -> Case:
    given = environments.draw(rng)
    kept = {key: value for key, value in given["set"].items() if key not in (*NOT_HERE, *TALKATIVE)}
    place = store_paths.draw(rng) if rng.random() < 0.6 else {"name": "store", "below": "", "way": "absolute"}
    return {"set": kept, "absent": given["absent"], "place": place, "again": rng.random() < 0.3}


def check(case: Case, folder: Path) -> str:
    home = folder / "home"
    home.mkdir()
    place = case["place"]
    target = home / place["name"] / place["below"] if place["below"] else home / place["name"]
    root = store_paths.address(place, home, target)
    given = environments.environment(case, folder) | {"ATELIER_ROOT": root, "PYTHONPATH": python_path()}
    done = _done(given, home)
    if done is None:
        return "refused"
    assert target.is_dir(), "the store is elsewhere"
    assert Store(storage.join(str(target))).records("model")
    if case["again"]:
        again = _done(given, home)
        assert again is not None and "reused" in again, again
    return "works"


def _done(given: dict[str, str], home: Path) -> str | None:
    """What a run printed; None when one line refused it."""
    if any("\0" in value for value in given.values()):
        return None
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM[0], *RUN], env=given, cwd=home, capture_output=True,
        stdin=subprocess.DEVNULL, timeout=300, check=False,
    )  # fmt: skip
    said = (done.stdout + done.stderr).decode(errors="backslashreplace")
    assert "Traceback" not in said and "a fault in the program" not in said, said
    if done.returncode == 2:
        lines = [
            line
            for line in done.stderr.decode(errors="replace").splitlines()
            if not line.startswith(PROGRESS)
        ]
        assert len(lines) == 1, said
        return None
    assert done.returncode == 0, f"exit code {done.returncode}: {said}"
    return said


@contextmanager
def broken() -> Iterator[None]:
    """The command takes a store's path for a URL, as it once did."""
    PROGRAM[0] = (
        "import fsspec; from atelier.engine.io import storage; storage.is_path = lambda url: False;"
        "storage.open_system = lambda url: fsspec.core.url_to_fs(url);" + environments.AS_IT_IS
    )
    try:
        yield
    finally:
        PROGRAM[0] = environments.AS_IT_IS
