"""watch: ask checkpoints of trainings the questions of evaluation sets. The command `atelier watch` runs it
for each new checkpoint while a training goes on.

atelier watch checkpoints=[3f2a91c0@400] evals=[mytask.yaml]
"""

from atelier.engine.config.error import ConfigError
from atelier.engine.config.evaluation_set import Pose
from atelier.engine.config.exam import Examine
from atelier.flows.evals import posed
from atelier.infra.store.checkpoints import checkpoint_called
from atelier.infra.store.existing_model import store_in_use
from atelier.tasks.examine_checkpoint import examine_checkpoint
from atelier.tasks.report import report


def watch(checkpoints: list[str], evals: list[str], pose: Pose, examine: Examine) -> None:
    """Several checkpoints get a report with a curve. Raises ConfigError without checkpoints or sets."""
    if not checkpoints:
        raise ConfigError(
            "checkpoints", "is empty", "`atelier watch <run or role> <set>` finds those of a training"
        )
    found = [checkpoint_called(store_in_use(), word, "checkpoints") for word in checkpoints]
    sets = posed(evals, pose)
    exams = {
        f"{one.name}.{one.trajectory[:8]}.{one.step}.{key}": exam
        for one in found
        for key, exam in examine_checkpoint(one, sets, examine).items()
    }
    if len(found) > 1:
        report({}, {}, title="watch", exams=exams)
