"""Details of a past run: its models with scores, its report, its pages."""

from typing import TypedDict

from atelier.engine.config.document import section_of
from atelier.infra.store.run_manifest import RunManifest
from atelier.infra.store.store import Store


class ScoredModel(TypedDict):
    """A model of a run; scores are from the run's report, None if it has none."""

    name: str
    fingerprint: str
    kind: str
    bits_per_byte: float | None
    loss: float | None
    loss_vs_control: float | None
    accuracy: float | None


class RunDetail(TypedDict):
    """Output of `atelier runs <id> --json` beside the run's row."""

    models: list[ScoredModel]
    tasks: dict[str, str]
    report: str
    links: dict[str, str]


def run_detail(store: Store, manifest: RunManifest) -> RunDetail:
    """Collect details from the manifest and its records; removed artifacts are left out."""
    report, table = "", {}
    for row in manifest.tasks:
        record = store.find("report", row.fingerprint) if row.kind == "report" else None
        if record is not None:
            page = next((file.path for file in record.files if file.path.endswith(".html")), "")
            report = f"{store.address('report', row.fingerprint)}/{page}"
            rows = record.summary.get("table")
            table = {str(section_of(one).get("fingerprint")): section_of(one) for one in rows or ()}
    models: dict[str, ScoredModel] = {}
    for row in manifest.tasks:
        if row.kind != "model" or store.find("model", row.fingerprint) is None:
            continue
        cells = table.get(row.fingerprint, {})
        numbers = {
            key: float(value) if isinstance(value := cells.get(column), int | float) else None
            for key, column in COLUMNS.items()
        }
        models[row.fingerprint] = ScoredModel(
            name=row.model or row.name,
            fingerprint=row.fingerprint,
            kind=str(cells.get("kind", "")),
            bits_per_byte=numbers["bits_per_byte"],
            loss=numbers["loss"],
            loss_vs_control=numbers["loss_vs_control"],
            accuracy=numbers["accuracy"],
        )
    return {
        "models": list(models.values()),
        "tasks": dict(manifest.states),
        "report": report,
        "links": {name: url for name, url in manifest.links.items() if "://" in url},
    }


COLUMNS = {
    "bits_per_byte": "bits_per_byte",
    "loss": "loss",
    "loss_vs_control": "delta",
    "accuracy": "accuracy",
}
