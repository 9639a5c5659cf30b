"""Check whether metrics of several models may be ranked: held-out losses only on the same held-out set."""

from collections.abc import Iterable

from atelier.engine.config.document import whole_of
from atelier.engine.config.evaluation import DIGITS, scored_name
from atelier.engine.config.exam import KIND
from atelier.engine.config.record import Record

UNKNOWN = "a held-out set that was not recorded (made by an earlier version)"
WAY_OUT = (
    "rank those of one set, or score all of them on one (`atelier score`); train.eval_sequences,"
    " train.sequence, tokenizer and data define the set of a training"
)
OF_SCORES = ("loss", "bits_per_byte")


def held_out_of(record: Record, metric: str) -> str | None:
    """Name of the held-out set that a metric of the record's summary was measured on, '' when unknown; None
    for metrics of another kind. Bits per byte are compared between tokenizers: there the name is the
    requested number of tokens and window length.
    """
    word = metric.rpartition(".")[2]
    if record.kind == KIND:
        return f"the evaluation set {record.parents.get('set', '')[:DIGITS]}"
    if word != "eval_loss" and not (record.kind == "scores" and word in OF_SCORES):
        return None
    most, sequence = whole_of(record.identity.get("max_tokens")), whole_of(record.identity.get("sequence"))
    if word == "bits_per_byte":
        return f"at most {most} tokens in windows of {sequence}"
    found = record.summary.get("held_out")
    name = found if isinstance(found, str) else ""
    if not name and record.kind == "scores" and "tokens" in record.parents:  # derived from its identity
        return scored_name(record.parents["tokens"], whole_of(record.summary.get("tokens")), sequence)
    return name


def differing(found: Iterable[tuple[str, str | None]]) -> str:
    """Why pairs (label, name of its held-out set) may not be ranked: the first two that differ; '' if all
    have one set. Unknown sets count as one, for records of earlier versions.
    """
    first: tuple[str, str] | None = None
    for label, name in found:
        if name is None:
            continue
        if first is None:
            first = label, name
        elif name != first[1]:
            return (
                f"{first[0]} is on {first[1] or UNKNOWN}, {label} on {name or UNKNOWN}: losses on different"
                " held-out sets cannot be ranked"
            )
    return ""
