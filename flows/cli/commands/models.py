"""`atelier models`: the trained models of the store."""

import json
import time
from argparse import Namespace

from atelier.flows.run.store_check import open_store
from atelier.flows.run.table import amount, print_table
from atelier.infra.report.listing import ModelRow, model_rows

LOSS = "eval loss (windows)"


def run(options: Namespace) -> int:
    """Print the models, the oldest first. Returns the exit code."""
    store = open_store()
    found = model_rows(store)
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    if not found:
        print(f"no model in {store.root} yet; `atelier pretrain experiment=tiny` makes one")
        return 0
    columns = (
        "model",
        "aliases",
        "differs by",
        "fingerprint",
        "step",
        "params",
        LOSS,
        "computed",
        "teacher",
        "made",
        "run",
    )
    print_table(columns, [_cells(one) for one in found], right=("step", "params", LOSS))
    return 0


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
        ", ".join(one["aliases"]),
        " ".join(one["differs"]),
        one["fingerprint"][:8],
        str(one["step"] or ""),
        params,
        f"{loss:.4f}" if loss is not None else "",
        one["computed"] or "",
        teacher,
        made,
        one["run"] or "",
    )
