"""`atelier <flow> ...`: plan it, refuse what cannot work, run it, say what happened and what to type next."""

import sys

from engine.spec.error import ConfigError
from flows.cli.compose import Frozen, compose
from flows.cli.execute import Outcome, run_flow
from flows.cli.plan import draw
from flows.cli.screen import Screen
from infra.store import Store, default_root


def run_command(arguments: list[str], command: str) -> int:
    flow, overrides = arguments[0], arguments[1:]
    frozen = compose(flow, overrides)
    return run_point(frozen, command)


def run_point(frozen: Frozen, command: str, sweep: str = "") -> int:
    store = Store(default_root())
    plan = draw(frozen, store)
    if plan.refusals:
        raise ConfigError("plan", "; ".join(plan.refusals))
    with Screen() as screen:
        totals = plan.document()["totals"]
        screen.line(
            f"{frozen.flow}: {totals['tasks']} tasks, {totals['reuse']} artifacts to reuse, {totals['run']}"
            f" to make  (store {store.root})"
        )
        outcome = run_flow(frozen, store, command, screen, sweep)
    return _ended(frozen, outcome, store)


def _ended(frozen: Frozen, outcome: Outcome, store: Store) -> int:
    if outcome.failure is not None:
        print(f"{outcome.failed + ': ' if outcome.failed else ''}{outcome.failure}", file=sys.stderr)
        print("finished tasks are kept; the same command goes on from there", file=sys.stderr)
        # type: ignore[union-attr]
        return outcome.failure.exit_code if hasattr(outcome.failure, "exit_code") else 1
    if outcome.nodes and len(outcome.reused) == len(outcome.nodes):
        print(f"nothing to do ({len(outcome.reused)} reused)")
    print(f"{outcome.total_s:.1f} s, of which Prefect's start {outcome.prefect_s:.1f} s")
    return 0
