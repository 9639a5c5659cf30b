"""A kill, a full disk or an I/O error at any system call of a commit leaves the old or the new state."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from atelier.engine.checkpoint.collective_call import SingleRank
from atelier.engine.checkpoint.folder import address, newest_good, steps
from atelier.engine.checkpoint.reader import load
from atelier.engine.checkpoint.writer import save_async
from atelier.engine.io.storage import TEMPORARY
from atelier.infra.store.lease import Holder, LeaseLog, take
from atelier.infra.store.store import Store
from tests.checkout import TOP
from tests.faults.commits import REFUSED, SCENARIOS, TRAJECTORY, draft, state

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("strace"), reason="strace is missing: apt-get install strace"),
]
CALLS = (
    "fsync",
    "fdatasync",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "write",
    "mkdir",
    "rmdir",
    "unlink",
    "unlinkat",
)
REFUSABLE = ("fsync", "fdatasync", "rename", "renameat", "renameat2", "link", "linkat", "write", "mkdir")


class Stage:
    """Commits in processes of their own, watched by strace."""

    def __init__(self) -> None:
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.commits"],
            cwd=TOP, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def line(self) -> str:
        assert self.server.stdout is not None
        return self.server.stdout.readline().strip()

    def commit(self, scenario: str, folder: Path, *inject: str) -> tuple[str, str]:
        """Run `scenario` under the injections; how it ended, and the calls it made."""
        assert self.server.stdin is not None
        self.server.stdin.write(f"{scenario} {folder}\n")
        self.server.stdin.flush()
        pid = int(self.line())
        while not re.search(r"State:\s+T", status(pid)):
            time.sleep(0.002)
        log = folder.with_suffix(".strace")
        options = [part for text in inject for part in ("-e", f"inject={text}")]
        strace = subprocess.Popen(
            ["strace", "-f", "-qq", "-e", f"trace={','.join(CALLS)}", *options, "-o", log, "-p", str(pid)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        while "TracerPid:\t0" in status(pid):
            if strace.poll() is not None:
                os.kill(pid, signal.SIGKILL)
                self.line()
                assert strace.stderr is not None
                pytest.skip(f"strace cannot attach: {strace.stderr.read().strip()}")
            time.sleep(0.002)
        os.kill(pid, signal.SIGCONT)
        ended = self.line()
        strace.communicate()
        return ended, log.read_text()

    def close(self) -> None:
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.close()
        self.server.wait()
        self.server.stdout.close()


def status(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


def save(folder: Path, step: int, number: int) -> None:
    save_async(
        address(str(folder), step), state(number), step=step, trajectory=TRAJECTORY, gang=SingleRank()
    ).wait()


def number_at(folder: Path, step: int) -> int:
    """Which state a checkpoint holds, compared bit by bit."""
    found = state(0)
    number = load(address(str(folder), step), found, step=step, trajectory=TRAJECTORY, gang=SingleRank())[
        "step"
    ]
    for name, tensor in state(number)["weights"].items():
        assert torch.equal(found["weights"][name], tensor), f"step {step}: {name} is torn"
    return number


class Publish:
    """Nothing, or the whole artifact; then it can be published, once."""

    def prepare(self, folder: Path) -> None:
        folder.mkdir()

    def is_new(self, folder: Path) -> bool:
        found = Store(str(folder)).find("model", draft().fingerprint)
        assert found is None or (Store(str(folder)).check(found) == [] and found.summary == {"loss": 1.5})
        return found is not None

    def goes_on(self, folder: Path) -> None:
        SCENARIOS["publish"](str(folder))
        assert self.is_new(folder)
        store = Store(str(folder))
        log = LeaseLog(store.address("model", draft().fingerprint))
        assert [log.entry(number).act for number in log.numbers()].count("publish") == 1


class Leases:
    """Whatever the dead holder left, the next one takes over at once, with a higher fence."""

    def prepare(self, folder: Path) -> None:
        folder.mkdir()

    def is_new(self, folder: Path) -> bool:
        acts = [LeaseLog(str(folder)).entry(number).act for number in LeaseLog(str(folder)).numbers()]
        assert acts == ["take", "release", "take", "release"][: len(acts)]
        return len(acts) == 4

    def goes_on(self, folder: Path) -> None:
        before = LeaseLog(str(folder)).numbers()
        since = time.monotonic()
        lease = take(str(folder), Holder.me())
        assert lease is not None and time.monotonic() - since < 5.0
        assert lease.fence == len(before) + 1
        lease.release()


class Checkpoint:
    """Step 2 is not there or whole; step 1 always is; saving again succeeds and clears away what was left."""

    def prepare(self, folder: Path) -> None:
        save(folder, 1, 1)

    def is_new(self, folder: Path) -> bool:
        assert set(steps(str(folder))) <= {1, 2} and number_at(folder, 1) == 1
        newest, damages = newest_good(str(folder), trajectory=TRAJECTORY)
        assert not damages and newest is not None
        return newest == 2 and number_at(folder, 2) == 2

    def goes_on(self, folder: Path) -> None:
        save(folder, 2, 2)
        assert self.is_new(folder)
        assert not [path for path in folder.iterdir() if path.name.startswith(TEMPORARY)]


class Replacement(Checkpoint):
    """Step 2 holds what it held or what replaces it."""

    def prepare(self, folder: Path) -> None:
        save(folder, 1, 1)
        save(folder, 2, 2)

    def is_new(self, folder: Path) -> bool:
        newest, damages = newest_good(str(folder), trajectory=TRAJECTORY)
        assert not damages and newest == 2 and number_at(folder, 1) == 1
        return number_at(folder, 2) == 3

    def goes_on(self, folder: Path) -> None:
        save(folder, 2, 3)
        assert self.is_new(folder)
        assert not [path for path in folder.iterdir() if path.name.startswith(TEMPORARY)]


CASES = {"publish": Publish(), "lease": Leases(), "checkpoint": Checkpoint(), "replacement": Replacement()}


def points(stage: Stage, scenario: str, folder: Path) -> list[tuple[str, int]]:
    """Every (call, n): the n-th time that an undisturbed commit makes this call."""
    CASES[scenario].prepare(folder)
    ended, log = stage.commit(scenario, folder)
    assert ended == "code 0" and CASES[scenario].is_new(folder)
    counts = Counter(re.findall(r"^\d+ +(\w+)\(", log, re.MULTILINE))
    assert counts["fsync"] >= 2 and set(counts) <= set(CALLS)
    return [(call, number + 1) for call in CALLS for number in range(counts[call])]


@pytest.mark.parametrize("scenario", CASES)
def test_a_kill_at_any_call_of_a_commit_leaves_the_old_or_the_new_state(
    scenario: str, stage: Stage, tmp_path: Path, report: Callable[[str], None]
) -> None:
    case, states = CASES[scenario], Counter[bool]()
    for call, number in points(stage, scenario, tmp_path / "whole"):
        folder = tmp_path / f"{call}-{number}"
        case.prepare(folder)
        ended, _ = stage.commit(scenario, folder, f"{call}:signal=KILL:when={number}")
        assert ended == f"signal {signal.SIGKILL}", f"{call} {number}: not hit ({ended})"
        states[case.is_new(folder)] += 1
        case.goes_on(folder)
        shutil.rmtree(folder)
    report(f"{scenario}: killed at {states.total()} points, {states[True]} times after the commit")
    assert states[False], "no kill came before the commit"


@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
@pytest.mark.parametrize("scenario", CASES)
def test_an_error_at_any_call_of_a_commit_is_loud_and_the_old_state_stays(
    scenario: str, error: str, stage: Stage, tmp_path: Path, report: Callable[[str], None]
) -> None:
    case, ends = CASES[scenario], Counter[str]()
    for call, number in points(stage, scenario, tmp_path / "whole"):
        if call not in REFUSABLE:
            continue
        folder = tmp_path / f"{call}-{number}"
        case.prepare(folder)
        ended, _ = stage.commit(scenario, folder, f"{call}:error={error}:when={number}")
        is_new = case.is_new(folder)
        assert ended == f"code {REFUSED}" or (ended == "code 0" and is_new), (
            f"{call} {number}: silent ({ended})"
        )
        ends[ended] += 1
        case.goes_on(folder)
        shutil.rmtree(folder)
    report(f"{scenario}: {error} at {ends.total()} points, loud at {ends[f'code {REFUSED}']}")
    assert ends[f"code {REFUSED}"]


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print past pytest's capture."""

    def say(text: str) -> None:
        with suppress(ValueError), capsys.disabled():
            print(f"\n{text}")

    return say
