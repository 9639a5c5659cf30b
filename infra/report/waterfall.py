"""The waterfall of curated corpora: documents and bytes that came in, that each reason removed, and that are
left; as a table with bars and as a picture.
"""

import io
from collections.abc import Mapping
from typing import cast

from atelier.engine.config.curation import KEPT, READ, WaterfallStep
from atelier.engine.config.record import Record
from atelier.infra.report.table import Table

BAR = 24  # characters
STAGES = ("filter_documents", "deduplicate", "decontaminate")


def steps_of(corpora: Mapping[str, Record]) -> dict[str, list[WaterfallStep]]:
    """The waterfall of each curated corpus, and of all under '' where there are several."""
    found = {
        name: cast(list[WaterfallStep], record.summary["waterfall"])
        for name, record in corpora.items()
        if "waterfall" in record.summary
    }
    if len(found) > 1:
        total: dict[str, WaterfallStep] = {}
        for step in (step for steps in found.values() for step in steps[:-1]):
            before = total.setdefault(step["reason"], {**step, "documents": 0, "bytes": 0})
            total[step["reason"]] = {
                **step,
                "documents": before["documents"] + step["documents"],
                "bytes": before["bytes"] + step["bytes"],
            }
        order = {stage: place for place, stage in enumerate(STAGES)}
        rows = sorted(total.values(), key=lambda step: order.get(step["stage"], -1))
        last: WaterfallStep = {
            "stage": "",
            "reason": KEPT,
            "documents": sum(steps[-1]["documents"] for steps in found.values()),
            "bytes": sum(steps[-1]["bytes"] for steps in found.values()),
        }
        found = {"": [*rows, last], **found}
    return found


def waterfall_tables(waterfalls: Mapping[str, list[WaterfallStep]]) -> list[Table]:
    """A table of all sources together, or of the only one; then one of the shares that sources keep."""
    if not waterfalls:
        return []
    name, steps = next(iter(waterfalls.items()))
    whole = max(1, steps[0]["bytes"])
    rows, left = [], steps[0]["bytes"]
    for step in steps:
        is_end = step["reason"] in (READ, KEPT)
        left -= 0 if is_end else step["bytes"]
        rows.append(
            [
                step["reason"],
                _bar(left, step["bytes"] if not is_end else 0, whole),
                f"{step['documents'] if is_end else -step['documents']:,}",
                f"{step['bytes'] if is_end else -step['bytes']:,}",
                f"{100 * step['bytes'] / whole:.2f} %",
            ]
        )
    head = ("reason", "left / removed", "documents", "bytes", "of all bytes")
    title = "Corpus: read, removed by reason, kept"
    tables = [Table(title, head, rows, [""] * len(rows))]
    own = [(key, each) for key, each in waterfalls.items() if key]
    if not name and own:
        cells = [
            [key, f"{each[0]['documents']:,}", f"{each[-1]['documents']:,}", _share(each)]
            for key, each in own
        ]
        head = ("source", "documents read", "kept", "bytes kept")
        tables.append(Table("Sources", head, cells, [""] * len(cells)))
    return tables


def _share(steps: list[WaterfallStep]) -> str:
    return f"{100 * steps[-1]['bytes'] / max(1, steps[0]['bytes']):.1f} %"


def _bar(left: int, removed: int, whole: int) -> str:
    """Full blocks for bytes that are left, light ones for those that were removed here."""
    end = round(BAR * (left + removed) / whole)
    kept = round(BAR * left / whole)
    return "█" * kept + "░" * max(end - kept, int(removed > 0))


def waterfall_png(steps: list[WaterfallStep]) -> bytes:
    """PNG of one waterfall: bytes from top to bottom, with documents beside the bars."""
    from matplotlib.figure import Figure  # late: 0.5 s

    figure = Figure(figsize=(9.0, 1.2 + 0.34 * len(steps)), dpi=150, layout="constrained")
    axes = figure.subplots(1, 1)
    left = steps[0]["bytes"]
    for place, step in enumerate(steps):
        if step["reason"] in (READ, KEPT):
            axes.barh(place, step["bytes"], color="#0072b2", height=0.7)
            edge = step["bytes"]
        else:
            left -= step["bytes"]
            axes.barh(place, step["bytes"], left=left, color="#d55e00", height=0.7)
            axes.plot([left, left], [place - 0.35, place + 1.35], color="#6b747b", linewidth=0.6)
            edge = left + step["bytes"]
        share = 100 * step["bytes"] / max(1, steps[0]["bytes"])
        axes.annotate(
            f"{step['documents']:,} documents, {share:.1f} %",
            (edge, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color="#1c1c1c",
        )
    axes.set_yticks(range(len(steps)), [step["reason"] for step in steps], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.28 * max(1, steps[0]["bytes"]))
    axes.set_xlabel("bytes of text")
    axes.spines[["top", "right"]].set_visible(False)
    target = io.BytesIO()
    figure.savefig(target, format="png", facecolor="white")
    return target.getvalue()
