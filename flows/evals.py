"""Evaluation sets of a flow: each source with each number of shots, in each draw."""

from atelier.engine.config.error import ConfigError
from atelier.engine.config.evaluation_set import Pose
from atelier.infra.dag import Reference
from atelier.tasks.pose import pose


def posed(evals: list[str], settings: Pose) -> dict[str, Reference]:
    """The sets by name. Raises ConfigError without sources."""
    if not evals:
        raise ConfigError(
            "evals", "is empty", "name evaluation sets: evals=[mytask.yaml,questions.jsonl], or of conf/evals"
        )
    found: dict[str, Reference] = {}
    for word in evals:
        for shots in settings.shots or (None,):
            for draw in range(1 if shots == 0 else settings.draws):
                one = pose(word, settings, shots=shots, draw=draw)
                if one.name in found:
                    raise ConfigError("evals", f"two sets are called {one.name}", "rename one of the files")
                found[one.name] = one
    return found
