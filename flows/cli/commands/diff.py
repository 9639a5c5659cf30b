"""`atelier diff <run|model> <run|model>`: how two runs or two models differ."""

import json
from argparse import Namespace

from atelier.engine.config.base import Json
from atelier.engine.config.error import printable
from atelier.engine.io.user_folders import expanded
from atelier.flows.run.difference import ArtifactRow, Difference, KeyRow, PartingRow, difference
from atelier.flows.run.sides import Side, Sides
from atelier.flows.run.store_check import open_store
from atelier.flows.run.table import print_table
from atelier.infra.store.store import Store

SHOWN = 3  # values of a curve


def run(options: Namespace) -> int:
    """Print the differences. Returns the exit code. Raises ConfigError for words that are neither a run nor a
    model, and for two things that share nothing.
    """
    store = open_store()
    ours = Sides(store)
    theirs = Sides(Store(str(expanded(options.store, "--store")))) if options.store else ours
    first, second = _matched(ours, theirs, options.first, options.second)
    found = difference(first, second)
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        _show(found)
    return 0


def _matched(ours: Sides, theirs: Sides, first: str, second: str) -> tuple[Side, Side]:
    """The two sides; of a run beside a model, the run's model."""
    one, other = ours.side(first), theirs.side(second)
    if one.what == "run" and other.what != "run":
        return ours.model_of(one, other), other
    if other.what == "run" and one.what != "run":
        return one, theirs.model_of(other, one)
    return one, other


def _show(found: Difference) -> None:
    for word in ("first", "second"):
        one = found[word]
        print(printable(f"{word:<8} {one['what']} {one['name']} {one['id'][:24]}  {one['command']}", 0))
    _section("configuration", found["configuration"])
    for title in ("data", "artifacts"):
        _artifacts(title, found[title])
    print("\ncode" if found["code"] else "\ncode: the same")
    for row in found["code"]:
        print(printable(f"  {', '.join(row['files'])}  (made {', '.join(row['artifacts'])})", 0))
    _section("environment", found["environment"])
    _section("layout", found["layout"])
    _section("scores", found["scores"], nothing="none that both have")
    print("\ncurves" if found["curves"] else "\ncurves: none that both have")
    for curve in found["curves"]:
        print(printable(f"  {curve_line(curve)}", 0))
    for word in ("first", "second"):
        if found["alone"][word]:
            print(printable(f"\nonly the {word} has: {', '.join(found['alone'][word])}", 0))
    if found["unknown"]:
        print("\nunknown")
    for text in found["unknown"]:
        print(printable(f"  {text}", 0))


def _section(title: str, rows: list[KeyRow], nothing: str = "the same") -> None:
    print(f"\n{title}" if rows else f"\n{title}: {nothing}")
    cells = [(f"  {row['key']}", _value(row["first"]), _value(row["second"]), row["of"]) for row in rows]
    if rows:
        print_table(("", "first", "second", "of"), cells, flexible="of")


def _value(value: Json) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "-" if value is None else str(value)


def _artifacts(title: str, rows: list[ArtifactRow]) -> None:
    print(f"\n{title}" if rows else f"\n{title}: the same")
    cells = [
        (f"  {row['name']}", row["kind"], row["first"][:8], row["second"][:8], "; ".join(row["because"]))
        for row in rows
    ]
    if rows:
        print_table(("", "kind", "first", "second", "because"), cells, flexible="because")


def curve_line(curve: PartingRow) -> str:
    """A curve's comparison as one line."""
    if curve["is_one"]:
        return f"{curve['of']}: one training"
    how = "to 1e-5, as layouts or devices differ" if curve["tolerance"] else "exactly"
    if curve["first"] is None or curve["second"] is None or not curve["common"]:
        return f"{curve['of']}: no step that both have"
    if curve["step"] is None:
        ends = f"the first ends at step {curve['first'][1]}, the second at {curve['second'][1]}"
        return f"{curve['of']}: equal in all {curve['common']} common steps, compared {how}; {ends}"
    pairs = [f"{key} {_value(one)} | {_value(other)}" for key, (one, other) in curve["values"].items()]
    more = f" and {len(pairs) - SHOWN} more" if len(pairs) > SHOWN else ""
    loss = "" if curve["loss_step"] in (None, curve["step"]) else f"; the loss from step {curve['loss_step']}"
    values = ", ".join(pairs[:SHOWN]) + more
    return f"{curve['of']}: part at step {curve['step']} ({values}){loss}, compared {how}"
