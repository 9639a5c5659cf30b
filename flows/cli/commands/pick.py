"""`atelier pick <sweep or runs>`: find the best model, print its command line and give it an alias."""

import json
import sys
from argparse import Namespace

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError, printable
from atelier.flows.run.store_check import open_store
from atelier.flows.run.table import print_table
from atelier.flows.sweep.pick import Picked, choose
from atelier.infra.stack.stack import join_stack
from atelier.infra.store.alias import Alias, check_alias, give_alias
from atelier.infra.store.store import Store

SHOWN = 20


def run(options: Namespace) -> int:
    """Print the candidates and give the best one the alias. Returns the exit code. Raises ConfigError for
    conflicting options and candidates that cannot be compared.
    """
    store = open_store()
    if options.highest and options.lowest:
        raise ConfigError("pick", "--highest and --lowest", "give one of them")
    direction = "maximize" if options.highest else "minimize" if options.lowest else ""
    alias = options.alias or "best"
    check_alias(alias)
    choice = choose(store, options.what, options.by or "", direction=direction)
    given = _alias(store, choice, alias, options.what)
    if options.json:
        print(json.dumps(_document(choice, given), indent=1))
        return 0
    rows = [(one.label, f"{one.value:.4f}", one.command) for one in choice.candidates[:SHOWN]]
    print_table(("", choice.metric, "command"), rows, right=(choice.metric,), flexible="command")
    best = choice.best
    print(printable(f"best     {best.label}: {choice.order} {choice.metric} of {len(choice.candidates)}", 0))
    print(printable(f"         {best.command}", 0))
    if given is not None:
        print(printable(f"alias    {given} = {given.kind} {given.fingerprint[:8]}", 0))
        print(printable(f"next     atelier generate {given} --prompt 'def '", 0))
    return 0


def _alias(store: Store, choice: Picked, alias: str, words: list[str]) -> Alias | None:
    """Give the best model its alias, in the store and on its MLflow page. Returns None if the metric belongs
    to no model.
    """
    model = choice.model
    if model is not None and model.kind != "model":
        model = store.find("model", model.parents.get("model", ""))
    if model is None:
        return None
    given = give_alias(store.root, model, alias, f"{choice.order} {choice.metric} of {' '.join(words)}")
    if any(True for _ in store.records("registration")):
        from atelier.infra.tracking.direct import show_alias

        join_stack(store.root)
        try:
            show_alias(store, model.fingerprint, alias)
        except Exception as error:  # the alias exists; only MLflow lacks it
            print(f"MLflow does not show the alias: {str(error).splitlines()[0]}", file=sys.stderr)
    return given


def _document(choice: Picked, given: Alias | None) -> dict[str, Json]:
    return {
        "metric": choice.metric,
        "order": choice.order,
        "best": {"label": choice.best.label, "command": choice.best.command, "value": choice.best.value},
        "alias": str(given) if given else None,
        "fingerprint": given.fingerprint if given else None,
        "all": [{"label": c.label, "command": c.command, "value": c.value} for c in choice.candidates],
    }
