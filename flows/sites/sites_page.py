"""Tables on the Prefect page of a run over several sites: a row for each site, and a row for each role whose
messages cross, from the curves at this site.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from atelier.engine.config.error import AtelierError
from atelier.engine.config.message import Message
from atelier.engine.config.metric import CurveLine
from atelier.engine.config.sections import sections_of
from atelier.flows.run.plan import Plan
from atelier.flows.run.prefect_page import Updated
from atelier.infra.dag import Node
from atelier.infra.report.link_use import HEAD, form_of_link, link_use, markdown_rows
from atelier.infra.run.context import RunContext
from atelier.infra.store.store import Store
from atelier.infra.store.trajectory import segment_addresses
from atelier.infra.tracking.curve import SegmentReader
from atelier.tasks.train import unpack

EVERY_S = 5.0
LAST_S = 10.0  # seconds that the end of a run waits for the last update
ENDED = ("done", "reused")
SITE_HEAD = ("site", "tasks that have ended", "running", "last step")
LINK_HEAD = ("training", "between", *HEAD)


class SitesPage:
    """The text of the page. `states`: of all nodes, kept up to date by the run."""

    def __init__(self, plan: Plan, store: Store, states: Mapping[str, str]) -> None:
        self._plan, self._store, self._states = plan, store, states
        self._progress: dict[str, tuple[int, int]] = {}  # steps done and in all, by node that trains

    def heard(self, node: str, message: Message) -> None:
        """Receive a message about a node of any site."""
        if message.get("unit") == "steps":
            self._progress[node] = message.get("progress", 0), message.get("total", 0)

    @property
    def text(self) -> str:
        nodes = {self._plan.here.site: self._plan.nodes, **self._plan.there}
        sites = markdown_rows(SITE_HEAD, [self._site(name, mine) for name, mine in nodes.items()])
        links = [row for node in self._plan.nodes for row in self._links(node)]
        return f"## Sites\n\n{sites}\n" + (
            f"\n## Links\n\n{markdown_rows(LINK_HEAD, links)}\n" if links else ""
        )

    def _site(self, name: str, nodes: list[Node]) -> list[str]:
        states = {node.name: self._states.get(node.name, "") for node in nodes}
        ended = sum(state in ENDED for state in states.values())
        running = ", ".join(node for node, state in states.items() if state == "running")
        trained = {node: state for node, state in states.items() if node in self._progress}
        steps = ", ".join(self._steps(node, state) for node, state in trained.items())
        return [name, f"{ended} of {len(nodes)}", running, steps]

    def _steps(self, node: str, state: str) -> str:
        """The progress of a training; its last message may arrive after its end, or never."""
        step, last = self._progress[node]
        return f"{node} {last if state in ENDED else step}/{last}"

    def _links(self, node: Node) -> Iterator[list[str]]:
        """Rows of a training here that uses a link."""
        values = sections_of(node.training.train).values() if node.task == "train" else ()
        link = next((form_of_link(value) for value in values if value.places), None)
        if link is None:
            return
        curves: dict[str, list[CurveLine]] = {}
        for role, segments in unpack(node)[2].items() if node.products else ():
            if role in node.products and segments:
                with suppress(AtelierError, OSError):  # a line that is being written, or damaged: next time
                    reader = SegmentReader(segment_addresses(self._store, segments))
                    reader.read()
                    curves[role] = [line for line in reader.pending if line["step"] <= segments[-1].end]
        every = [line for lines in curves.values() for line in lines]
        for role, lines in curves.items():
            if (use := link_use(lines, link, every)) is not None:
                yield [f"{node.name}.{role}", ", ".join(link.sites), *use.cells]


@contextmanager
def showing_sites(plan: Plan, context: RunContext, states: Mapping[str, str]) -> Iterator[None]:
    """Show the sites of a run on the page of the running Prefect flow, during the block and at its end. Does
    nothing for a run at one site. Its failures do not fail the run.
    """
    page = SitesPage(plan, context.store, states)
    about = f"tasks of {', '.join((plan.here.site, *plan.there))}, and the traffic between them"
    artifact: Updated | None = None
    with suppress(Exception):
        artifact = Updated("sites", page.text, about) if plan.there else None
    if artifact is None:
        yield
        return
    shown, before, ended = artifact, context.listener, threading.Event()

    def heard(node: str, message: Message) -> None:
        page.heard(node, message)
        before(node, message)

    def show() -> None:
        is_last = False
        while not is_last:
            is_last = ended.wait(EVERY_S)
            with suppress(Exception):  # it would end the updates
                shown.update(page.text)

    thread = threading.Thread(target=show, daemon=True)
    context.listener = heard
    thread.start()
    try:
        yield
    finally:
        context.listener = before
        ended.set()
        thread.join(LAST_S)
