"""Take experts on disk out of a model."""

from atelier.engine.config.error import ConfigError
from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.config.run_file import Member
from atelier.engine.extensions.offload.config.parallel.tiers import Tiers
from atelier.engine.extensions.offload.experts import TieredExperts, put_on_disk
from atelier.engine.loop.build import BuildContext
from atelier.engine.model.contract import Model
from atelier.engine.parallel.expert import mixtures


def take_weights(model: Model, spec: Member, context: BuildContext) -> TieredExperts | None:
    """Take the experts of a trained stage on the meta device out of it; None if it has none. Raises
    ConfigError on a GPU.
    """
    tiers = Tiers.of(context.layout)
    if tiers is None or tiers.experts == "device" or spec.mode == "frozen" or not mixtures(model):
        return None
    if context.gang.device.type != "cpu":
        raise ConfigError(
            "parallel.tiers.experts", "disk is not supported on GPUs", "experts=device, or device=cpu"
        )
    optim = spec.role.optim
    assert isinstance(optim, AdamW)  # others are refused
    return put_on_disk(model, optim, context.scratch, tiers)
