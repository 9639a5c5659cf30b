"""Notes below the table of a report: meaning of its numbers, and warnings."""

from collections.abc import Mapping

from atelier.engine.config.extensions import kinds_of
from atelier.engine.config.kind_files import extension_part
from atelier.engine.config.record import Record
from atelier.infra.report.render import ReportRow

MAJORITY = "majority class"  # the row for always answering the most common class
ON = " on "  # between a model and other examples on which it is scored


def notes_of(rows: list[ReportRow], found: Mapping[str, Record]) -> list[str]:
    """The notes of a report's rows and of its models' records."""
    return _of_rows(rows) + _of_keys(found)


def _majority(rows: list[ReportRow]) -> str:
    """Accuracy of always answering the most common class, for each set of examples."""
    most = {
        row["name"].removeprefix(MAJORITY): row.get("accuracy")
        for row in rows
        if row["name"].startswith(MAJORITY)
    }
    told = ", ".join(f"{share:.3f}{examples}" for examples, share in most.items() if share is not None)
    return f"; always the most common answer: {told}" if told else ""


def _within_chance(row: ReportRow, rows: list[ReportRow]) -> str:
    """A note if a tuned model is not better than always giving the most common answer, on other examples than
    it was tuned on; else ''.
    """
    examples = row["name"].removesuffix(" fine-tuned").partition(ON)[2]
    named = {each["name"]: each.get("accuracy") for each in rows}
    most, found = named.get(f"{MAJORITY}{ON}{examples}"), row.get("accuracy")
    is_written = row.get("f1") is not None  # there is no most common answer to compare with
    if not examples or is_written or row["kind"] != "finetuned" or most is None or found is None:
        return ""
    half = row.get("accuracy_interval") or 0.0
    if row.get("draws", 1) > 1 and found - half > most:
        return ""
    why = "one draw, so nothing tells from chance" if row.get("draws", 1) < 2 else "within chance"
    return f"{row['name']}: {found:.3f} beside {most:.3f} of the most common answer: {why}"


def _of_rows(rows: list[ReportRow]) -> list[str]:
    notes = []
    if any(row.get("bits_per_byte") is not None for row in rows):
        notes.append(
            "loss (documents): over whole held-out documents; eval loss (windows), in plot and lineage: over "
            "the fixed windows measured during training"
        )
    if any(row.get("accuracy") is not None for row in rows):
        notes.append(f"accuracy: share of held-out labels answered correctly; ± is 95 %{_majority(rows)}")
    weak = [row for row in rows if row.get("head") and row.get("right", 0) < row.get("right_without", 0)]
    if weak:
        names = ", ".join(dict.fromkeys(row.get("head", "") for row in weak))
        notes.append(f"heads below a rule without a network: {names}; they need more rows")
    for row in rows:
        if "delta" in row:
            better = "below" if row["delta"] < 0 else "ABOVE"
            notes.append(
                f"{row['name']} is {abs(row['delta']):.3f} nats per token {better} its same-seed control"
            )
        if note := _within_chance(row, rows):
            notes.append(note)
        if "accuracy_delta" in row:
            notes.append(
                f"{row['name']}: {row['accuracy_delta']:+.3f} ± {row.get('accuracy_delta_interval', 0.0):.3f}"
                f" accuracy against the same network from scratch, paired over {row.get('draws')} draws (95 %"
                " t-interval)"
            )
    return notes


def _of_keys(found: Mapping[str, Record]) -> list[str]:
    """Notes that extensions added to the models' records, one line for models with equal notes."""
    told: dict[tuple[str, str], list[str]] = {}
    for name, record in found.items():
        for key, extension in kinds_of("config/train").items():
            said = record.summary.get(key)
            report = extension_part(extension, "report") if isinstance(said, Mapping) else None
            if sentence := getattr(report, "sentence", None):
                told.setdefault((key, sentence(said)), []).append(name)
    return [f"{key} of {', '.join(names)}: {text}" for (key, text), names in told.items()]
