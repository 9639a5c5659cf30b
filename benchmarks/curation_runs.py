"""Run the tasks of a curation by processes, as a gang does, and measure each; drawn corpora of any size."""

import gzip
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from atelier.engine.config.run_file import RunFile
from tests.engine.data.curation.pipeline import Pipeline

PROJECT = Path(__file__).resolve().parent.parent


@dataclass
class Measured:
    """Of one task: seconds of all cores, wall seconds, peak memory of the largest rank in bytes."""

    cpu_s: float
    wall_s: float
    peak: int


@dataclass
class Processes(Pipeline):
    """A pipeline whose ranks are processes; `measured` by task. At `kill_at`, if that is not 0, the ranks
    of the running task are killed, and `Killed` is raised.
    """

    measured: dict[str, Measured] = field(default_factory=dict)
    kill_at: float = 0.0  # on the clock of time.monotonic

    def execute(self, run: RunFile) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=self.folder))  # each gang has its own
        run = run.model_copy(update={"scratch": str(scratch)})
        path = scratch / "run.json"
        path.write_text(run.text())
        env = os.environ | {"PYTHONPATH": f"{PROJECT / 'src'}{os.pathsep}{PROJECT}", "OMP_NUM_THREADS": "1"}
        env |= {"WORLD_SIZE": str(self.ranks), "OPENBLAS_NUM_THREADS": "1"}
        began = time.monotonic()
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "atelier.engine.prepare", str(path)],
                env=env | {"RANK": str(rank)},
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                text=True,
            )
            for rank in range(self.ranks)
        ]
        killed = threading.Event()

        def kill() -> None:
            killed.set()
            for rank in ranks:
                with suppress(ProcessLookupError):
                    os.kill(rank.pid, signal.SIGKILL)  # Popen's own kill would wait for it too

        timer = threading.Timer(max(0.0, self.kill_at - time.monotonic()), kill)
        if self.kill_at:
            timer.start()
        first = ranks[0].stdout
        assert first is not None
        said = [json.loads(line) for line in first.read().splitlines()]
        usages = [os.wait4(rank.pid, 0) for rank in ranks]
        first.close()
        for rank in ranks:
            rank.returncode = 0  # waited for above
        timer.cancel()
        if killed.is_set() and any(status for _, status, _ in usages):
            raise Killed(run.task)
        if any(status for _, status, _ in usages):
            raise RuntimeError(f"{run.task} failed: {[line for line in said if 'error' in line]}")
        cpu_s = sum(usage.ru_utime + usage.ru_stime for _, _, usage in usages)
        peak = max(usage.ru_maxrss for _, _, usage in usages) * 1024
        before = self.measured.get(run.task, Measured(0.0, 0.0, 0))
        self.measured[run.task] = Measured(
            before.cpu_s + cpu_s, before.wall_s + time.monotonic() - began, max(before.peak, peak)
        )
        self.said += said


class Killed(Exception):
    """The ranks of a task were killed."""


def paragraphs() -> list[str]:
    """Paragraphs of English and code of this interpreter's standard library."""
    from atelier.engine.config.data import Source
    from atelier.engine.io.source_files import files_of

    found: list[str] = []
    for path in files_of(Source(source="stdlib")):
        text = Path(path).read_text(errors="replace")
        found += [each for each in text.split("\n\n") if len(each) > 80]
    return found


def write_corpus(folder: Path, size: int, seed: int, *, files: int = 16, copies: float = 0.05) -> int:
    """About `size` bytes of documents of drawn paragraphs in .jsonl files; the share `copies` of them are
    copies with one word changed. Returns the documents.
    """
    draw, pool = random.Random(seed), paragraphs()
    folder.mkdir(parents=True, exist_ok=True)
    written = documents = 0
    recent: list[str] = []
    rows: list[list[str]] = [[] for _ in range(files)]

    def flush() -> None:
        for number, lines in enumerate(rows):
            with open(folder / f"{number:03d}.jsonl", "a") as target:
                target.writelines(lines)
            lines.clear()

    while written < size:
        if recent and draw.random() < copies:
            words = draw.choice(recent).split(" ")
            words[draw.randrange(len(words))] = f"changed{documents}"
            text = " ".join(words)
        else:
            text = "\n\n".join(
                f"{draw.choice(pool)} {draw.randrange(10**6)}" for _ in range(draw.randint(2, 9))
            )
            recent = [*recent[-200:], text]
        rows[documents % files].append(json.dumps({"text": text}) + "\n")
        if documents % 4000 == 0:
            flush()
        written += len(text)
        documents += 1
    flush()
    return documents


def pack(folder: Path) -> None:
    """Replace every second file by its gzip."""
    for path in sorted(folder.glob("*.jsonl"))[::2]:
        path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes(), 1, mtime=0))
        path.unlink()


def own_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
