"""`atelier list [group|flows]`: list configuration groups, their options, or the flows."""

import json
from argparse import Namespace
from typing import TYPE_CHECKING

from atelier.engine.config.error import ConfigError, nearest
from atelier.flows.run import catalog
from atelier.flows.run.table import print_table

if TYPE_CHECKING:
    from atelier.engine.config.base import Json


def run(options: Namespace) -> int:
    """Print groups, a group's options, or the flows. Raises ConfigError for an unknown group."""
    group = options.group
    if group is None:
        found = {name: catalog.options(name) for name in catalog.groups()}
        rows = [(name, " ".join(names)) for name, names in found.items()]
        _print(options.json, found, ("group", "options"), rows)
        if not options.json:
            print("\n`atelier list <group>` describes its options, `atelier list flows` the flows")
    elif group == "flows":
        texts = {name: catalog.flow_text(name) for name in catalog.flow_names()}
        _texts(options.json, texts, "flow")
    elif group in catalog.groups():
        texts = {name: catalog.option_text(group, name) for name in catalog.options(group)}
        _texts(options.json, texts, "option")
    else:
        known = [*catalog.groups(), "flows"]
        near = nearest(group, known)
        way_out = (f"did you mean {near}? " if near else "") + f"there are: {', '.join(known)}"
        raise ConfigError("atelier list", f"no group {group!r}", way_out)
    return 0


def _texts(as_json: bool, texts: dict[str, tuple[str, str]], title: str) -> None:
    document = {name: {"about": about, "example": example} for name, (about, example) in texts.items()}
    _print(
        as_json, document, (title, "what it is", "example"), [(name, *text) for name, text in texts.items()]
    )


def _print(as_json: bool, document: "Json", columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    if as_json:
        print(json.dumps(document, indent=1))
    else:
        print_table(columns, rows, flexible=columns[1])
