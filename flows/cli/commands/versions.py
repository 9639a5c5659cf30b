"""`atelier versions`: which Atelier this is, and with which libraries it runs."""

import json
from argparse import Namespace
from typing import TypedDict

from atelier import PROJECT
from atelier.engine.config.error import printable
from atelier.flows.run.table import print_table
from atelier.infra.code.provenance import DISTRIBUTION, code_provenance, roots_provenance, versions

SHORT = 12  # shown digits of a commit


class Versions(TypedDict):
    """Output of `atelier versions --json`. `commit` is empty where it is unknown; `changes` is the digest of
    what was changed since, empty = nothing. `roots`: version, commit and changes (`diff`) of other project
    roots. `libraries` has Python and Atelier itself.
    """

    distribution: str
    version: str
    commit: str
    is_dirty: bool
    changes: str
    engine: str
    place: str
    roots: dict[str, dict[str, str]]
    libraries: dict[str, str]


def run(options: Namespace) -> int:
    """Print the versions. Returns the exit code."""
    about, libraries = code_provenance(), versions()
    changes = str(about["diff"])
    found: Versions = {
        "distribution": DISTRIBUTION,
        "version": libraries[DISTRIBUTION],
        "commit": str(about["commit"]),
        "is_dirty": bool(changes),
        "changes": changes,
        "engine": str(about["engine"]),
        "place": str(PROJECT),
        "roots": roots_provenance(),
        "libraries": libraries,
    }
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    commit = found["commit"][:SHORT] or "commit unknown"
    state = f"with changes {changes}" if changes else "no changes" if found["commit"] else ""
    print(printable(f"{DISTRIBUTION} {found['version']}  {commit}  {state}".rstrip(), 0))
    print(printable(f"code in {found['place']}, digest of the engine {found['engine']}", 0))
    for name, root in found["roots"].items():
        known = [root["version"], root["commit"][:SHORT] or "commit unknown"]
        with_changes = f"with changes {root['diff']}" if root["diff"] else ""
        print(printable("  ".join(filter(None, [f"project {name}", *known, with_changes])), 0))
    print_table(("library", "version"), [*libraries.items()])
    return 0
