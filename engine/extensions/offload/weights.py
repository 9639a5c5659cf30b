"""Take experts on disk out of a model."""

from pathlib import Path

import torch

from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.config.run_file import Member
from atelier.engine.extensions.offload.config.parallel.tiers import Tiers
from atelier.engine.extensions.offload.experts import TieredExperts
from atelier.engine.loop.build import BuildContext
from atelier.engine.model.contract import Model
from atelier.engine.model.moe import ExpertWeights
from atelier.engine.parallel.expert import mixtures
from atelier.engine.tier.policy import POLICIES, LeastOftenUsed, Policy


def take_weights(model: Model, spec: Member, context: BuildContext) -> TieredExperts | None:
    """Take the experts of a trained stage on the meta device out of it; None if it has
    none.
    """
    tiers = Tiers.of(context.layout)
    if tiers is None or tiers.experts == "device" or spec.mode == "frozen" or not mixtures(model):
        return None
    optim = spec.role.optim
    assert isinstance(optim, AdamW)  # others are refused
    return put_on_disk(model, optim, context.scratch, tiers, context.gang.device)


def put_on_disk(
    model: Model, optim: AdamW, folder: Path, tiers: Tiers, device: torch.device
) -> TieredExperts:
    """Move the experts of all mixtures of a model on the meta device, which will compute on `device`, to
    disk.
    """
    mixtures = {path: each for path, each in model.named_modules() if isinstance(each, ExpertWeights)}
    factors = model.spec.lr_factors()  # one factor for all expert matrices
    path, some = next(iter(mixtures.items()))
    return TieredExperts(
        mixtures,
        optim,
        folder,
        host_bytes=int(tiers.host_gb * 1e9),
        policy=_policy(tiers),
        lr_factor=factors.get(f"{path}.{next(name for name, _ in some.named_parameters())}", 1.0),
        device=device,
        device_bytes=int(tiers.device_gb * 1e9),
    )


def _policy(tiers: Tiers) -> Policy:
    if tiers.policy == "lfu":
        return LeastOftenUsed(tiers.lfu_threshold, tiers.lfu_decay, tiers.lfu_every)
    return POLICIES[tiers.policy]()
