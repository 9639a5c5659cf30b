"""`atelier new project|model|objective|flow|task <name>`: write a small working example with its test."""

from argparse import Namespace
from pathlib import Path

from atelier.flows.run.new_files import FOLDER, write_new


def run(options: Namespace) -> int:
    """Print the written files and the next command. Raises ConfigError for a name or place that is taken."""
    what, name = options.what, options.name
    written = write_new(what, name)
    for path in written:
        print(f"wrote    {path}")
    go = f"cd {name} && " if what == FOLDER else ""
    print(f"then     {go}{_next(what, name, written)}")
    return 0


def _next(what: str, name: str, written: list[Path]) -> str:
    if what in (FOLDER, "model", "objective"):
        group = "model" if what == FOLDER else what
        return f"atelier pretrain {group}={name} experiment=tiny"
    if what == "flow":
        return f"atelier {name} experiment=tiny"
    tests = next((path for path in written if path.name.startswith("test_")), None)
    return f"python -m pytest {tests}"
