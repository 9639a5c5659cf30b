"""`atelier gc`: remove artifacts and files that nothing needs, after asking."""

import sys
from argparse import Namespace

from atelier.engine.config.error import ConfigError, nearest, printable
from atelier.flows.run.store_check import check_root, open_store
from atelier.flows.run.table import amount, print_table
from atelier.infra.store.gc import Collector, Finding
from atelier.infra.store.removal import Waste, discard, removing


def run(options: Namespace) -> int:
    """List unneeded files, ask, and remove them. Returns the exit code. Raises ConfigError for an unknown or
    active run to forget.
    """
    store = open_store()
    collector = Collector(store, options.forget or ())
    for run_id in collector.forget:
        _check_run(run_id, collector)
    found = collector.find(damaged=options.damaged)
    _show(found, store.root)
    if not found.waste or options.dry_run:
        return 0
    if not options.yes and not _agreed(found):
        print("nothing was removed")
        return 0
    check_root(will_write=True)
    gone = _removed(found, options)
    for one in found.waste:
        if one not in gone:
            print(printable(f"kept: {one.what}, because it is in use again", 0), file=sys.stderr)
    print(f"removed {len(gone)} things, {amount(sum(one.bytes for one in gone))}B")
    return 0


def _removed(found: Finding, options: Namespace) -> list[Waste]:
    """Remove what is still unused: a run may have begun to need some of it before the user answered. No run
    can start to use anything during the removal.
    """
    store = open_store()
    with removing(store.root, lambda text: print(printable(text, 0), file=sys.stderr)) as lease:
        now = Collector(store, options.forget or ())
        urls = {one.url for one in found.waste}
        still = {one.url: one for one in now.find(damaged=options.damaged, among=urls).waste}
        return [
            one for one in found.waste if one.url in still and lease.is_mine() and discard(still[one.url])
        ]


def _check_run(run_id: str, collector: Collector) -> None:
    if run_id not in collector.manifests and run_id not in collector.unread:
        near = nearest(run_id, {*collector.manifests, *collector.unread})
        raise ConfigError(
            "--forget", f"no run {run_id!r}", f"did you mean {near}?" if near else "`atelier runs` lists them"
        )
    if run_id in collector.living:
        raise ConfigError("--forget", f"run {run_id} is still running", "stop it first")


def _show(found: Finding, root: str) -> None:
    if found.waste:
        rows = [(f"{amount(one.bytes)}B", one.what, one.why) for one in found.waste]
        print_table(("size", "what", "why"), rows, right=("size",), flexible="why")
    for text in found.left:
        print(printable(f"kept: {text}", 0))
    total = sum(one.bytes for one in found.waste)
    print(
        f"{len(found.waste)} things, {amount(total)}B in {root}"
        if found.waste
        else f"nothing to remove in {root}"
    )


def _agreed(found: Finding) -> bool:
    """Ask on the terminal; end of input counts as no."""
    damaged = sum(one.is_damage for one in found.waste)
    extra = f", {damaged} of them damaged" if damaged else ""
    print(f"remove these {len(found.waste)} things{extra}? [y/N] ", end="", flush=True)
    answer = sys.stdin.readline()
    if not answer:
        print()
    return answer.strip().lower() in ("y", "yes")
