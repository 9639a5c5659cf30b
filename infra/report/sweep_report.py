"""Render the report of a sweep: its points as a table, parallel coordinates, importance of keys, the best
point and its command line; as markdown, one HTML file, pictures and JSON.
"""

import html
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from atelier.engine.config.direction import sign_of, which_is_better
from atelier.infra.report.render import digits, html_page, html_picture
from atelier.infra.report.scaling_law import Law, Range
from atelier.infra.report.sweep_content import SweepContent
from atelier.infra.report.table import Table

PICTURES = {"parallel.png": "Parallel coordinates", "law.png": "Scaling law"}
FILES = ("report.md", "report.html", *PICTURES, "points.json")


def write_sweep_report(folder: Path, content: SweepContent) -> list[Path]:
    """Write the files of the report into `folder`; returns their paths. Pictures need values or laws."""
    folder.mkdir(parents=True, exist_ok=True)
    written: dict[str, bytes] = {}
    if len(content.valued) > 1 and content.keys:
        from atelier.infra.report.sweep_plot import parallel_png  # imports matplotlib: 0.5 s

        written["parallel.png"] = parallel_png(content)
    if content.laws or content.batch_law is not None:
        from atelier.infra.report.sweep_plot import law_png  # likewise

        written["law.png"] = law_png(content)
    document = asdict(content) | {"keys": content.keys}
    written["points.json"] = (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()
    written["report.md"] = to_markdown(content).encode()
    pictures = {name: data for name, data in written.items() if name in PICTURES}
    written["report.html"] = to_html(content, pictures).encode()
    for name, data in written.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in FILES if name in written]


def table_of(content: SweepContent) -> Table:
    """Table of the points, best first, those without a value last."""
    sign = sign_of(content.direction)
    ordered = sorted(
        content.rows,
        key=lambda row: (row.value is None, sign * (row.value or 0.0), row.number),
    )
    cells = [
        [
            f"#{row.number}" + (" best" if row.number == content.best else ""),
            row.state + (f": {row.error}" if row.error else ""),
            *(row.values.get(key, "") for key in content.keys),
            digits(row.value, 4),
        ]
        for row in ordered
    ]
    head = ["point", "state", *content.keys, content.metric]
    kinds = ["student" if row.number == content.best else "" for row in ordered]
    return Table("Points", head, cells, kinds)


def _said(content: SweepContent) -> list[str]:
    states: dict[str, int] = {}
    for row in content.rows:
        states[row.state] = states.get(row.state, 0) + 1
    told = [f"{len(content.rows)} points: " + ", ".join(f"{n} {state}" for state, n in states.items())]
    told.append(f"compared by {content.metric}: {which_is_better(content.direction)}")
    if content.importance:
        shares = ", ".join(f"{key} {share:.0%}" for key, share in content.importance.items())
        told.append(f"what explains the spread of {content.metric} (functional ANOVA): {shares}")
    told += content.notes
    return told + said_of_laws(content)


def said_of_laws(content: SweepContent) -> list[str]:
    """The scaling laws, the best models of budgets and the critical batch, a line each."""
    told = [_law(law) for law in content.laws]
    for one in content.optima:
        told.append(
            f"the best model for {one.flops:.2g} FLOPs (6 N D): {_sure(one.params, one.params_range)} "
            f"parameters on {_sure(one.tokens, one.tokens_range)} tokens, "
            f"{_sure(one.tokens / one.params, one.ratio_range)} a parameter; "
            f"loss {_sure(one.loss, one.loss_range)}"
        )
    if (batch := content.batch_law) is not None:
        told.append(
            f"critical batch of {batch.params / 1e6:.3g} M parameters: {batch.scale:.3g} / "
            f"L^{batch.power:.2f} tokens a step; at loss {batch.at:.2f} "
            f"{_sure(batch(batch.at), batch.interval)}, where that loss takes "
            f"twice the fewest tokens and twice the fewest steps; tokens off by {batch.error:.1%} on average"
        )
    return told


def _sure(value: float, interval: Range) -> str:
    """A number with its interval of 95 %."""
    return f"{value:.3g} ({interval[0]:.3g} to {interval[1]:.3g})"


def _law(law: Law) -> str:
    """A scaling law as text, with its errors."""
    size = f" at {law.params / 1e6:.3g} M parameters" if law.params is not None else ""
    of = "D tokens" if law.params is not None else "N parameters and D tokens"
    fit = f"{law} nats a token for {of}{size}; off by {law.error:.2%} on average"
    if law.foresight is None:
        return fit + " (too few points to test it)"
    return fit + f", by {law.foresight:.2%} on the longest trainings when fitted without them"


def to_markdown(content: SweepContent) -> str:
    parts = [f"# {content.title}", f"```\n{content.command}\n```"]
    parts.append("\n".join(f"- {text}" for text in _said(content)))
    if content.best_command:
        parts.append(f"The best point:\n\n```\n{content.best_command}\n```")
    parts.append(table_of(content).to_markdown())
    if len(content.valued) > 1 and content.keys:
        parts.append("## Parallel coordinates\n\n![parallel coordinates](parallel.png)")
    if content.laws or content.batch_law is not None:
        parts.append("## Scaling law\n\n![scaling law](law.png)")
    if content.links:
        parts.append("\n".join(f"- [{text}]({url})" for text, url in content.links.items()))
    return "\n\n".join(parts) + "\n"


def to_html(content: SweepContent, pictures: Mapping[str, bytes]) -> str:
    """One self-contained HTML file."""
    best = f"<h2>Best point</h2><pre>{html.escape(content.best_command)}</pre>"
    body = [best] if content.best_command else []
    for name, png in pictures.items():
        alt = f"{PICTURES[name]} of {', '.join(content.keys)} and {content.metric}"
        body.append(html_picture(PICTURES[name], png, alt))
    body.append(table_of(content).to_html())
    return html_page(content.title, content.command, _said(content), body)
