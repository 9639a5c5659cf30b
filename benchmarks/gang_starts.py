"""Start, train and end many gangs of two, under glibc's checks of every heap, and count faults:
python benchmarks/gang_starts.py [minutes] [compile]

Each start trains a model and its student for a few steps, executed or forked in turn, with MALLOC_CHECK_=3
and libc_malloc_debug: a corrupted heap ends the process at once. With `compile` blocks are compiled, and both
ranks share one new cache of compiled code.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]  # for tests/
from machine import keep, use_own_code

from atelier.engine.config.parallel import Parallel
from atelier.engine.io.fork_server import Connection, ForkServer, Process
from tests.checkout import TOP
from tests.engine.trainings import TrainingSetup, role, student, train

LIBRARIES = ("/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
DEBUG = "libc_malloc_debug.so.0"
LONGEST_S = 300.0

use_own_code()


def checks() -> dict[str, str]:
    """The environment in which glibc checks every heap."""
    place = next((f"{folder}/{DEBUG}" for folder in LIBRARIES if Path(folder, DEBUG).exists()), "")
    if not place:
        raise SystemExit(f"{DEBUG} is not here: glibc 2.34 or newer has it")
    return {"LD_PRELOAD": place, "MALLOC_CHECK_": "3", "GLIBC_TUNABLES": "glibc.malloc.check=3"}


def start(folder: Path, is_compiled: bool, forks: Connection | None) -> tuple[list[int], str]:
    """One gang's exit codes and what it said when it failed."""
    training_setup = TrainingSetup(folder)
    roles = {"teacher": role(), "pupil": student()}
    layout = Parallel(
        shard=1, replicate=2, threads=1, compile="block" if is_compiled else "none", device="cpu"
    )
    how = train(6, precision="fp64" if is_compiled else "fp32")
    run = training_setup.run_file(training_setup.training(roles, how), layout=layout)
    (folder / "run.json").write_text(run.model_dump_json(by_alias=True))
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled")}
    base = environment() | cache | {"WORLD_SIZE": "2", "ATELIER_RENDEZVOUS": f"file://{folder}/meeting"}
    processes: list[Process] = []
    for rank in range(2):
        env = base | {"RANK": str(rank)}
        with open(folder / f"rank{rank}.err", "w") as log:
            arguments = [str(folder / "run.json")]
            if forks is not None:
                where = {"cwd": str(TOP), "out": log.fileno(), "err": log.fileno()}
                processes.append(
                    forks.start("atelier.engine.train", arguments, env=env, inherited={}, **where)
                )
            else:
                command = [sys.executable, "-m", "atelier.engine.train", *arguments]
                processes.append(subprocess.Popen(command, cwd=TOP, env=env, stdout=log, stderr=log))
    deadline = time.monotonic() + LONGEST_S
    while any(p.poll() is None for p in processes) and time.monotonic() < deadline:
        if any(p.poll() for p in processes):
            time.sleep(2)
            break
        time.sleep(0.02)
    codes = [-99 if (code := p.poll()) is None else code for p in processes]
    for process in processes:
        process.kill()
        process.wait()
    words = "\n".join((folder / f"rank{rank}.err").read_text()[-2000:] for rank in range(2))
    return codes, words if any(codes) else ""


def environment() -> dict[str, str]:
    single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {**os.environ, **checks(), **single, "PYTHONWARNINGS": "ignore"}


def main() -> int:
    minutes = float(next((word for word in sys.argv[1:] if word.replace(".", "").isdigit()), "15"))
    is_compiled = "compile" in sys.argv[1:]
    server = ForkServer(["atelier.engine.train"], environment(), str(TOP), "gang_starts")
    forks = Connection(server.connect())
    counts: Counter[str] = Counter()
    faults: list[str] = []
    end = time.monotonic() + 60 * minutes
    number = 0
    while time.monotonic() < end:
        folder = Path(tempfile.mkdtemp(prefix="gang-"))
        how = "forked" if number % 2 else "executed"
        codes, words = start(folder, is_compiled, forks if how == "forked" else None)
        counts[f"{how}, {'clean' if not any(codes) else 'faulty'}"] += 1
        if any(codes):
            faults.append(f"{how} {codes}: {words}")
            print(faults[-1], flush=True)
        shutil.rmtree(folder)
        number += 1
    forks.close()
    server.close()
    print(dict(counts))
    keep(
        "gang_starts", {"minutes": minutes, "compiled": is_compiled, "starts": dict(counts), "faults": faults}
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
