"""audit: tell which questions of evaluation sets a model, or what taught it, had read, how often and when.

atelier audit models=[student_a] evals=[mytask.yaml,questions.jsonl]
"""

from atelier.engine.config.error import ConfigError
from atelier.engine.config.evaluation_set import Pose
from atelier.flows.evals import asked, audited
from atelier.infra.store.existing_model import existing_model
from atelier.tasks.report import report


def audit(models: list[str], evals: list[str], pose: Pose) -> None:
    """Raises ConfigError without models or without sets."""
    if not models:
        raise ConfigError(
            "models", "is empty", "name one or more finished models; `atelier models` lists them"
        )
    found = {name: existing_model(name, "models").reference for name in models}
    sets = asked(evals, pose)
    report(found, {}, title="audit", audits={name: audited(one, sets) for name, one in found.items()})
