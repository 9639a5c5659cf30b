"""`atelier doctor`: check this machine, and say what to do about what is broken."""

import json
from argparse import Namespace

from atelier.engine.config.error import printable
from atelier.flows.run.doctor import CheckRow, checks


def run(options: Namespace) -> int:
    """Print a line for each check. Returns 0, or 1 if one is broken."""
    found: list[CheckRow] = []
    for one in checks():
        found.append(one)
        if not options.json:  # at once: torch takes seconds
            print(printable(f"{one['state']:<7} {one['check']:<18} {one['found']}", 0), flush=True)
            if one["to_do"]:
                print(printable(f"{'':<26} -> {one['to_do']}", 0), flush=True)
    if options.json:
        print(json.dumps(found, indent=1))
    return int(any(one["state"] == "broken" for one in found))
