"""Numeric types and compilation of a role: autocast, float8 products (2209.05433, by torchao), compiled
blocks, recomputed activations.
"""

import functools
import shutil
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Parallel, Recompute
from atelier.engine.config.tested import is_on
from atelier.engine.config.train import Precision
from atelier.engine.model.expert_mlp import EXPERTS
from atelier.engine.model.moe import ExpertWeights
from atelier.engine.model.packed import PACKED
from atelier.engine.model.placement import has_half

OLDEST = (8, 9)  # compute capability of the first GPUs that have float8 products
MULTIPLE = 16  # of both dims of a matrix, required by the kernels


def check_float8(device: torch.device) -> None:
    """Raise ConfigError unless `device` has float8 matrix products (compute capability 8.9 or newer)."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= OLDEST:
        return
    raise ConfigError(
        "train.precision",
        f"fp8, but the device is {torch.cuda.get_device_name(device) if device.type == 'cuda' else 'a CPU'}",
        "it needs a GPU of compute capability 8.9 or newer; precision=bf16 runs everywhere",
    )


def check_bf16(device: torch.device) -> None:
    """Raise ConfigError for a GPU without products of bfloat16. CPUs without them compute in float32."""
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        name, (major, minor) = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
        raise ConfigError(
            "train.precision",
            f"bf16, but {name} (compute capability {major}.{minor}) has no such products",
            "precision=fp32, or a GPU of compute capability 8.0 or newer",
        )


def check_precision(precision: str, device: torch.device) -> None:
    """Raise ConfigError if the device has no products of this precision."""
    if precision == "fp8":
        check_float8(device)
    elif precision == "bf16":
        check_bf16(device)


def use_float8(model: nn.Module, *, emulate: bool = False) -> None:
    """Replace the linear layers of the plain model's blocks by float8 ones, in place; weights keep names and
    types. `emulate`: round as float8 does, compute in the weights' type (for CPUs).

    Raises ConfigError if torchao is missing.
    """
    try:
        # optional: workers without such GPUs do not need it
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError:
        raise ConfigError(
            "train.precision",
            "fp8 needs torchao",
            "pip install -e '.[fp8]' in the checkout, or precision=bf16",
        ) from None

    def is_chosen(module: nn.Module, path: str) -> bool:
        return (
            isinstance(module, nn.Linear)
            and path.startswith("blocks.")
            and not (module.in_features % MULTIPLE or module.out_features % MULTIPLE)
        )

    convert_to_float8_training(model, config=Float8LinearConfig(emulate=emulate), module_filter_fn=is_chosen)


HALF = ("bf16", "fp8")  # bf16 products and activations over fp32 weights

# FLOPs of one rank from which compiling pays: the first compiled step costs 2 to 15 s per role and saves 15
# to 35 % of the rest
WORTH_COMPILING = {"cpu": 2e13, "cuda": 2e16}


def arithmetic(precision: Precision, device: torch.device) -> torch.autocast | nullcontext[None]:
    """Context of forward passes: bf16 autocast over fp32 weights if the device has it, otherwise nothing."""
    is_half = precision in HALF and has_half(device)
    return torch.autocast(device.type, dtype=torch.bfloat16) if is_half else nullcontext()


def computed_in(precision: Precision, device: torch.device) -> str:
    """The arithmetic of `precision` on `device`: float32 if 16 bits would only be emulated."""
    return "fp32" if precision in HALF and not has_half(device) else precision


def sent_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """Type of an embedding's rows between ranks; the residual stream is widened later."""
    return torch.bfloat16 if precision in HALF and device.type == "cuda" else weight_dtype(precision)


def weight_dtype(precision: Precision) -> torch.dtype:
    """Type of the master weights, which the optimiser updates."""
    return torch.float64 if precision == "fp64" else torch.float32


def compile_mode(
    layout: Parallel, *, flops: float, device: torch.device, is_plain: bool = True
) -> Literal["none", "block"]:
    """Resolve `auto` for one role: compile blocks if a C++ compiler is found and the role's whole training,
    `flops` per rank, is long enough. The decision does not depend on the resume step or on other roles,
    because neither may change a role's bits. Blocks with explicit collectives are not `is_plain` and are
    compiled only on request.
    """
    if layout.compile != "auto":
        return layout.compile
    has_compiler = any(shutil.which(name) for name in ("g++", "clang++"))
    return "block" if has_compiler and is_plain and flops >= WORTH_COMPILING[device.type] else "none"


def compile_blocks(blocks: Iterable[nn.Module]) -> None:
    """Compile each block's forward in place; hooks that sharding adds later stay outside the compiled
    code.
    """
    # each role and shape is an entry in the code shared by all blocks; beyond the limit they run eagerly
    if is_on("recompilations"):
        torch._dynamo.config.recompile_limit = 128
    for block in blocks:
        for module in block.modules():
            if isinstance(module, ExpertWeights) and module.reads_counts:  # it waits for threads and copies
                module.__dict__["compute"] = torch.compiler.disable(module.compute)
        block.forward = torch.compile(block.forward, dynamic=False)


def recompute_blocks(blocks: Iterable[nn.Module], kind: Recompute, every: int) -> None:
    """Make every n-th block recompute its activations in the backward pass (1604.06174), in place.

    `selective` keeps the results of matrix products, the most expensive to recompute (2205.05198, section 5).
    Dropout needs no generator state: its mask is a function of the batch.
    """
    if kind == "none":
        return
    recompute = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    if kind == "selective":
        recompute = functools.partial(recompute, context_fn=_selective)
    for number, block in enumerate(blocks):
        if number % every == 0:
            block.forward = functools.partial(recompute, block.forward)


def _selective() -> tuple[
    AbstractContextManager[TorchDispatchMode], AbstractContextManager[TorchDispatchMode]
]:
    return create_selective_checkpoint_contexts(_policy)


def _policy(
    context: SelectiveCheckpointContext, operation: OpOverload, *given: Any, **named: Any
) -> CheckpointPolicy:  # given, named: arguments of any operation
    is_kept = operation in _PRODUCTS or operation.name() == PACKED
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


_PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_mm.default,
    EXPERTS,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
}
