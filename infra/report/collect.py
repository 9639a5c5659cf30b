"""Collect the content of a report: scores, intervals over paired draws, curves, samples, lineage.
infra/report/render.py renders it.
"""

import itertools
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict, cast

from pydantic import Field

from atelier.engine.config.base import Json, Spec
from atelier.engine.config.document import section_of, whole_of
from atelier.engine.config.evaluation import HeadScore
from atelier.engine.config.extensions import kinds_of
from atelier.engine.config.intervals import t95
from atelier.engine.config.kind_files import extension_part
from atelier.engine.config.metric import FOLDER, CurveLine, is_segment, merge
from atelier.engine.config.record import Record
from atelier.engine.io.artifact import ArtifactOutput
from atelier.engine.io.storage import join, names, read_object, read_text
from atelier.infra.dag import Node
from atelier.infra.report.audits import audit_tables, audits_of, clean_tables, place_tables
from atelier.infra.report.exams import exam_tables, exams_of
from atelier.infra.report.lineage import find_trajectory, lineage
from atelier.infra.report.link_use import link_tables
from atelier.infra.report.notes import MAJORITY, ON, notes_of
from atelier.infra.report.render import ReportContent, ReportRow, write_report
from atelier.infra.report.waterfall import steps_of, waterfall_tables
from atelier.infra.run.context import RunContext
from atelier.infra.store.store import Store


class ReportConfig(Spec):
    """The config of a node of the task report."""

    title: str
    teachers: dict[str, str] = Field(description="student -> its teacher")
    controls: dict[str, str] = Field(description="student -> its control")
    note: str = ""  # about all of its numbers


ASKED = ("/zero-shot", "/few-shot")  # suffixes of the score keys of models that were not fine-tuned


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half-width of its 95 % t-interval; half-width 0 for a single value."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return mean, t95(len(values) - 1) * deviation / math.sqrt(len(values))


def card_of(node: Node, context: RunContext, payload: str) -> None:
    """Write the report of the node's models and scores to `payload`."""
    content = collect_report(node, context.store, context.command)
    output = ArtifactOutput(payload)
    with tempfile.TemporaryDirectory() as folder:
        for path in write_report(Path(folder), content):
            output.add(Path(path).name, Path(path))
    output.close({"rows": len(content.rows), "table": cast(list[Json], content.rows)})


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
    config = ReportConfig.model_validate(node.config)
    teachers, controls = config.teachers, config.controls
    rows = [
        _text_row(key, found[key], scores[key], config, scores, _tokens_read(store, found[key]))
        for key in found
        if "bits_per_byte" in scores.get(key, NONE)
    ]
    answered = [
        _answer_row(key, found, config, _tokens_read(store, found[key])) for key in found if key not in scores
    ]
    told = [(row["kind"], row.get("tokens") or 0) for row in rows]  # unknown for adopted models
    told = [pair for pair in told if pair[0] in ("teacher", "model") and pair[1]] or told
    read = next((tokens for _, tokens in told if tokens), None)
    rows += _baseline_rows(scores.get("baselines", NONE), read)
    rows += [row for row in answered if row is not None]
    rows += [row for key in found for row in _head_rows(key, scores)]
    lines = {key: _curve(store, record) for key, record in found.items()}
    extra = [each for key, record in found.items() for each in _of_extensions(store, key, record, lines[key])]
    rows += [row for each, _ in extra for row in each]
    rows += [_asked_row(key, score) for key, score in scores.items() if key.endswith(ASKED)]
    rows += _tuned_rows(scores)
    curves = {
        key: each
        for key, each in lines.items()
        if "bits_per_byte" in scores.get(key, NONE) or len(found) == 1
    }
    samples = {key: str(sample) for key, score in scores.items() if (sample := score.get("sample"))}
    last = [key for key in teachers if key in found and key not in teachers.values()]  # most ancestors
    focus = next(iter([*last, *found]), None)  # None: only checkpoints
    waterfalls = steps_of(_corpora(node, store))
    asked = [store.find(*ref) for key, ref in node.inputs.items() if key.startswith("exam.")]
    audits = audits_of(
        {key: store.find(*ref) for key, ref in node.inputs.items() if key.startswith("audit.")}, store
    )
    exams = exams_of(found, [record for record in asked if record is not None], store)
    notes = [config.note, *notes_of(rows, found), *(note for _, each in extra for note in each)]
    return ReportContent(
        title=config.title,
        command=command,
        rows=rows,
        curves=curves,
        samples=samples,
        graph=lineage(store, found[focus].fingerprint) if focus else None,
        notes=[each for each in notes if each],
        more=[
            *exam_tables(exams),
            *audit_tables(audits),
            *clean_tables(exams, audits),
            *waterfall_tables(waterfalls),
            *link_tables(found, store, _curve),
        ],
        exams=exams,
        details=place_tables(audits),
        waterfall=next(iter(waterfalls.values()), []),
        controls={v: k for k, v in controls.items()},
        starts={k: found[k].summary.get("started_at", 0) for k in found},
    )


def _corpora(node: Node, store: Store) -> dict[str, Record]:
    """The corpora of the report, by source."""
    found = {key: store.find(*ref) for key, ref in node.inputs.items() if key.startswith("corpus.")}
    return {key.removeprefix("corpus."): record for key, record in found.items() if record is not None}


class Scores(TypedDict):
    """scores.json: the scores of a model, or bits per byte of the baselines by name."""

    bits_per_byte: float
    loss: float
    held_out: str
    sample: str
    accuracy: float
    examples: int
    majority: float
    f1: float
    gzip: float
    xz: float
    trigram: float
    trigram_tokens: int
    trigram_by_tokens: dict[str, float]
    heads: dict[str, HeadScore]  # by kind of objective


NONE = cast(Scores, {})


def _scores(store: Store, kind: str, fingerprint: str) -> Scores:
    record = store.find(kind, fingerprint)
    if record is None:
        return NONE
    entry = next(file for file in record.files if file.path.endswith("/scores.json"))
    return cast(Scores, read_object(join(store.address(kind, fingerprint), entry.path), "scores"))


def _text_row(
    key: str,
    record: Record,
    score: Scores,
    config: "ReportConfig",
    scores: dict[str, Scores],
    read: int,
) -> ReportRow:
    """`read`: number of tokens that the model has seen."""
    controls = config.controls
    row = _model_row(key, record, config, read)
    row["bits_per_byte"], row["loss"] = score["bits_per_byte"], score["loss"]
    if key in controls and "loss" in scores.get(controls[key], NONE):
        control = scores[controls[key]]
        if score.get("held_out", "") == control.get("held_out", score.get("held_out", "")):
            row["delta"] = score["loss"] - control["loss"]
    return row


def _model_row(key: str, record: Record, config: "ReportConfig", read: int) -> ReportRow:
    """The first cells of a model's row. `read`: the number of training tokens."""
    return {
        "name": key,
        "kind": _kind(key, config),
        "fingerprint": record.fingerprint,
        "params": record.summary.get("params"),
        "tokens": read or None,
    }


def _kind(key: str, config: "ReportConfig") -> str:
    """The kind of a model: teacher, student, control ..."""
    if key in config.controls.values():
        return "control"
    if key in config.teachers:
        return "student"
    return "teacher" if key in config.teachers.values() else "model"


def _answer_row(key: str, found: dict[str, Record], config: "ReportConfig", read: int) -> ReportRow | None:
    """The loss on held-out answers, for a model that was trained on answers."""
    record, control = found[key], found.get(config.controls.get(key, ""))
    loss = record.summary.get("eval_loss")
    if not isinstance(loss, float) or not any(parent.startswith("chats.") for parent in record.parents):
        return None
    row = _model_row(key, record, config, read)
    row["answer_loss"] = loss
    beside = control.summary.get("eval_loss") if control is not None else None
    if (
        isinstance(beside, float)
        and control
        and control.summary.get("held_out") == record.summary["held_out"]
    ):
        row["delta"] = loss - beside
    return row


def _head_rows(key: str, scores: dict[str, Scores]) -> list[ReportRow]:
    """Accuracy of each head of a model, beside that of a rule without a network."""
    beside = scores.get("baselines", NONE).get("heads", {})
    rows: list[ReportRow] = []
    for kind, head in scores.get(key, NONE).get("heads", {}).items():
        half = 1.96 * math.sqrt(head["right"] * (1 - head["right"]) / head["rows"])
        row: ReportRow = {"name": key, "kind": "head", "head": kind, "right": head["right"], "half": half}
        if kind in beside:
            other = beside[kind]
            row["right_without"], row["by"] = other["right"], other.get("by", "")
            row["guess"] = other.get("guess", 0.0)
        rows.append(row)
    return rows


def _tokens_read(store: Store, record: Record) -> int:
    """Number of training tokens of a model, with those of the models that it was made from."""
    found, fingerprint = whole_of(record.summary.get("tokens")), record.parents.get("trajectory", "")
    source = store.find("model", record.parents["model"]) if "model" in record.parents else None
    if source is not None:  # a converted model
        return _tokens_read(store, source)
    while fingerprint:
        segment = find_trajectory(store, fingerprint)
        parents = segment.parents if segment is not None else {}
        earlier = store.find("model", parents["init"]) if "init" in parents else None
        if earlier is not None:
            return found + _tokens_read(store, earlier)
        fingerprint = parents.get("trunk", "")
    return found


def _baseline_rows(baselines: Scores, read: int | None) -> list[ReportRow]:
    """`read`: number of tokens that the teacher has seen."""
    found = {
        "gzip -9": baselines.get("gzip"),
        "xz -9e": baselines.get("xz"),
        "interpolated trigram": baselines.get("trigram"),
    }
    of_read = _trigram_of(baselines, read) if read and "trigram_tokens" in baselines else None
    if of_read is not None:
        found["trigram, same tokens"] = of_read
    return [
        {"name": name, "kind": "baseline", "bits_per_byte": value}
        for name, value in found.items()
        if value is not None
    ]


def _trigram_of(baselines: Scores, read: int) -> float | None:
    """Bits per byte of a trigram that learned from `read` tokens, interpolated between the measured sizes
    over the logarithm of their number; None below the smallest.
    """
    known = {int(size): bits for size, bits in baselines.get("trigram_by_tokens", {}).items()}
    known = sorted((known | {baselines["trigram_tokens"]: baselines["trigram"]}).items())
    for (few, worse), (many, better) in itertools.pairwise(known):
        if few <= read < many:
            share = math.log(read / few) / math.log(many / few)
            return worse + share * (better - worse)
    return None


def _asked_row(key: str, score: Scores) -> ReportRow:
    """Accuracy of a model that was not fine-tuned, with its 95 % binomial interval (normal approximation)."""
    accuracy, examples = score["accuracy"], score["examples"]
    half = 1.96 * math.sqrt(accuracy * (1 - accuracy) / examples)
    row: ReportRow = {
        "name": key.replace("/", " "),
        "kind": key.rpartition("/")[2],
        "accuracy": accuracy,
        "accuracy_interval": half,
    }
    return _with_f1(row, [score])


def _with_f1(row: ReportRow, scores: list[Scores]) -> ReportRow:
    """With the mean likeness of the words of completions, if the model wrote them."""
    found = [score["f1"] for score in scores if "f1" in score]
    return {**row, "f1": math.fsum(found) / len(found)} if found else row


def _tuned_rows(scores: dict[str, Scores]) -> list[ReportRow]:
    """One row per fine-tuned model and examples: accuracy over its draws, and the paired difference to the
    same network from scratch.
    """
    by_model: dict[str, dict[str, dict[int, float]]] = {}
    scored: dict[str, list[Scores]] = {}  # by model and kind
    majorities: dict[str, float] = {}  # by name of the rows
    for key, score in scores.items():
        base, _, last = key.rpartition("/")
        kind, _, draw = last.partition("-")
        if kind in ("pretrained", "scratch") and "accuracy" in score:
            by_model.setdefault(base, {}).setdefault(kind, {})[int(draw)] = score["accuracy"]
            scored.setdefault(f"{base}/{kind}", []).append(score)
            if "majority" in score:
                others = base.partition(ON)[2]
                majorities[f"{MAJORITY}{ON}{others}" if others else MAJORITY] = score["majority"]
    rows: list[ReportRow] = []
    for base, kinds in by_model.items():
        mean, half = interval(list(kinds["pretrained"].values()))
        row: ReportRow = {
            "name": f"{base} fine-tuned",
            "kind": "finetuned",
            "accuracy": mean,
            "accuracy_interval": half,
            "draws": len(kinds["pretrained"]),
        }
        row = _with_f1(row, scored[f"{base}/pretrained"])
        if "scratch" in kinds:
            scratch, scratch_half = interval(list(kinds["scratch"].values()))
            gain, gain_half = interval(
                [kinds["pretrained"][d] - kinds["scratch"][d] for d in kinds["pretrained"]]
            )
            rows.append({**row, "accuracy_delta": gain, "accuracy_delta_interval": gain_half})
            other: ReportRow = {
                "name": f"{base} from scratch",
                "kind": "scratch",
                "accuracy": scratch,
                "accuracy_interval": scratch_half,
            }
            rows.append(_with_f1(other, scored[f"{base}/scratch"]))
        else:
            rows.append(row)
    return rows + [
        {"name": name, "kind": "baseline", "accuracy": accuracy} for name, accuracy in majorities.items()
    ]


def _of_extensions(
    store: Store, name: str, record: Record, lines: list[CurveLine]
) -> Iterator[tuple[list[ReportRow], list[str]]]:
    """Rows and notes of the extensions of a model's objectives."""
    trained = find_trajectory(store, record.parents.get("trajectory", ""))
    objectives = section_of(trained.identity.get("objective", {})) if trained is not None else {}
    kinds = {str(section_of(each).get("kind", "")) for each in objectives.values()}
    for extension in sorted({kinds_of("config/objective").get(kind, "") for kind in kinds} - {""}):
        if of_model := getattr(extension_part(extension, "report"), "rows", None):
            rows, notes = of_model(name, lines)
            yield cast(list[ReportRow], rows), notes


def _curve(store: Store, record: Record) -> list[CurveLine]:
    """Metric lines of the model's trajectory and its trunks, in order of steps."""
    fingerprint: str | None = record.parents.get("trajectory")
    lines: list[CurveLine] = []
    while fingerprint:
        address = store.address("trajectory", fingerprint)
        folder = join(address, FOLDER)
        places = [join(folder, name) for name in names(folder) if is_segment(name)]
        own = merge((place, read_text(place)) for place in places)
        last = lines[0]["step"] if lines else whole_of(record.identity["step"]) + 1
        lines = [line for line in own if line["step"] < last] + lines
        trajectory_record = find_trajectory(store, fingerprint)  # without a record the curve begins here
        fingerprint = trajectory_record.parents.get("trunk") if trajectory_record is not None else None
    return lines
