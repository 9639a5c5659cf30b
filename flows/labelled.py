"""Scores of models on labelled examples: on the examples that they were tuned on, and on others."""

from collections.abc import Mapping

from atelier.engine.config.data import Score
from atelier.infra.dag import Reference
from atelier.infra.report.notes import ON
from atelier.tasks.score import score as score_models


def scored(
    own: str,
    models: Mapping[str, Reference],
    exams: Mapping[str, Reference],
    *,
    settings: Score,
    tokens: Reference | None,
    tokenizer: Reference,
    unasked: str = "",
    name: str = "score",
) -> dict[str, Reference]:
    """The scores of models by key `<own>/<model>`, and `<own> on <examples>/<model>` for other examples than
    the first, whose name is ''. `unasked`: key of a model that was not tuned; `name`: of the task.
    """
    scores: dict[str, Reference] = {}
    for examples, labels in exams.items():
        title = f"{own}{ON}{examples}" if examples else own
        scores |= score_models(
            {},
            {f"{title}/{key}": model for key, model in models.items()},
            settings=settings,
            tokens=tokens,
            tokenizer=tokenizer,
            labels=labels,
            shots={f"{title}/{unasked}": 0} if unasked else {},
            name=f"{name}.{examples}" if examples else name,
        )
    return scores
