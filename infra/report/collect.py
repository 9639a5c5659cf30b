"""Collect the content of a report: scores, intervals over paired draws, curves, samples, lineage.
infra/report/render.py renders it.
"""

import math
import tempfile
from pathlib import Path
from typing import Any

from atelier.engine.config.metric import FOLDER, is_segment, merge
from atelier.engine.config.record import Record
from atelier.engine.io.artifact import ArtifactOutput
from atelier.engine.io.storage import join, names, read_object, read_text
from atelier.infra.dag import Node
from atelier.infra.report.lineage import find_trajectory, lineage
from atelier.infra.report.render import ReportContent, write_report
from atelier.infra.run.context import RunContext
from atelier.infra.store.store import Store

# Two-sided 95 % quantiles of Student's t for 1..30 degrees of freedom.
T95 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
    2.093,
    2.086,
    2.080,
    2.074,
    2.069,
    2.064,
    2.060,
    2.056,
    2.052,
    2.048,
    2.045,
    2.042,
)


ASKED = ("/zero-shot", "/few-shot")  # suffixes of the score keys of models that were not fine-tuned


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half-width of its 95 % t-interval; half-width 0 for a single value."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return mean, T95[min(len(values) - 1, 30) - 1] * deviation / math.sqrt(len(values))


def card_of(node: Node, context: RunContext, payload: str) -> None:
    """Write the report of the node's models and scores to `payload`."""
    content = collect_report(node, context.store, context.command)
    output = ArtifactOutput(payload)
    with tempfile.TemporaryDirectory() as folder:
        for path in write_report(Path(folder), content):
            output.add(Path(path).name, Path(path))
    output.close({"rows": len(content.rows), "table": content.rows})


def collect_report(node: Node, store: Store, command: str) -> ReportContent:
    """Collect rows, curves, samples and lineage of the node's models and scores."""
    models = {
        key.removeprefix("model."): store.find(*ref)
        for key, ref in node.inputs.items()
        if key.startswith("model.")
    }
    scores = {
        key.removeprefix("scores."): _scores(store, *ref)
        for key, ref in node.inputs.items()
        if key.startswith("scores.")
    }
    found = {key: record for key, record in models.items() if record is not None}
    teachers, controls = node.config["teachers"], node.config["controls"]
    rows = [
        _text_row(key, found[key], scores[key], teachers, controls, scores)
        for key in found
        if "bits_per_byte" in scores.get(key, {})
    ]
    rows += _baseline_rows(scores.get("baselines", {}))
    rows += [_asked_row(key, score) for key, score in scores.items() if key.endswith(ASKED)]
    rows += _tuned_rows(found, scores)
    curves = {
        key: _curve(store, found[key])
        for key in found
        if "bits_per_byte" in scores.get(key, {}) or len(found) == 1
    }
    samples = {key: str(score["sample"]) for key, score in scores.items() if score.get("sample")}
    last = [key for key in teachers if key in found and key not in teachers.values()]  # most ancestors
    focus = next(iter(last), next(iter(found)))
    return ReportContent(
        title=node.config["title"],
        command=command,
        rows=rows,
        curves=curves,
        samples=samples,
        graph=lineage(store, found[focus].fingerprint),
        notes=_notes(rows),
        controls={v: k for k, v in controls.items()},
        starts={k: int(found[k].summary.get("started_at", 0)) for k in found},
    )


def _scores(store: Store, kind: str, fingerprint: str) -> dict[str, Any]:
    record = store.find(kind, fingerprint)
    if record is None:
        return {}
    entry = next(file for file in record.files if file.path.endswith("/scores.json"))
    return read_object(join(store.address(kind, fingerprint), entry.path), "scores")


def _text_row(
    key: str,
    record: Record,
    score: dict[str, Any],
    teachers: dict[str, str],
    controls: dict[str, str],
    scores: dict[str, Any],
) -> dict[str, Any]:
    is_control = key in controls.values()
    kind = (
        "control"
        if is_control
        else "student"
        if key in teachers
        else "teacher"
        if key in teachers.values()
        else "model"
    )
    row: dict[str, Any] = {
        "name": key,
        "kind": kind,
        "fingerprint": record.fingerprint,
        "params": record.summary.get("params"),
        "tokens": record.summary.get("tokens"),
        "bits_per_byte": score["bits_per_byte"],
        "loss": score["loss"],
    }
    if key in controls and "loss" in scores.get(controls[key], {}):
        control = scores[controls[key]]
        if score.get("held_out", "") == control.get("held_out", score.get("held_out", "")):
            row["delta"] = score["loss"] - control["loss"]
    return row


def _baseline_rows(baselines: dict[str, Any]) -> list[dict[str, Any]]:
    named = {"gzip": "gzip -9", "xz": "xz -9e", "trigram": "interpolated trigram"}
    return [
        {"name": named[key], "kind": "baseline", "bits_per_byte": baselines[key]}
        for key in named
        if key in baselines
    ]


def _asked_row(key: str, score: dict[str, Any]) -> dict[str, Any]:
    """Accuracy of a model that was not fine-tuned, with its 95 % binomial interval (normal approximation)."""
    accuracy = score["accuracy"]
    half = 1.96 * math.sqrt(accuracy * (1 - accuracy) / score["examples"])
    return {
        "name": key.replace("/", " "),
        "kind": key.rpartition("/")[2],
        "accuracy": accuracy,
        "accuracy_interval": half,
    }


def _tuned_rows(found: dict[str, Record], scores: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per fine-tuned model: accuracy over its draws, and the paired difference to the same network
    from scratch.
    """
    by_model: dict[str, dict[str, dict[int, float]]] = {}
    majority: float | None = None
    for key in found:
        base, _, last = key.rpartition("/")
        kind, _, draw = last.partition("-")
        if kind in ("pretrained", "scratch") and "accuracy" in scores.get(key, {}):
            by_model.setdefault(base, {}).setdefault(kind, {})[int(draw)] = scores[key]["accuracy"]
            majority = scores[key].get("majority", majority)
    rows: list[dict[str, Any]] = []
    for base, kinds in by_model.items():
        mean, half = interval(list(kinds["pretrained"].values()))
        row: dict[str, Any] = {
            "name": f"{base} fine-tuned",
            "kind": "finetuned",
            "accuracy": mean,
            "accuracy_interval": half,
            "draws": len(kinds["pretrained"]),
        }
        if "scratch" in kinds:
            scratch, scratch_half = interval(list(kinds["scratch"].values()))
            gain, gain_half = interval(
                [kinds["pretrained"][d] - kinds["scratch"][d] for d in kinds["pretrained"]]
            )
            row |= {"accuracy_delta": gain, "accuracy_delta_interval": gain_half}
            rows.append(row)
            rows.append(
                {
                    "name": f"{base} from scratch",
                    "kind": "scratch",
                    "accuracy": scratch,
                    "accuracy_interval": scratch_half,
                }
            )
        else:
            rows.append(row)
    if majority is not None:
        rows.append({"name": "majority class", "kind": "baseline", "accuracy": majority})
    return rows


def _curve(store: Store, record: Record) -> list[dict[str, Any]]:
    """Metric lines of the model's trajectory and its trunks, in order of steps."""
    fingerprint: str | None = record.parents.get("trajectory")
    lines: list[dict[str, Any]] = []
    while fingerprint:
        address = store.address("trajectory", fingerprint)
        folder = join(address, FOLDER)
        places = [join(folder, name) for name in names(folder) if is_segment(name)]
        own = merge((place, read_text(place)) for place in places)
        last = lines[0]["step"] if lines else record.identity["step"] + 1
        lines = [line for line in own if line["step"] < last] + lines
        trajectory_record = find_trajectory(store, fingerprint)  # without a record the curve begins here
        fingerprint = trajectory_record.parents.get("trunk") if trajectory_record is not None else None
    return lines


def _notes(rows: list[dict[str, Any]]) -> list[str]:
    notes = []
    for row in rows:
        if "delta" in row:
            better = "below" if row["delta"] < 0 else "ABOVE"
            notes.append(
                f"{row['name']} is {abs(row['delta']):.3f} nats per token {better} its same-seed control"
            )
        if "accuracy_delta" in row:
            notes.append(
                f"{row['name']}: {row['accuracy_delta']:+.3f} ± {row['accuracy_delta_interval']:.3f}"
                f" accuracy against the same network from scratch, paired over {row['draws']} draws (95 %"
                " t-interval)"
            )
    return notes
