"""The Prefect page of a run: the plan as a table, texts that are updated, and finally the report with its
plot.
"""

import base64
import sys
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

from atelier.engine.config.record import Record
from atelier.engine.io.storage import join, read_bytes
from atelier.flows.run.plan import Plan
from atelier.flows.run.reasons import text_of
from atelier.infra.dag import Node
from atelier.infra.run.context import RunContext
from atelier.infra.store.store import Store

PICTURES = {"waterfall.png": "png", "loss.png": "png", "lineage.svg": "svg+xml"}  # of a report


def show_plan(plan: Plan) -> None:
    """Show the plan as a table artifact of the running Prefect flow."""
    from prefect.artifacts import create_table_artifact  # late: plans alone do not need Prefect

    rows = [
        {
            "artifact": row["name"],
            "kind": row["kind"],
            "state": row["state"],
            "why": "; ".join(text_of(reason) for reason in row["reasons"]),
            "fingerprint": row["fingerprint"][:16],
            "parameters": row["params"] or "",
        }
        for row in plan.rows
    ]
    totals = plan.document()["totals"]
    about = f"{totals['reuse']} artifacts to reuse, {totals['run']} to make"
    _put("plan", lambda: create_table_artifact(table=rows, key="plan", description=about))


def show_report(nodes: list[Node], context: RunContext) -> None:
    """Show the report on the flow's Prefect page and in its MLflow run."""
    from prefect.artifacts import create_markdown_artifact  # as above

    found = report_files(nodes, context.store)
    if found is None:
        return
    record, folder, paths = found
    text = read_bytes(join(folder, paths["report.md"])).decode()
    context.tracker.report(record, text, [join(folder, path) for path in paths.values()])
    for name, form in PICTURES.items():
        if name in paths:
            picture = base64.b64encode(read_bytes(join(folder, paths[name]))).decode()
            text = text.replace(f"({name})", f"(data:image/{form};base64,{picture})")
    about = f"{record.name}: results, curves, samples"
    _put("report", lambda: create_markdown_artifact(markdown=text, key="report", description=about))


def _put(name: str, create: Callable[[], object]) -> None:  # the returned id is not needed
    """Put an artifact on the run's page. An unavailable server does not stop the run."""
    from atelier.infra.stack.prefect_api import is_away  # with Prefect, as above

    try:
        create()
    except Exception as error:
        if not is_away(error):
            raise
        print(f"Prefect's page lacks the {name}: its server is unavailable", file=sys.stderr)


def replace_artifact(artifact: str, data: str, about: str) -> None:
    """Replace the content of a page's artifact."""
    from prefect.client.orchestration import get_client  # as above
    from prefect.client.schemas.actions import ArtifactUpdate

    with get_client(sync_client=True) as client:
        client.update_artifact(UUID(artifact), ArtifactUpdate(data=data, description=about))


class Updated:
    """A text on the page of the running Prefect flow, created in the flow's thread and updated from any. An
    unavailable server delays and stops nothing.
    """

    def __init__(self, key: str, text: str, about: str) -> None:
        from prefect.artifacts import create_markdown_artifact  # as above
        from prefect.context import serialize_context

        self._about, self._shown, self._ids = about, text, list[str]()
        self._context = serialize_context()

        def create() -> None:
            made = create_markdown_artifact(markdown=text, key=key, description=about)
            self._ids.append(str(made))

        _put(key, create)

    def update(self, text: str) -> None:
        from prefect.context import hydrated_context  # as above

        for artifact in self._ids if text != self._shown else ():
            with suppress(Exception), hydrated_context(self._context):  # the page is only for display
                replace_artifact(artifact, text, self._about)
                self._shown = text


def report_files(nodes: list[Node], store: Store) -> tuple[Record, str, dict[str, str]] | None:
    """The run's report: record, address and files by name; None if the flow has no report."""
    node = next((node for node in nodes if node.task == "report"), None)
    if node is None:
        return None
    product = node.products["report"]
    record = store.find(product.kind, product.fingerprint)
    if record is None:
        return None
    paths = {file.path.rsplit("/", 1)[-1]: file.path for file in record.files}
    return record, store.address(product.kind, product.fingerprint), paths
