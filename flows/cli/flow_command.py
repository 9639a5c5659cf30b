"""`atelier <flow> ...`: run a flow, or with -m every point of a sweep; print results and next commands."""

import shlex
import sys
from collections.abc import Iterable, Iterator

from atelier.engine.config.error import ConfigError, DamageError, printable
from atelier.flows.deployments.start import run_to_end
from atelier.flows.run.compose import RunConfig, compose
from atelier.flows.run.outcome import RunOutcome
from atelier.flows.run.overrides import DRY, FRESH, MULTIRUN
from atelier.flows.run.table import plain_console
from atelier.infra.dag import Node
from atelier.infra.stack.stack import Stack
from atelier.infra.store.store import Store, default_root

LINEAGE = ("corpus", "tokenizer", "tokens", "model")  # scores and reports are in the table above
BAD_INPUT = ConfigError.exit_code
AGAIN = "the same command continues from there"
MENDED = "after the fix, the same command continues from there"  # else it fails again


def run_command(arguments: list[str], command: str) -> int:
    """Run a flow, or with -m every point of a sweep. Returns the exit code. Raises ConfigError for --dry-run
    without -m and for --fresh with it.
    """
    flow, overrides = arguments[0], [a for a in arguments[1:] if a not in MULTIRUN]
    if DRY in overrides and len(overrides) == len(arguments) - 1:
        raise ConfigError(DRY, "is for a sweep (-m)", f"atelier plan {flow} ... plans one run")
    if len(overrides) < len(arguments) - 1 and any(word.startswith("resume.fresh") for word in overrides):
        raise ConfigError(FRESH, "is for one run: points of a sweep share trainings", "run it without -m")
    if len(overrides) == len(arguments) - 1:
        return run_point(compose(flow, overrides), command)
    from atelier.flows.sweep.command import run_sweep  # late: only sweeps need Hydra's sweepers

    return run_sweep(flow, overrides, command)


def run_point(frozen: RunConfig, command: str) -> int:
    store = Store(default_root())
    return _ended(frozen, run_to_end(frozen, store, command), store)


def _ended(frozen: RunConfig, outcome: RunOutcome, store: Store) -> int:
    for text in outcome.untracked:
        print(printable(text, 0), file=sys.stderr)
    for place in outcome.places:
        print(f"curves   {printable(place, 0)}")
    if outcome.failure is not None:
        print(
            printable(f"{outcome.failed + ': ' if outcome.failed else ''}{outcome.failure}", 0),
            file=sys.stderr,
        )
        if isinstance(outcome.failure, DamageError):
            print(outcome.failure.way_out, file=sys.stderr)
        code = getattr(outcome.failure, "exit_code", 1)
        again = AGAIN if not frozen.resume.fresh else f"{AGAIN}, without {FRESH}"
        print("finished tasks are kept; " + (again if code != BAD_INPUT else MENDED), file=sys.stderr)
        return code
    report = next((node for node in outcome.nodes if node.task == "report"), None)
    if report is not None:
        _show(report, store, frozen)
    for line in _other_names(outcome.nodes, store):
        print(printable(line, 0))
    if len(outcome.reused) == len(outcome.nodes):
        print(f"nothing to do ({len(outcome.reused)} reused)")
    if outcome.prefect_s:
        print(f"{outcome.total_s:.1f} s; Prefect answered after {outcome.prefect_s:.1f} s")
    return 0


def _other_names(nodes: Iterable[Node], store: Store) -> Iterator[str]:
    """A line for each reused model that has another name in this run."""
    for product in (each for node in nodes for each in node.products.values() if each.kind == "model"):
        record = store.find(product.kind, product.fingerprint)
        if record is not None and record.name != product.name:
            made = f"{record.name} {record.fingerprint[:8]}"
            yield f"note     {product.name} exists already as {made}; both names find it"


def _show(report: Node, store: Store, frozen: RunConfig) -> None:
    """Print the table, the lineage, the report's path, and the next commands."""
    from atelier.infra.report.collect import collect_report  # late: only a finished run needs it
    from atelier.infra.report.lineage_text import to_tree
    from atelier.infra.report.render import terminal_table

    content = collect_report(report, store, "")
    console = plain_console()
    console.print(terminal_table(content))
    for note in content.notes:
        console.print(f"  {printable(note, 0)}")
    if content.graph is not None:
        console.print(to_tree(content.graph.only(LINEAGE)))
    product = report.products["report"]
    record = store.find(product.kind, product.fingerprint)
    if record is not None:
        page = next((file.path for file in record.files if file.path.endswith(".html")), record.files[0].path)
        console.print(f"report   {store.address('report', product.fingerprint)}/{page}", soft_wrap=True)
    name = content.graph.nodes[content.graph.focus].name if content.graph is not None else ""
    name = name if name in content.samples else next(iter(content.samples), "")  # this run's name for it
    if name:
        asked = getattr(getattr(frozen.arguments, "score", None), "sample", "")
        prompt = shlex.quote(asked or " ".join(content.samples[name].split()[:2]))
        console.print(f"next     atelier generate {name} --prompt {prompt}", soft_wrap=True)
        console.print(f"         atelier lineage {name}", soft_wrap=True)
    if hasattr(frozen.arguments, "train"):
        others = shlex.join(word for word in frozen.overrides if not word.startswith("train.seed="))
        console.print(f"         atelier plan {frozen.flow} {others} train.seed=2", soft_wrap=True)
    if not frozen.pool.is_served and not Stack(store.root).client():
        console.print(
            "         atelier up      (pages: start and watch runs, compare curves)", soft_wrap=True
        )
