"""report: write a run's table, loss curves, samples, lineage and command as one artifact."""

from collections.abc import Mapping

from atelier.infra.dag import Node, Reference, declare_one
from atelier.infra.report.collect import ReportConfig, card_of
from atelier.infra.run.context import RunContext

VERSION = 1


def report(
    models: Mapping[str, Reference],
    scores: Mapping[str, Reference],
    *,
    title: str,
    teachers: Mapping[str, str] | None = None,
    controls: Mapping[str, str] | None = None,
    corpora: Mapping[str, Reference] | None = None,
    exams: Mapping[str, Reference] | None = None,
    audits: Mapping[str, Reference] | None = None,
    note: str = "",
) -> Reference:
    """The report of `models` and their `scores`. `teachers` and `controls` name the models to compare each
    with; `corpora` are the curated ones that they were trained on, `exams` what they said to questions, and
    `audits` which of those they had read. `note`: a sentence about all of its numbers.
    """
    told = {student: teacher for student, teacher in (teachers or {}).items() if teacher}
    config = ReportConfig(title=title, teachers=told, controls=dict(controls or {}), note=note)
    parents = {f"model.{key}": model for key, model in models.items()}
    parents |= {f"scores.{key}": each for key, each in scores.items()}
    parents |= {f"corpus.{key}": each for key, each in (corpora or {}).items()}
    parents |= {f"exam.{key}": each for key, each in (exams or {}).items()}
    parents |= {f"audit.{key}": each for key, each in (audits or {}).items()}
    identity = config.model_dump(exclude=None if note else {"note"})
    return declare_one(
        "report", "report", parents, name=title, version=VERSION, identity=identity, config=config, ranks=0
    )


def run(node: Node, context: RunContext) -> None:
    context.here(node, "report", lambda payload: card_of(node, context, payload))
