"""First-order arithmetic of a training: parameters, FLOPs, memory of the fullest rank, time of a step.
Torch-free.

Sources: FLOPs per token as PaLM (2204.02311, appendix B); states 16 bytes a parameter with fp32 master
weights and AdamW, split over tensor and pipeline, and over shard, expert and context as ZeRO-3 (1910.02054,
section 5); activations per layer s b h (34 + 5 a s / h) bytes, where with flash attention the second term
falls away, split over context and tensor (2205.05198, equations 1 and 4); 2 s b h with full recomputation. A
pipeline's first stage holds as many micro-batches as it has stages, so that all blocks count.
"""

from dataclasses import dataclass
from typing import Any

from engine.spec.parallel import Parallel
from engine.spec.pool import Pool
from engine.spec.role import Role
from engine.spec.train import Train

EFFICIENCY = 0.45  # of the pool's peak; what dense training reaches without a calibration
STATE_BYTES = 16


@dataclass(frozen=True)
class Estimate:
    params: int
    flops: float
    memory_gb: float
    step_s: float
    tokens_per_s: float
    mfu: float
    device_hours: float

    def row(self) -> dict[str, Any]:
        return {
            key: round(value, 6) if isinstance(value, float) else value for key, value in vars(self).items()
        }


def estimate(
    role: Role, train: Train, parallel: Parallel, pool: Pool, vocab: int, steps: int | None = None
) -> Estimate:
    """What `steps` (default all from the role's start) of training one role cost on `parallel.ranks` devices
    of `pool`.
    """
    model: Any = role.model
    if model.vocab == "auto":
        model = model.resolved(vocab)
    steps = role.last(train.num_steps) - int(role.start) if steps is None else steps
    tokens = train.global_batch * train.sequence
    params = model.num_params()
    step_flops = model.flops_per_token(train.sequence) * tokens
    threads = 1 if parallel.threads == "auto" else parallel.threads
    peak = pool.peak_tflops * 1e12 * parallel.ranks * (threads if pool.gpu == "cpu" else 1)
    step_s = step_flops / (peak * EFFICIENCY)
    axes = parallel.axes
    micro = train.global_batch // axes.data if train.micro_batch == "auto" else train.micro_batch
    parts = axes.shard * axes.expert * axes.context * axes.tensor * parallel.pipeline
    bytes_kept = 2 if parallel.recompute == "full" else 34
    activations = bytes_kept * train.sequence * micro * model.hidden * model.num_layers
    activations /= axes.context * axes.tensor
    logits = 4 * 1024 * model.tokens * 3
    memory = (STATE_BYTES * params / parts + activations + logits / axes.tensor) / 1e9
    return Estimate(
        params=params,
        flops=step_flops * steps,
        memory_gb=memory,
        step_s=step_s,
        tokens_per_s=tokens / step_s,
        mfu=EFFICIENCY,
        device_hours=step_s * steps * parallel.ranks / 3600,
    )
