"""A flow that is killed without warning in each of some trainings, and run again."""

import json
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.faults.command import CommandStore


def killed_and_finished(store: CommandStore, arguments: tuple[str, ...], names: Iterable[str]) -> None:
    """Kill the run after a checkpoint of step 8 or later of each of these trainings; then let it end."""
    for name in names:
        command = store.start(*arguments)
        command.until(lambda name=name: max(steps_of(store, name), default=0) >= 8, f"a checkpoint of {name}")
        for process in store.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        command.wait()
        store.wait_for_quiet()
    code, _, err = store.finish(*arguments)
    assert code == 0, err


def weights_of(store: CommandStore) -> dict[str, list[str]]:
    """Digests of the weights of every model, by name: of several of one name those of the newest."""
    return {
        record["name"]: [file["sha256"] for file in record["files"] if "safetensors" in file["path"]]
        for record in store.records("model")
    }


def steps_of(store: CommandStore, name: str) -> list[int]:
    """Steps of the checkpoints of a role."""
    mine = (path for path in store.root.glob("trajectory/*") if name_of(path) == name)
    return [int(path.name[5:]) for folder in mine for path in folder.glob("checkpoints/step-*")]


def name_of(trajectory: Path) -> str:
    record = trajectory / "trajectory.json"
    return json.loads(record.read_text())["name"] if record.exists() else ""
