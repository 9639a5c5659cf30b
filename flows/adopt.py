"""adopt: a checkpoint of another family, as transformers saves it, as a model: to generate with, to start
from, to tune, to export; or, with a base, a low-rank adapter as peft saves it.

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
    """Raises ConfigError for a source that is no checkpoint, or not understood."""
    if base:
        parent = existing_model(base, "base")
        if name == parent.reference.name:
            raise ConfigError("name", f"is {name}, as the base's own", f"name={name}-tuned")
        model = adopt_adapter(source, parent, name)["model"]
    else:
        model, _ = adopt_model(source, name)
    register({name: model}, {})


def survey(source: str, name: Name = "adopted", base: ModelName = "") -> surveys.Survey:
    """What of the source comes in, and all that is refused: before anything is planned."""
    return surveys.survey_adapter(source) if base else surveys.survey(source)
