"""Sizes and FLOPs of a model for cost estimates. Torch-free."""

from dataclasses import dataclass
from math import prod

from atelier.engine.config.blocks import Blocks
from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.memory import NO_MEMORY, MemoryShape
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.registry import ModelSpec

WIDEST, MULTIPLE = 256, 8  # of a head, for these kernels


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The shape of a model on sequences of `sequence` tokens, with blocks assumed equal.

    A block's `matrices` are (count, out, in). `width`: inner width of all MLPs that a token passes (`met`
    experts or one MLP); `routed_width`: that of routed experts; `inner`: that of all, gated MLPs counted 1.5
    times. `flops`: forward and backward FLOPs of one token in each block; `after`: those after the blocks.
    `memory`: mean cost of product-key memories per token; their weights are not in `matrices`. A model
    without equal transformer blocks has no `matrices`: only its FLOPs are known. `has_mask`: rows are more
    than causal documents, so that fused attention computes a mask's zeros too.
    """

    sequence: int
    params: int
    num_layers: int
    hidden: int
    vocab: int
    block_params: int
    matrices: tuple[tuple[int, int, int], ...]
    num_heads: int
    kv_heads: int
    head_dim: int
    inner: float
    width: float
    routed_width: float
    is_gated: bool
    has_rms_norm: bool
    num_experts: int
    met: int
    flops: tuple[float, ...]
    after: float
    memory: MemoryShape = NO_MEMORY
    has_mask: bool = False

    @property
    def is_packed(self) -> bool:
        """Whether kernels of 16 bits compute its attention without a mask (engine/model/packed.py)."""
        return not self.has_mask and self.head_dim <= WIDEST and self.head_dim % MULTIPLE == 0

    @property
    def flops_per_token(self) -> float:
        return sum(self.flops) + self.after

    @property
    def attention_flops(self) -> float:
        """Forward and backward FLOPs of one token in all scores and sums of values."""
        return 12.0 * self.sequence * self.num_heads * self.head_dim * self.num_layers


def model_shape_of(model: ModelSpec, sequence: int) -> ModelShape:
    """The shape of `model`, whose vocabulary must be known."""
    *flops, after = model.block_flops(sequence)
    blocks: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in model.shapes().items():
        if name.startswith("blocks."):
            _, number, rest = name.split(".", 2)
            blocks.setdefault(number, {})[rest] = shape
    params = [sum(prod(shape) for shape in block.values()) for block in blocks.values()]
    memory = model.memory if isinstance(model, GPT) and model.memory.blocks else None
    plain = {number: _without_memory(block) for number, block in blocks.items()}
    first = plain.get("0", {})
    is_alike = all(block == first for block in plain.values())
    # encoder and decoder: widths are known, blocks are taken at their average size
    is_known = is_alike or model.reads_encoder
    known = model if isinstance(model, Blocks) and is_known else None
    mixed = known if isinstance(known, MixedBlocks) and known.num_experts else None
    met = mixed.experts_per_token if mixed else 1
    matrices = [(prod(shape[:-2]), shape[-2], shape[-1]) for shape in first.values() if len(shape) >= 2]
    routed_width = 0.0
    width = float(known.inner) if known else 4.0 * model.hidden
    is_gated = known is not None and known.has_gate
    if mixed:
        width, is_gated = float(mixed.expert_inner * (met + mixed.experts.shared)), mixed.is_gated
        routed_width = float(mixed.expert_inner * met)
    return ModelShape(
        sequence=sequence,
        params=model.num_params(),
        num_layers=model.num_blocks,
        hidden=model.hidden,
        vocab=model.tokens,
        block_params=sum(params) // len(params) if model.reads_encoder or memory else sum(params[:1]),
        matrices=tuple(matrices) if known and is_alike else (),
        num_heads=known.num_heads if known else 0,
        kv_heads=known.kv_heads if known else 0,
        head_dim=known.head_width if known else 0,
        inner=width * (1.5 if is_gated else 1.0),
        width=width,
        routed_width=routed_width,
        is_gated=is_gated,
        has_rms_norm=known is not None and known.norm == "rms",
        num_experts=mixed.num_experts if mixed else 0,
        met=met,
        flops=tuple(flops),
        after=after,
        memory=MemoryShape.of(memory, model.hidden, model.num_layers) if memory else NO_MEMORY,
        has_mask=bool(model.inputs),
    )


def _without_memory(block: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in block.items() if not name.startswith("memory.")}
