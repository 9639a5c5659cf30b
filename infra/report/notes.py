"""What stands below the table of a report: what its numbers are of, and what is not as it should be."""

from collections.abc import Mapping

from atelier.engine.config.extensions import kinds_of
from atelier.engine.config.kind_files import extension_part
from atelier.engine.config.record import Record
from atelier.infra.report.render import ReportRow

MAJORITY = "majority class"  # the row of always giving the most common answer
ON = " on "  # between a model and the other examples that it is scored on


def notes_of(rows: list[ReportRow], found: Mapping[str, Record]) -> list[str]:
    """The notes of a report's rows and of its models' records."""
    return _of_rows(rows) + _of_keys(found)


def _majority(rows: list[ReportRow]) -> str:
    """What always giving the most common answer would be right in, of each of the examples."""
    most = {
        row["name"].removeprefix(MAJORITY): row.get("accuracy")
        for row in rows
        if row["name"].startswith(MAJORITY)
    }
    told = ", ".join(f"{share:.3f}{examples}" for examples, share in most.items() if share is not None)
    return f"; always the most common answer: {told}" if told else ""


def _of_rows(rows: list[ReportRow]) -> list[str]:
    notes = []
    if any(row.get("bits_per_byte") is not None for row in rows):
        notes.append(
            "loss (documents): of whole held-out documents; eval loss (windows), in picture and lineage: of "
            "the windows that trainings look at"
        )
    if any(row.get("accuracy") is not None for row in rows):
        notes.append(f"accuracy: held-out labels answered right; ± is 95 %{_majority(rows)}")
    weak = [row for row in rows if row.get("head") and row.get("right", 0) < row.get("right_without", 0)]
    if weak:
        names = ", ".join(dict.fromkeys(row.get("head", "") for row in weak))
        notes.append(f"heads that know less than what needs no network: {names}; they need more rows")
    for row in rows:
        if "delta" in row:
            better = "below" if row["delta"] < 0 else "ABOVE"
            notes.append(
                f"{row['name']} is {abs(row['delta']):.3f} nats per token {better} its same-seed control"
            )
        if "accuracy_delta" in row:
            notes.append(
                f"{row['name']}: {row['accuracy_delta']:+.3f} ± {row.get('accuracy_delta_interval', 0.0):.3f}"
                f" accuracy against the same network from scratch, paired over {row.get('draws')} draws (95 %"
                " t-interval)"
            )
    return notes


def _of_keys(found: Mapping[str, Record]) -> list[str]:
    """What extensions have added to the models' records, a line for the models of which the same is true."""
    told: dict[tuple[str, str], list[str]] = {}
    for name, record in found.items():
        for key, extension in kinds_of("config/train").items():
            said = record.summary.get(key)
            report = extension_part(extension, "report") if isinstance(said, Mapping) else None
            if sentence := getattr(report, "sentence", None):
                told.setdefault((key, sentence(said)), []).append(name)
    return [f"{key} of {', '.join(names)}: {text}" for (key, text), names in told.items()]
