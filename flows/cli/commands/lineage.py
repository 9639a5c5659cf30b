"""`atelier lineage <anything>`: print ancestors and descendants as a tree, JSON or a page; or the origin of a
model's weights.
"""

import json
from argparse import Namespace
from pathlib import Path

from atelier.engine.config.error import ConfigError
from atelier.flows.run.store_check import open_store
from atelier.flows.run.table import print_table
from atelier.infra.report.lineage import lineage
from atelier.infra.report.lineage_text import dumps, to_html, to_text
from atelier.infra.report.weight_shares import weight_shares


def run(options: Namespace) -> int:
    """Print the lineage, or write it as a page. Returns the exit code. Raises ConfigError when the page
    cannot be written.
    """
    if options.weights:
        return _weights(options)
    graph = lineage(open_store(), options.what)
    if options.html:
        page = Path(options.html)
        try:
            page.write_text(to_html(graph))
        except OSError as error:
            raise ConfigError(
                "--html",
                f"{page} cannot be written ({(error.strerror or '').lower()})",
                "give a file in a folder that exists",
            ) from None
    print(dumps(graph) if options.json else to_text(graph).rstrip())
    return 0


def _weights(options: Namespace) -> int:
    """Print the share of a model's parameters that was first trained in each ancestor. Raises ConfigError
    with --html.
    """
    if options.html:
        raise ConfigError("--html", "writes the lineage and cannot show --weights", "leave one of them out")
    rows = weight_shares(open_store(), options.what)
    if options.json:
        found = [{**row.origin._asdict(), "share": row.share, "parameters": row.parameters} for row in rows]
        print(json.dumps(found, indent=1))
        return 0
    cells = [
        (
            f"{row.share:.2%}",
            f"{row.parameters:,.0f}",
            row.origin.name,
            row.origin.fingerprint[:8],
            row.origin.how,
        )
        for row in rows
    ]
    columns = ("share", "parameters", "origin", "fingerprint", "how")
    print_table(columns, cells, right=("share", "parameters"), flexible="how")
    return 0
