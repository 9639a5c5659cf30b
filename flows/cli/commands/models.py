"""`atelier models`: the trained models of the store."""

import json
import time
from argparse import Namespace
from typing import TypedDict

from atelier.engine.config.record import Record
from atelier.flows.run.store_check import open_store
from atelier.flows.run.table import amount, print_table
from atelier.infra.report.lineage import step_of


def run(options: Namespace) -> int:
    """Print the models, the oldest first; the exit code."""
    store = open_store()
    found = sorted((described(record) for record in store.records("model")), key=lambda one: one["made"] or 0)
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    if not found:
        print(f"no model in {store.root} yet; `atelier pretrain experiment=tiny` makes one")
        return 0
    columns = (
        "model",
        "fingerprint",
        "step",
        "params",
        "held-out loss",
        "computed",
        "teacher",
        "made",
        "run",
    )
    print_table(columns, [_cells(one) for one in found], right=("step", "params", "held-out loss"))
    return 0


class ModelRow(TypedDict):
    """A model as `atelier models --json` prints it."""

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


def described(record: Record) -> ModelRow:
    """A model's record as `atelier models` shows it; losses are nats per token."""
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
    }


def _cells(one: ModelRow) -> tuple[str, ...]:
    loss = one["eval_loss"]
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(one["made"])) if one["made"] else ""
    steps = one["teacher_steps"]
    teacher = (
        f"{one['teacher']} @ {steps[0]}-{steps[1]}" if one["teacher"] and steps else one["teacher"] or ""
    )
    params = amount(one["params"]) if one["params"] else ""
    return (
        one["name"],
        one["fingerprint"][:8],
        str(one["step"] or ""),
        params,
        f"{loss:.4f}" if loss is not None else "",
        one["computed"] or "",
        teacher,
        made,
        one["run"] or "",
    )
