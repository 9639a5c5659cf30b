"""examine: ask models the questions of evaluation sets; scores with intervals, and paired differences between
models.

atelier examine models=[teacher,student_a] evals=[questions.jsonl] pose.shots=[0,5] pose.draws=3
atelier examine student_a mytask.yaml
"""

from atelier.engine.config.error import ConfigError
from atelier.engine.config.evaluation_set import Pose
from atelier.engine.config.exam import Examine
from atelier.flows.evals import posed
from atelier.infra.store.existing_model import existing_model
from atelier.tasks.examine import examine as examine_model
from atelier.tasks.report import report


def examine(models: list[str], evals: list[str], pose: Pose, examine: Examine) -> None:
    """Raises ConfigError without models or without sets."""
    if not models:
        raise ConfigError(
            "models", "is empty", "name one or more finished models; `atelier models` lists them"
        )
    found = {name: existing_model(name, "models") for name in models}
    sets = posed(evals, pose)
    exams = {
        f"{name}.{key}": exam
        for name, one in found.items()
        for key, exam in examine_model(
            one.reference, sets, examine, trained=one.text[1] if one.text else None
        ).items()
    }
    report({name: one.reference for name, one in found.items()}, {}, title="examine", exams=exams)
