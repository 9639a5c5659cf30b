"""List a store's models and runs, a row for each."""

import shlex
from typing import TypedDict

from atelier.engine.config.error import DamageError
from atelier.engine.config.record import Record
from atelier.infra.report.lineage import step_of
from atelier.infra.store.alias import aliases
from atelier.infra.store.run_manifest import RunManifest, is_alive, read_manifests
from atelier.infra.store.store import Store

TRAINING = (  # first words of keys that change a training
    *("model", "init", "objective", "optim", "train", "data", "tokenizer", "start", "gate", "grow", "tune"),
)
LONGEST = 40  # characters of one difference


class ModelRow(TypedDict):
    """A model as `atelier models --json` prints it; losses are nats per token, `made` is seconds since
    1970.
    """

    name: str
    fingerprint: str
    step: int | None
    params: int | None
    loss: float | None
    eval_loss: float | None
    held_out: str | None
    computed: str | None
    teacher: str | None
    teacher_steps: list[int] | None
    made: float | None
    run: str | None
    command: str | None
    differs: list[str]  # training settings that its command changed, as key=value
    aliases: list[str]


class RunRow(TypedDict):
    """A run as `atelier runs --json` prints it; `made`, `reused` and `failed` are names of its tasks, times
    are seconds since 1970.
    """

    id: str
    flow: str
    status: str
    started: float
    ended: float | None
    took_s: float | None
    made: list[str]
    reused: list[str]
    failed: list[str]
    sweep: str
    rerun_of: str  # id of the run that it ran again, '' = none
    command: str
    links: dict[str, str]


def model_rows(store: Store) -> list[ModelRow]:
    """The trained models of the store, the oldest first."""
    found = sorted(map(model_row, store.records("model")), key=lambda one: one["made"] or 0)
    for alias in aliases(store.root):
        for one in found:
            if one["fingerprint"] == alias.fingerprint:
                one["aliases"].append(alias.alias)
    return found


def run_rows(store: Store) -> tuple[list[RunRow], list[DamageError]]:
    """The runs of the store, the oldest first, and the damage of manifests that cannot be read."""
    there, damaged = read_manifests(store)
    return [run_row(manifest) for manifest in there], list(damaged.values())


def model_row(record: Record) -> ModelRow:
    summary = record.summary
    return {
        "name": record.name,
        "fingerprint": record.fingerprint,
        "step": step_of(record),
        "params": summary.get("params"),
        "loss": summary.get("loss"),
        "eval_loss": summary.get("eval_loss"),
        "held_out": summary.get("held_out"),
        "computed": summary.get("computed"),
        "teacher": summary.get("teacher") or None,
        "teacher_steps": summary.get("teacher_steps"),
        "made": record.provenance.get("ended"),
        "run": record.provenance.get("run"),
        "command": record.provenance.get("command"),
        "differs": differences(record.provenance.get("command") or "", str(summary.get("role", record.name))),
        "aliases": [],
    }


def run_row(manifest: RunManifest) -> RunRow:
    """The row of a run. A run without an end whose process is gone has crashed."""
    states, status = manifest.states, manifest.status
    if status == "running" and is_alive(manifest) is False:
        status = "crashed"
    started, ended = manifest.started, manifest.ended
    return {
        "id": manifest.id,
        "flow": manifest.flow,
        "status": status,
        "started": started,
        "ended": ended,
        "took_s": round(ended - started, 1) if ended else None,
        "made": [name for name, state in states.items() if state == "done"],
        "reused": [name for name, state in states.items() if state == "reused"],
        "failed": [name for name, state in states.items() if state == "failed"],
        "sweep": manifest.sweep,
        "rerun_of": manifest.rerun_of,
        "command": manifest.command,
        "links": manifest.links,
    }


def differences(command: str, role: str) -> list[str]:
    """Training settings of `role` that `command` changes, for the name of its run: `lr=0.02`."""
    found = []
    for word in shlex.split(command):
        key, is_set, value = word.lstrip("+").partition("=")
        place = key.partition("@")[2] or key
        mine = place.removeprefix(f"roles.{role}.")
        if is_set and place.startswith("roles.") and mine == place:
            continue
        if is_set and mine.split(".")[0] in TRAINING:
            found.append(f"{mine.rsplit('.', 1)[-1]}={value}"[:LONGEST])
    return found
