"""A plan's lines about roles with experts on disk: bytes per tier, bytes moved per step, and when that is
hidden. Torch-free.
"""

from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.train import Train
from atelier.engine.extensions.offload.cost import capacity_of, off_device, share_met
from atelier.engine.plan.estimate import Setting
from atelier.engine.plan.step_time import micro_batch

MOST_DOUBLINGS = 12  # of a batch to try


def of_role(name: str, setting: Setting, train: Train, layout: Parallel, limit_gb: float) -> str:
    """The line of a role; '' if its experts are in memory. `limit_gb`: memory of a rank."""
    gbps = setting.device.disk_gbps
    model, is_cpu = setting.role.model, setting.pool.is_cpu
    tier = off_device(model, train, layout, setting.device, is_cpu=is_cpu)
    if tier is None:
        return ""
    seconds = setting.estimate(train, layout, steps=1).seconds
    compute_s = seconds.total - seconds.disk
    near, moved, unmeasured = "", "", ""
    if tier.is_on_gpu:
        near, unmeasured = f" and {_gb(tier.held)} on the GPU", "tiers on GPUs: not measured"
        moved = (
            f", copies {_gb(tier.copied)} to the GPU and {_gb(tier.copied_back)} back,"
            f" {tier.by_link.seconds:.2g} s at {setting.device.host_gbps:g} GB/s"
        )
    said = (
        f"experts of {name} on disk, {_gb(tier.disk)} per rank, {_gb(tier.host)} of it in memory{near}; a"
        f" step reads {_gb(tier.read)} and writes {_gb(tier.written)}, {tier.by_disk.seconds:.2g} s at"
        f" {gbps:g} GB/s{moved}, and computes {compute_s:.2g} s"
    )
    if tier.exposed(compute_s):
        is_link = tier.by_link.seconds > tier.by_disk.seconds
        pace = "the copies set the pace" if is_link else "the disk sets the pace"
        said += f": {pace}; {_hidden_from(setting, train, layout, limit_gb, is_link=is_link)}"
    return "; ".join(filter(None, (said, _capacity(setting, train, layout), unmeasured)))


def _capacity(setting: Setting, train: Train, layout: Parallel) -> str:
    """The three inequalities of SE-MoE with this model's numbers."""
    spec = setting.role.model
    assert isinstance(spec, MixedBlocks)  # it has experts
    active = share_met(spec, micro_batch(train, layout) * layout.axes.expert * train.sequence)
    need = capacity_of(spec, setting.model_shape.params, active)
    return (
        f"by 2205.10034, equations 1 to 3, with {active:.0%} of the experts active, all {layout.ranks} ranks"
        f" need {_gb(need.device)} for dense states and one active mixture, {_gb(need.host)} in host memory"
        f" for all active experts, {_gb(need.disk)} on disk"
    )


def _hidden_from(setting: Setting, train: Train, layout: Parallel, limit_gb: float, *, is_link: bool) -> str:
    """Advice: the smallest multiple of the batch, in as many micro-batches, that computes as long as the disk
    (or the link to the GPU) takes, if it fits in memory.
    """
    more = "more parallel.tiers.device_gb" if is_link else "more parallel.tiers.host_gb"

    rows = micro_batch(train, layout)
    for doublings in range(1, MOST_DOUBLINGS):
        sizes = {"global_batch": train.global_batch << doublings, "micro_batch": rows << doublings}
        found = setting.estimate(train.model_copy(update=sizes), layout, steps=1)
        if found.memory_gb > limit_gb:
            break
        if not found.seconds.disk:
            words = " ".join(f"train.{key}={value}" for key, value in sizes.items())
            return f"{words} would hide it, or {more}"
    return f"no batch that fits hides it; {more} or a faster {'link' if is_link else 'disk'} would"


def _gb(size: float) -> str:
    return f"{size / 1e9:.3g} GB"
