"""A GPU belongs to one gang at a time, across all commands, users and stores of a machine."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atelier.engine.config.device import is_device
from atelier.engine.config.error import ConfigError
from atelier.engine.config.pool import Pool
from atelier.flows.cli.main import run
from atelier.infra.launch import gpus
from atelier.infra.launch.gpus import check_gpus, gpu_names, visible
from atelier.infra.launch.slots import GpuSlots
from tests.infra.launch.gpu_machine import machine, uuid

ONE, TWO, THREE = (uuid(number) for number in (1, 2, 3))
PATIENCE_S = 60.0
BUSY = """
import json, os, random, sys, threading
from atelier.engine.config.pool import Pool
from atelier.infra.launch.slots import GpuSlots
seed, total, log = int(sys.argv[1]), int(sys.argv[2]), os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND)
dice, stop = random.Random(seed), threading.Event()
for number in range(12):
    seen = dice.sample(range(total), dice.randint(1, total))
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, seen))
    slots = GpuSlots(Pool(gpu="h100", gpus=total))
    with slots.claim(dice.randint(1, len(seen)), stop) as claim:
        devices = slots.devices(claim).split(",")
        os.write(log, (json.dumps(["take", devices]) + "\\n").encode())
        sum(range(200_000))
        os.write(log, (json.dumps(["give", devices]) + "\\n").encode())
"""
COMMAND = """
import sys
from pathlib import Path
from atelier.engine.config.pool import Pool
from atelier.infra.dag import Node, Product
from atelier.infra.run.context import RunContext
from atelier.infra.run.gang_request import GangRequest
from atelier.infra.launch.slots import CoreSlots
from atelier.infra.store.store import Store
root, run, ranks, log, go = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]
pool = Pool(gpu="h100", gpus=2)
context = RunContext(
    store=Store(str(root)), slots=CoreSlots(pool, root / "slots"), scratch=root / "scratch", run_id=run,
    flow="demo", command="demo", listener=lambda node, message: print(message, flush=True), pool=pool,
)
product = Product(kind="score", name="s", version=1, identity={"run": run}, parents={})
node = Node(name="train", task="score", products={"s": product}, ranks=ranks)
context.gang(GangRequest(node=node, module="tests.infra.launch.gpu_rank",
    config=lambda fences: {"log": log, "go": go}, outputs=context.missing(node)))
"""


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process's machine has GPUs ONE and TWO."""
    for key, value in machine(tmp_path, [ONE, TWO]).items():
        monkeypatch.setenv(key, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


class Command:
    """A command of its own store that trains with `ranks` GPUs until `go` is called."""

    def __init__(self, folder: Path, run: str, ranks: int) -> None:
        self.go_file, self.said = folder / f"go-{run}", folder / f"said-{run}"
        words = [str(folder / f"store-{run}"), run, str(ranks), str(folder / "log"), str(self.go_file)]
        with open(self.said, "wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, *words], stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )

    @property
    def text(self) -> str:
        return self.said.read_text()

    def go(self) -> None:
        self.go_file.touch()

    def end(self) -> int:
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def start(two_gpus: Path) -> Iterator[Callable[[str, int], Command]]:
    started: list[Command] = []

    def begin(run: str, ranks: int) -> Command:
        started.append(Command(two_gpus, run, ranks))
        return started[-1]

    yield begin
    for command in started:
        command.go()  # ranks that are still there end
        if command.process.poll() is None:
            command.process.send_signal(signal.SIGKILL)
        command.process.wait()


def notes(folder: Path) -> list[list[str]]:
    log = folder / "log"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def until(condition: Callable[[], object], what: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("given", "there"),
    [
        (None, [ONE, TWO]),
        ("", []),
        ("1", [TWO]),
        ("1,0", [TWO, ONE]),
        ("0,-1,1", [ONE]),
        ("0,7", [ONE]),
        ("GPU-00000002", [TWO]),
        ("GPU-0", []),
        ("MIG-4f0c/1/0", ["MIG-4f0c/1/0"]),
        ("none;rm -rf /", []),
    ],
)
def test_what_may_be_used_is_what_cuda_would_see_by_uuid(
    two_gpus: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, there: list[str]
) -> None:
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert visible(5) == there


def test_without_nvidia_smi_gpus_go_by_their_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible(2) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert visible(2) == ["3", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,1")
    with pytest.raises(ConfigError, match=r"CUDA_VISIBLE_DEVICES.*twice"):
        visible(2)


@pytest.mark.parametrize(
    ("wanted", "found", "is_it"),
    [
        ("h100", "NVIDIA H100 80GB HBM3", True),
        ("H100", "NVIDIA H100 NVL", True),
        ("nvidia_h100", "NVIDIA H100 PCIe", True),
        ("h100", "NVIDIA H200", False),
        ("h200", "NVIDIA GH200 480GB", False),
        ("h100", "NVIDIA A100-SXM4-80GB", False),
        ("a100", "NVIDIA A100 80GB PCIe", True),
        ("a100_40g", "NVIDIA A100-SXM4-80GB", False),
        ("a100-40g", "NVIDIA A100-PCIE-40GB", True),
        ("a100-80g", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", True),
        ("v100", "Tesla V100-SXM2-32GB", True),
        ("mi250x", "AMD INSTINCT MI250X/MI250", True),
        ("our-own", "NVIDIA L4", True),  # a word of the pool's owner
        ("h100", "cpu", False),
        ("cpu", "NVIDIA H100 NVL", False),
        ("cpu", "cpu", True),
        ("our-own", "cpu", False),
    ],
)
def test_a_drivers_name_is_compared_with_the_pools_type_loosely(wanted: str, found: str, is_it: bool) -> None:
    assert is_device(wanted, found) == is_it


def test_a_pool_of_gpus_is_refused_on_a_machine_without_with_what_was_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpus, "MODULE", tmp_path)
    with pytest.raises(ConfigError, match=r"pool\.gpu: is h100, but this machine has no GPU.*pool=cpu"):
        check_gpus(Pool(gpu="h100", gpus=1))
    check_gpus(Pool())


def test_a_pool_of_other_gpus_is_refused_with_those_that_were_found(
    two_gpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_gpus(Pool(gpu="h100", gpus=1))
    with pytest.raises(ConfigError, match=r"is a100, but this machine has 2 x NVIDIA H100.*; pool\.gpu=h100"):
        check_gpus(Pool(gpu="a100", gpus=1))
    with pytest.raises(ConfigError, match="2 x NVIDIA H100"):
        GpuSlots(Pool(gpu="v100", gpus=1))


def test_without_nvidia_smi_the_drivers_files_or_rocm_smi_are_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpus, "MODULE", tmp_path / "gpus")
    amd = {"card0": {"Card series": "AMD INSTINCT MI250X", "Card SKU": "D65"}, "system": {}}
    program = tmp_path / "rocm-smi"
    program.write_text(f"#!/bin/sh\necho '{json.dumps(amd)}'\n")
    program.chmod(0o755)
    assert gpu_names() == ["AMD INSTINCT MI250X D65"]
    check_gpus(Pool(gpu="mi250x", gpus=1))
    place = tmp_path / "gpus" / "0000:07:00.0"
    place.mkdir(parents=True)
    (place / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   0\n")
    assert gpu_names() == ["NVIDIA H200"]


def test_a_run_on_a_gpu_pool_without_its_gpus_is_refused_before_anything_is_made(
    two_gpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATELIER_ROOT", str(two_gpus / "store"))
    assert run(["pretrain", "experiment=tiny", "tracker=none", "pool.gpu=a100", "pool.gpus=1"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("pool.gpu: is a100, but this machine has 2 x NVIDIA H100")
    assert not list(two_gpus.glob("store/*/*/record.json"))


def test_more_ranks_than_gpus_are_refused_with_what_there_is(
    two_gpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(ConfigError, match=r"train.*needs 2 GPUs.*may use 1.*CUDA_VISIBLE_DEVICES=1"):
        GpuSlots(Pool(gpu="h100", gpus=2)).check(2, "train")


def test_a_command_waits_for_anothers_gpus_and_says_whose_they_are(
    two_gpus: Path, start: Callable[[str, int], Command]
) -> None:
    both = start("both", 2)
    until(lambda: len(notes(two_gpus)) == 2, lambda: both.text)
    assert [note[2] for note in notes(two_gpus)] == [f"{ONE},{TWO}"] * 2  # each by its LOCAL_RANK
    single = start("single", 1)
    until(lambda: f"waits for 1 of 2 GPUs; process {both.process.pid}" in single.text, lambda: single.text)
    assert len(notes(two_gpus)) == 2 and single.text.count("waits for") == 1
    both.go()
    assert both.end() == 0, both.text
    until(lambda: len(notes(two_gpus)) == 5, lambda: single.text)
    assert notes(two_gpus)[-1][:3] == ["begin", "single", ONE]
    single.go()
    assert single.end() == 0, single.text


def test_two_commands_that_need_one_gpu_each_train_at_once_on_different_ones(
    two_gpus: Path, start: Callable[[str, int], Command]
) -> None:
    commands = [start("a", 1), start("b", 1)]
    until(lambda: len(notes(two_gpus)) == 2, lambda: commands[0].text + commands[1].text)
    assert {note[0] for note in notes(two_gpus)} == {"begin"}
    assert {note[2] for note in notes(two_gpus)} == {ONE, TWO}
    for command in commands:
        command.go()
        assert command.end() == 0, command.text


def test_the_gpus_of_a_killed_command_are_held_until_its_ranks_have_ended(
    two_gpus: Path, start: Callable[[str, int], Command]
) -> None:
    first = start("first", 2)
    until(lambda: len(notes(two_gpus)) == 2, lambda: first.text)
    first.process.kill()
    first.process.wait()
    second = start("second", 2)
    second.go()
    assert second.end() == 0, second.text
    pids = [int(word) for word in first.text.partition("'pids': [")[2].partition("]")[0].split(",")]
    assert len(pids) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_claims_drawn_from_a_seed_never_overlap(tmp_path: Path) -> None:
    total = 4
    env = os.environ | machine(tmp_path, [uuid(number) for number in range(total)])
    log = tmp_path / "log"
    log.touch()
    workers = [
        subprocess.Popen([sys.executable, "-c", BUSY, str(seed), str(total), str(log)], env=env)
        for seed in random.Random(25).sample(range(1000), 3)
    ]
    assert [worker.wait(120) for worker in workers] == [0, 0, 0]
    taken: set[str] = set()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == 3 * 12 * 2
    for what, devices in lines:
        if what == "take":
            assert not taken & set(devices)
            taken |= set(devices)
        else:
            taken -= set(devices)


def test_who_may_use_other_gpus_waits_for_nobody(two_gpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that waits for GPU ONE stands in nobody's way to GPU TWO."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    first, stop = GpuSlots(Pool(gpu="h100", gpus=1)), threading.Event()
    told = threading.Event()
    with first.claim(1, threading.Event()):
        waiting = GpuSlots(Pool(gpu="h100", gpus=1))
        monkeypatch.setattr(waiting, "_tell", lambda count, on_wait: told.set())
        thread = threading.Thread(target=_claim, args=(waiting, stop))
        thread.start()
        assert told.wait(PATIENCE_S)  # it is at the door of ONE
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        other = GpuSlots(Pool(gpu="h100", gpus=1))
        with other.claim(1, threading.Event()) as claim:
            assert other.devices(claim) == TWO
    thread.join(PATIENCE_S)


def _claim(slots: GpuSlots, stop: threading.Event) -> None:
    with slots.claim(1, stop):
        pass
