"""Tensor parallelism: matrices split over the tensor axis (1909.08053), and activations between them split by
tokens (sequence parallelism, 2205.05198).

Weights become DTensors; inside a block's attention and MLP each rank has its own heads and inner columns.
"""

from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any, cast

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from atelier.engine.config.batch import TENSORS
from atelier.engine.config.tested import require
from atelier.engine.model.auxiliary import SPLITS
from atelier.engine.model.contract import Model
from atelier.engine.model.product_keys import VALUES, ProductKeys
from atelier.engine.parallel.grid import Grid

TOKENS, HEADS = 1, 2  # dims of [B, T, H, E]; sequence parallelism splits tokens, attention splits heads


def split_matrices(model: Model, grid: Grid, *, sequence_parallel: bool) -> None:
    """Split the plain model's weights in place as declared by its `splits()`."""
    if grid.axes.tensor == 1:
        return
    require("tensor styles")
    found: dict[str, ParallelStyle] = {}
    fixed = {path for path, weight in model.named_parameters() if not weight.requires_grad}
    for pattern, kind in (model.splits() | SPLITS).items():
        for path, module in model.named_modules():
            style = _style(kind, module, sequence_parallel) if fnmatch(path, pattern) else None
            if style is not None:
                found[path] = style
    parallelize_module(model, grid.mesh_of("tensor"), found)
    for path, weight in model.named_parameters():  # SequenceParallel creates new, trainable ones
        weight.requires_grad_(path not in fixed)


def _style(kind: str, module: nn.Module, sequence_parallel: bool) -> ParallelStyle | None:
    between = Shard(TOKENS) if sequence_parallel else Replicate()
    if kind == "vocabulary" and isinstance(module, nn.Embedding):
        return RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
    if kind in ("out", "in", "vocabulary"):  # a head's rows are its outputs
        return _Matrix("in" if kind == "in" else "out", between)
    if kind in ("inside", "across"):
        return _Inside(between, 2 if kind == "across" else 1)
    if kind == "whole" and sequence_parallel:
        return _Whole()
    if kind == "tokens" and sequence_parallel:
        return SequenceParallel(use_local_output=True)
    if kind == "heads":
        return SequenceParallel(sequence_dim=HEADS, use_local_output=True)
    if kind == "mixture" and sequence_parallel:
        return _SplitMixture(between)
    if kind == "memory":
        return _Columns(between)
    return None


class _Matrix(ParallelStyle):
    """A linear layer, LoRA weights included, whose outputs or inputs are split."""

    def __init__(self, kind: str, between: Placement) -> None:
        self.kind, self.between = kind, between

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        dim, whole = (0, "lora_A.weight") if self.kind == "out" else (1, "lora_B.weight")
        for path, weight in list(module.named_parameters()):
            placement = Replicate() if path == whole or weight.dim() <= dim else Shard(dim)
            _place(module, path, weight, device_mesh, placement)
        return _between(module, device_mesh, self._enter, self._leave)

    def _enter(self, module: nn.Module, inputs: tuple[Tensor], device_mesh: DeviceMesh) -> tuple[DTensor]:
        (x,) = inputs
        if not isinstance(x, DTensor):
            inside = Replicate() if self.kind == "out" else Shard(-1)
            x = DTensor.from_local(x, device_mesh, [inside], run_check=False)
        return (x,)

    def _leave(self, module: nn.Module, output: DTensor, device_mesh: DeviceMesh) -> Tensor:
        wanted = Shard(-1) if self.kind == "out" else self.between
        return output.redistribute(device_mesh, [wanted]).to_local()


class _Inside(PrepareModuleInput):
    """Gathers the first arguments of a module with split matrices; others pass unchanged."""

    def __init__(self, between: Placement, number: int, *, is_local: bool = False) -> None:
        super().__init__(
            input_layouts=(between,) * number,
            desired_input_layouts=(Replicate(),) * number,
            use_local_output=is_local,
        )
        self.number = number

    def _prepare_input_fn(
        self, inputs: tuple[Any, ...], device_mesh: DeviceMesh
    ) -> tuple[Any, ...]:  # arguments of any module
        gathered_ones = super()._prepare_input_fn(inputs[: self.number], device_mesh)
        return (*gathered_ones, *inputs[self.number :])


class _SplitMixture(ParallelStyle):
    """Gathers a module's argument and splits its result; further results, sums over whole tokens, pass
    unchanged.
    """

    def __init__(self, between: Placement) -> None:
        self.enter = _Inside(between, 1, is_local=True)
        self.leave = _FirstOutput(output_layouts=(Replicate(),), desired_output_layouts=(between,))

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        self.enter._apply(module, device_mesh)
        return self.leave._apply(module, device_mesh)


class _FirstOutput(PrepareModuleOutput):
    def _prepare_out_fn(
        self, outputs: Tensor | tuple[Tensor, ...], device_mesh: DeviceMesh
    ) -> Tensor | tuple[Tensor, ...]:
        if not isinstance(outputs, tuple):
            return super()._prepare_out_fn(outputs, device_mesh)
        first = super()._prepare_out_fn(outputs[:1], device_mesh)
        assert isinstance(first, Tensor)  # torch makes no tuple of a single output
        return (first, *outputs[1:])


class _Columns(ParallelStyle):
    """A product-key memory: every rank chooses pairs for all tokens and sums its columns of their values.
    Gradients of the choice and of the input, from these columns, are parts of sums.
    """

    def __init__(self, between: Placement) -> None:
        self.between = between

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for path, weight in list(module.named_parameters()):
            placement = Shard(1) if path == VALUES else Replicate()
            _place(module, path, weight, device_mesh, placement)
        cast(ProductKeys, module).read = _read_columns
        return _between(module, device_mesh, self._enter, self._leave)

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...], device_mesh: DeviceMesh) -> tuple[Any, ...]:
        placed = DTensor.from_local(inputs[0], device_mesh, [self.between], run_check=False)
        whole = placed.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        return (whole, *inputs[1:])

    def _leave(self, module: nn.Module, output: tuple[Any, ...], device_mesh: DeviceMesh) -> tuple[Any, ...]:
        placed = DTensor.from_local(output[0], device_mesh, [Shard(-1)], run_check=False)
        return (placed.redistribute(placements=[self.between]).to_local(), *output[1:])


def _read_columns(weight: Tensor) -> Tensor:
    if not isinstance(weight, DTensor):
        return weight
    mine = [place if place.is_shard() else Partial() for place in weight.placements]
    return weight.to_local(grad_placements=mine)


class _Whole(ParallelStyle):
    """An embedding that is whole on every rank; each rank keeps its own tokens of the result."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def enter(module: nn.Module, inputs: tuple[Tensor, ...], mesh: DeviceMesh) -> tuple[DTensor, ...]:
            return tuple(DTensor.from_local(x, mesh, [Replicate()], run_check=False) for x in inputs)

        def leave(module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
            return output.redistribute(mesh, [Shard(TOKENS)]).to_local()

        return _between(module, device_mesh, enter, leave)


def _between(
    module: nn.Module, mesh: DeviceMesh, enter: Callable[..., Any], leave: Callable[..., Any]
) -> nn.Module:
    """Wrap the module: `enter` transforms its arguments, `leave` its result. torch annotates both functions
    without a result, but uses what they return.
    """
    return distribute_module(module, mesh, None, enter, leave)


def _place(module: nn.Module, path: str, weight: Tensor, mesh: DeviceMesh, placement: Placement) -> None:
    owner, _, leaf = path.rpartition(".")
    placed = distribute_tensor(weight.detach(), mesh, [placement], src_data_rank=None)
    parameter = nn.Parameter(placed, requires_grad=weight.requires_grad)
    module.get_submodule(owner).register_parameter(leaf, parameter)


def own_between(batch: dict[str, Tensor], grid: Grid, *, sequence_parallel: bool) -> dict[str, Tensor]:
    """The batch, with entries that are read between matrices cut to this rank's tokens."""
    if grid.axes.tensor == 1 or not sequence_parallel:
        return batch
    size, place = grid.axes.tensor, grid.places["tensor"]
    cut = [name for name in batch if name in TENSORS and TENSORS[name].between]
    return batch | {name: batch[name].chunk(size, dim=TOKENS)[place] for name in cut}


def gathered(hidden_BTD: Tensor, grid: Grid, *, sequence_parallel: bool) -> Tensor:
    """The hidden states of all this rank's tokens, for a head split by rows; backward sums the slices'
    contributions.
    """
    if grid.axes.tensor == 1:
        return hidden_BTD
    between = Shard(TOKENS) if sequence_parallel else Replicate()
    placed = DTensor.from_local(hidden_BTD, grid.mesh_of("tensor"), [between], run_check=False)
    return placed.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
