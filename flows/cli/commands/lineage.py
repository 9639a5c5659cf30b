"""`atelier lineage <anything>`: ancestors and descendants, as a tree, JSON or a page."""

from argparse import Namespace
from pathlib import Path

from atelier.engine.config.error import ConfigError
from atelier.flows.run.store_check import open_store
from atelier.infra.report.lineage import lineage
from atelier.infra.report.lineage_text import dumps, to_html, to_text


def run(options: Namespace) -> int:
    """Print the lineage, or write it as a page; the exit code. Raises ConfigError when the page cannot be
    written.
    """
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
