"""The real command line as a process that tests can kill; state of its store and its processes."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

from atelier.engine.config.metric import merge
from atelier.flows.cli.main import run
from tests.checkout import TOP

STEPS, EVERY = 160, 20
TRAIN = (
    "pretrain", "experiment=tiny", "tracker=none", "tokenizer=bpe512",
    "model=gpt_nano", "model.hidden=32", "model.num_heads=2", "model.num_layers=1",
    f"train.steps={STEPS}", f"train.checkpoint_every={EVERY}", "train.eval_sequences=4",
    "train.global_batch=4", "train.sequence=16", "score.baselines=false", "score.max_tokens=500",
)  # fmt: skip
DATA = ("corpus", "tokenizer", "tokens")
OWN_SERVER = {"PREFECT_API_URL": "", "PREFECT_HOME": ""}  # one in its store, as at a terminal
PATIENCE_S = 180.0  # with a command that prints nothing more, on a loaded machine
MOST_S = 5 * PATIENCE_S  # with one that does
LEAVES_S = 5.0  # that a forced stop takes at most: the ranks are given 10 to end
ORPHAN_S = 15.0


@dataclass(frozen=True)
class Curve:
    """The result of a finished training: the model's digest, every step's tokens and metric values."""

    model: str
    lines: tuple[tuple[int, int, tuple[tuple[str, float], ...]], ...]


class CommandStore:
    """One store and the command line over it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def start(self, *arguments: str, env: dict[str, str] | None = None) -> "Command":
        """`atelier <arguments>` as a process of its own, leading a process group as in a terminal."""
        return Command(self, arguments or TRAIN, env or {})

    def finish(self, *arguments: str) -> tuple[int, str, str]:
        """The same in this process (Prefect starts once): exit code, stdout, stderr."""
        os.environ["ATELIER_ROOT"] = str(self.root)
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            code = run(list(arguments or TRAIN))
        return code, out.getvalue(), err.getvalue()

    @contextmanager
    def once_training(self, act: Callable[[int], object]) -> Iterator[None]:
        """What `finish` does here, with `act` on the process of the rank as soon as it has written two
        checkpoints; the test fails if it does not happen.
        """
        begun = time.monotonic()
        is_over = threading.Event()

        def wait_and_act() -> None:
            while max(self.steps(), default=0) < 2 * EVERY:
                assert not is_over.wait(0.01) and time.monotonic() - begun < MOST_S, "no training"
            [rank] = self.processes("atelier.engine.train")
            act(rank)

        with ThreadPoolExecutor(1) as thread:
            acting = thread.submit(wait_and_act)
            try:
                yield
            finally:
                is_over.set()
        acting.result()

    def copy_data(self, source: "CommandStore") -> "CommandStore":
        """Take over the other's corpus, tokenizer and tokens: nothing but training is left to do."""
        for kind in DATA:
            shutil.copytree(source.root / kind, self.root / kind)
        return self

    def steps(self) -> list[int]:
        """Steps of all committed checkpoints."""
        return sorted(int(path.name[5:]) for path in self.root.glob("trajectory/*/checkpoints/step-*"))

    def curve(self) -> Curve:
        [record] = self.records("model")
        digest = next(
            file["sha256"] for file in record["files"] if file["path"].endswith("/model.safetensors")
        )
        lines = []
        for folder in self.root.glob("trajectory/*/metrics"):
            merged = merge((path.name, path.read_text()) for path in folder.iterdir())
            lines += [
                (line["step"], line["tokens"], tuple(sorted(line["values"].items()))) for line in merged
            ]
        return Curve(digest, tuple(sorted(lines)))

    def records(self, kind: str) -> list[dict]:
        """All of a kind, the newest last."""
        found = sorted(self.root.glob(f"{kind}/*/record.json"), key=lambda path: path.stat().st_mtime_ns)
        return [json.loads(path.read_text()) for path in found]

    def runs(self) -> list[dict]:
        return [json.loads(path.read_text()) for path in sorted((self.root / "runs").glob("*.json"))]

    def processes(self, word: str = "") -> dict[int, str]:
        """Processes whose arguments or environment name this store, with `word` in their arguments."""
        found = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with suppress(OSError):
                    command = (folder / "cmdline").read_text()
                    names = (
                        str(self.root) in command
                        or f"ATELIER_ROOT={self.root}\0" in (folder / "environ").read_text()
                    )
                    if names and word in command:
                        found[int(folder.name)] = command.replace("\0", " ")
        return found

    def wait_for_quiet(self) -> None:
        """Fail unless all processes have ended within 15 s."""
        deadline = time.monotonic() + ORPHAN_S
        while left := self.processes():
            assert time.monotonic() < deadline, f"still there: {left}"
            time.sleep(0.05)


def held(rank: int, ask: Callable[[], object]) -> None:
    """Stop a process, `ask` for its end, and let it go on when it has been told, so that it cannot be done
    before.
    """
    os.kill(rank, signal.SIGSTOP)
    try:
        ask()
        deadline = time.monotonic() + PATIENCE_S
        while not is_told(rank):
            assert time.monotonic() < deadline, "it was not told"
            time.sleep(0.01)
    finally:
        os.kill(rank, signal.SIGCONT)


def is_told(rank: int) -> bool:
    """Whether a signal waits for a process that is stopped."""
    status = Path(f"/proc/{rank}/status").read_text()
    return any(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("ShdPnd"))


class Command:
    """A running command; `text` is what it has printed so far."""

    def __init__(
        self,
        command_store: CommandStore,
        arguments: tuple[str, ...],
        env: dict[str, str],
        said: Path | None = None,
        program: tuple[str, ...] = ("-m", "atelier"),
    ) -> None:
        self.command_store = command_store
        self.said = said or command_store.root.with_name(
            f"{command_store.root.name}-{time.monotonic_ns()}.txt"
        )
        environment = os.environ | {"ATELIER_ROOT": str(command_store.root), "PYTHONUNBUFFERED": "1"} | env
        environment = {key: value for key, value in environment.items() if value}
        with open(self.said, "wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, *program, *arguments],
                cwd=TOP,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.said.read_text()

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Return as soon as `condition` holds; the command must be running until then."""
        is_late = self._lateness()
        while not condition():
            assert self.process.poll() is None, (
                f"ended ({self.process.returncode}) before {what}:\n{self.text}"
            )
            assert not is_late(), f"no {what}, and nothing said for {PATIENCE_S} s:\n{self.text}"
            time.sleep(0.01)

    def _lateness(self) -> Callable[[], bool]:
        """Whether it has said nothing for `PATIENCE_S`, or goes on for `MOST_S`."""
        begun = since = time.monotonic()
        said = -1

        def is_late() -> bool:
            nonlocal since, said
            now, size = time.monotonic(), self.said.stat().st_size
            since, said = (since if size == said else now), size
            return now - since > PATIENCE_S or now - begun > MOST_S

        return is_late

    def until_training(self, step: int = 2 * EVERY) -> None:
        """Return when a checkpoint of `step` or later is there; training goes on."""
        self.until(lambda: max(self.command_store.steps(), default=0) >= step, f"checkpoint {step}")

    def interrupt(self) -> None:
        """Ctrl-C: a terminal sends it to the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def interrupt_until_it_ends(self) -> int:
        """Ctrl-C again and again, as somebody does who cannot wait: what comes within a second of the first
        is one request with it. None comes after `interrupted`, which a program prints as its last word. The
        exit code, within some seconds.
        """
        deadline = time.monotonic() + LEAVES_S
        while (code := self.process.poll()) is None:
            assert time.monotonic() < deadline, f"did not leave in {LEAVES_S} s:\n{self.text}"
            with suppress(ProcessLookupError):
                if "interrupted" not in self.text:
                    os.killpg(self.process.pid, signal.SIGINT)
            time.sleep(0.1)
        return code

    def kill(self, word: str) -> None:
        """SIGKILL the one process of this store that has `word` in its arguments."""
        [pid] = self.command_store.processes(word)
        os.kill(pid, signal.SIGKILL)

    def wait(self, seconds: float = 0.0) -> int:
        """The exit code; `seconds`: within which it ends; 0 = it may go on while it says something."""
        begun, is_late = time.monotonic(), self._lateness()
        while (code := self.process.poll()) is None:
            is_over = time.monotonic() - begun > seconds if seconds else is_late()
            assert not is_over, f"did not end in {seconds or PATIENCE_S} s:\n{self.text}"
            time.sleep(0.01)
        return code

    def end(self) -> None:
        """End all processes, whatever the result of the test."""
        for pid in [self.process.pid, *self.command_store.processes()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
