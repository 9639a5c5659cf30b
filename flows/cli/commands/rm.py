"""`atelier rm <model>`: remove a model and what goes with it, after asking."""

import json
import sys
from argparse import Namespace

from atelier.engine.config.error import ConfigError, printable
from atelier.flows.run.model_removal import ModelRemoval, manifests_of
from atelier.flows.run.store_check import check_root, open_store
from atelier.flows.run.table import amount, print_table
from atelier.infra.store.removal import Waste, discard, removing
from atelier.infra.store.store import Store


def run(options: Namespace) -> int:
    """List what goes, ask, and remove it. Returns the exit code. Raises ConfigError if others descend from
    the model, or a run may need it.
    """
    if options.json and not (options.yes or options.dry_run):
        raise ConfigError("rm --json", "does not ask", "add --yes or --dry-run")
    store = open_store()
    model = store.resolve(options.model, "model")
    removal = ModelRemoval(store, model)
    removal.check()
    waste = removal.waste()
    if not options.json:
        rows = [(f"{amount(one.bytes)}B", one.what, one.why) for one in waste]
        print_table(("size", "what", "why"), rows, right=("size",), flexible="why")
        if runs := manifests_of(removal):
            print(printable(f"run again, these make it again: {', '.join(runs[-3:])}", 0))
    is_agreed = not options.dry_run and (options.yes or _agreed(waste))
    gone = _removed(store, options.model, waste) if is_agreed else []
    if options.json:
        goes = [{"what": one.what, "why": one.why, "bytes": one.bytes} for one in waste]
        about = {"model": model.fingerprint, "goes": goes, "removed": [one.what for one in gone]}
        print(json.dumps(about, indent=1))
    elif not options.dry_run:
        total = amount(sum(one.bytes for one in gone))
        print(f"removed {len(gone)} things, {total}B" if gone else "nothing was removed")
    return 0 if options.dry_run or not is_agreed or len(gone) == len(waste) else 1


def _removed(store: Store, word: str, waste: list[Waste]) -> list[Waste]:
    """Remove what was shown, the model last, if it may still go: a run may have begun meanwhile. No run can
    start to use anything during the removal.
    """
    check_root(will_write=True)
    with removing(store.root, lambda text: print(printable(text, 0), file=sys.stderr)) as lease:
        now = ModelRemoval(store, store.resolve(word, "model"))
        now.check()
        still = {one.url for one in now.waste()}
        if {one.url for one in waste} != still:
            raise ConfigError("rm", "the store has changed since it was listed", "start the command again")
        gone: list[Waste] = []
        for one in waste:
            if not lease.is_mine() or not discard(one):
                print(printable(f"kept: {one.what}, because it is in use again", 0), file=sys.stderr)
                break
            gone.append(one)
        return gone


def _agreed(waste: list[Waste]) -> bool:
    """Ask on the terminal; end of input counts as no."""
    print(f"remove these {len(waste)} things? [y/N] ", end="", flush=True)
    answer = sys.stdin.readline()
    if not answer:
        print()
    return answer.strip().lower() in ("y", "yes")
