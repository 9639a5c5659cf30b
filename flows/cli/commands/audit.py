"""`atelier audit <model> [set ...]`: run the flow `audit` and print its result."""

import json
import re
import shlex
import sys
from argparse import Namespace
from contextlib import nullcontext, redirect_stdout

from atelier.engine.config.audit import AuditResult, exit_code
from atelier.engine.config.error import ConfigError, printable
from atelier.flows.deployments.start import run_to_end
from atelier.flows.run.compose import compose
from atelier.flows.run.store_check import check_root
from atelier.flows.run.table import plain_console
from atelier.infra.report.audits import audit_tables, audits_of, question_lines
from atelier.infra.store.existing_model import sets_of_exams
from atelier.infra.store.store import Store, default_root

STRANGE = re.compile(r"[,=\[\]{}\s]")
MOST = 20  # questions shown
VERDICTS = {
    0: "clean: no question was read",
    3: "OVERLAP: some questions were read",
    4: "UNKNOWN: what could not be seen, or is too short to tell, is not called clean",
}


def run(options: Namespace) -> int:
    """Audit, and print. Returns 0 for clean, 3 for an overlap, 4 for unknown, 1 if a task failed."""
    check_root(will_write=True)
    store = Store(default_root())
    if strange := STRANGE.search(options.model):
        raise ConfigError(
            "model", f"{options.model!r} has {strange[0]!r}", "name one model; run once for each"
        )
    given = [word for word in options.set or [] if "=" in word]
    if named := [word for word in given if word.startswith("models=")]:
        raise ConfigError("set", f"{named[0]}: the model is the first word", "run once for each model")
    words = [word for word in options.set or [] if word not in given]
    if not any(word.startswith("evals=") for word in given):
        words = words or sets_of_exams(store, options.model)
        if not words:
            problem = f"none is given, and {options.model} has no exam"
            raise ConfigError("set", problem, f"atelier audit {options.model} mytask.yaml")
    overrides = [f"models=[{options.model}]", *([f"evals=[{','.join(words)}]"] if words else []), *given]
    command = shlex.join(["atelier", "audit", options.model, *(options.set or [])])
    with redirect_stdout(sys.stderr) if options.json else nullcontext():  # progress is no JSON
        outcome = run_to_end(compose("audit", overrides), store, command, is_brief=True)
    if outcome.failure is not None:
        where = f"{outcome.failed}: " if outcome.failed else ""
        print(printable(f"{where}{outcome.failure}", 0), file=sys.stderr)
        return getattr(outcome.failure, "exit_code", 1)
    node = next(node for node in outcome.nodes if node.task == "audit")
    [product] = node.products.values()
    found = audits_of({options.model: store.find(product.kind, product.fingerprint)}, store)
    if options.json:
        print(json.dumps(found[options.model], indent=1, ensure_ascii=False))
    else:
        _show(found)
    return exit_code(found[options.model])


def _show(found: dict[str, AuditResult]) -> None:
    [result] = found.values()
    questions = [question for each in result["sets"] for question in each["questions"]]
    shown = [question for question in questions if question["overlaps"]]
    for question in shown[:MOST]:
        for line in question_lines(question, result):
            print(printable(line, 0))
    if len(shown) > MOST:
        print(f"and {len(shown) - MOST} more questions; --json lists all")
    for table in audit_tables(found):
        plain_console().print(table.to_rich())
    print(VERDICTS[exit_code(result)])
