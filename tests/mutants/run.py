"""Break one promise at a time in a copy of the tree; its test must fail. `make mutants`. JOBS mutants, by
default 2, are judged at once, each in a copy of its own.

Each `*.patch` here says `promise:` and `red:` (pytest arguments) above its diff. Exit code 1 when a mutant
survives, a patch no longer applies, or the tests are not green without it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
PARTS = ("conf", "engine", "flows", "infra", "src", "tasks", "tests", "pyproject.toml")
TIMEOUT_S = 300
JOBS = int(os.environ.get("JOBS", "2"))
PASSED, FAILED, NOTHING_RAN = 0, 1, 5  # pytest's exit codes


@dataclass(frozen=True)
class Mutant:
    """A patch and what it should turn red."""

    patch: Path
    promise: str
    red: tuple[str, ...]

    @staticmethod
    def read(patch: Path) -> "Mutant":
        head = dict(line.split(": ", 1) for line in patch.read_text().splitlines()[:2])
        return Mutant(patch, head["promise"], tuple(head["red"].split()))


class Copy:
    """The tree without its history, where patches are applied and taken back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in PARTS:
            source = PROJECT / part
            if source.is_dir():
                shutil.copytree(
                    source, folder / part
                )  # compiled files too: all but the patched ones are valid
            else:
                shutil.copy(source, folder / part)
        self.env = os.environ | {
            "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def check_imports(self) -> None:
        """End here when an installed package would be tested instead of the copy."""
        names = (
            "atelier.engine.io.storage",
            "atelier.infra.store.lease",
            "atelier.tasks.train",
            "atelier.flows.cli.main",
            "tests.faults.commits",
        )
        script = (
            f"import importlib; print(*[importlib.import_module(n).__file__ for n in {names}], sep='\\n')"
        )
        done = self.run(sys.executable, "-c", script)
        strangers = [line for line in done.stdout.split() if not line.startswith(f"{self.folder}/")]
        if done.returncode or strangers:
            sys.exit(f"mutants: not the copy in {self.folder} is imported: {strangers or done.stderr}")

    def apply(self, mutant: Mutant, *options: str) -> bool:
        return self.run("git", "apply", *options, str(mutant.patch)).returncode == 0

    def pytest(self, *arguments: str) -> tuple[int, str]:
        """pytest's exit code and its last lines; a hang counts as red."""
        command = (sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--no-header", *arguments)
        try:
            done = self.run(*command)
        except subprocess.TimeoutExpired:
            return FAILED, f"hangs for {TIMEOUT_S} s"
        lines = (done.stdout + done.stderr).strip().splitlines()
        return done.returncode, "\n".join(lines[-15:])


def judged(mutant: Mutant, copy: Copy) -> tuple[str, str]:
    """(verdict, pytest's output when the verdict is bad)."""
    code, text = copy.pytest(*mutant.red)
    if code != PASSED:
        return "red without it", text
    if " passed" not in text:
        return "skipped", text
    if not copy.apply(mutant):
        return "does not apply", ""
    try:
        code, text = copy.pytest(*mutant.red)
    finally:
        copy.apply(mutant, "-R")
    verdict = {PASSED: "SURVIVED", FAILED: "found", NOTHING_RAN: "no such test"}.get(
        code, f"pytest ended with {code}"
    )
    return verdict, "" if verdict == "found" else text


def main(words: list[str]) -> int:
    """Run all mutants, or those whose names hold one of `words`."""
    mutants = [Mutant.read(path) for path in sorted(HERE.glob("*.patch"))]
    mutants = [one for one in mutants if not words or any(word in one.patch.stem for word in words)]
    began = time.monotonic()
    copies = SimpleQueue[Copy]()

    def judge(mutant: Mutant) -> str:
        since, copy = time.monotonic(), copies.get()
        verdict, text = judged(mutant, copy)
        copies.put(copy)
        took = time.monotonic() - since
        print(f"{mutant.patch.stem:<20} {verdict:<15} {took:5.1f} s  {mutant.promise}", flush=True)
        if text:
            print("    " + text.replace("\n", "\n    "))
        return verdict

    with tempfile.TemporaryDirectory(prefix="atelier-mutants-") as folder, ThreadPoolExecutor(JOBS) as pool:
        for number in range(JOBS):
            (path := Path(folder).resolve() / str(number)).mkdir()
            copies.put(copy := Copy(path))
            copy.check_imports()
        failed = sum(verdict not in ("found", "skipped") for verdict in pool.map(judge, mutants))
    print(f"{len(mutants)} mutants, {failed} not as they should be, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
