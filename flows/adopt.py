"""adopt: a checkpoint of another family, as transformers saves it, as a model: to generate with, to start
from, to tune, to export.

atelier adopt source=checkpoints/Qwen3-0.6B name=qwen
"""

from atelier.engine.config.base import Name
from atelier.tasks.adopt import adopt as adopt_model
from atelier.tasks.register import register


def adopt(source: str, name: Name = "adopted") -> None:
    """Raises ConfigError for a source that is no checkpoint, or not understood."""
    model, _ = adopt_model(source, name)
    register({name: model}, {})
