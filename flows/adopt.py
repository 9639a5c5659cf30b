"""adopt: import a model that transformers saved, to generate, train, tune or export; with `base`, import a
low-rank adapter that peft saved.

atelier adopt source=checkpoints/Qwen3-0.6B name=qwen
"""

from atelier.engine.config.base import ModelName, Name
from atelier.engine.config.error import ConfigError
from atelier.engine.io import survey as surveys
from atelier.infra.store.existing_model import existing_model
from atelier.tasks.adopt import adopt as adopt_model
from atelier.tasks.adopt_adapter import adopt_adapter
from atelier.tasks.register import register


def adopt(source: str, name: Name = "adopted", base: ModelName = "") -> None:
    """Raises ConfigError for a source that is not a supported checkpoint."""
    if base:
        parent = existing_model(base, "base")
        if name == parent.reference.name:
            raise ConfigError("name", f"is {name}, which is the base's name", f"name={name}-tuned")
        model = adopt_adapter(source, parent, name)["model"]
    else:
        model, _ = adopt_model(source, name)
    register({name: model}, {})


def survey(source: str, name: Name = "adopted", base: ModelName = "") -> surveys.Survey:
    """List the parts of the source that can be imported, and all refusals, before planning."""
    return surveys.survey_adapter(source) if base else surveys.survey(source)
