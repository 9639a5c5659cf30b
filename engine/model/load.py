"""Models by kind: build, initialise by name, read from an artifact, and the files of one."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from engine.artifact import Input
from engine.spec.base import Spec, canonical, parse
from engine.spec.error import DataError
from engine.spec.registry import spec_class
from engine.spec.seed import seed_of

WEIGHTS, CONFIG = "model.safetensors", "config.json"
COMPILED = "_orig_mod."  # what torch.compile(module) puts into the names below it


def build(spec: Spec) -> nn.Module:
    """The network of `spec` on the current default device; its weights are not yet set."""
    return importlib.import_module(f"engine.model.{spec.kind}").build(spec)  # type: ignore[attr-defined]


def initialise(model: nn.Module, *, seed: int, name: str) -> None:
    """Set every weight from its own generator (seed, name, weight name): the same in any order, layout and
    device.

    Drawn on the CPU in fp32, so that an fp64 model starts from the same numbers. Of a sharded weight each
    rank draws the whole and keeps its part; nothing is sent. The model says by `initial(weight name)` how
    each begins.
    """
    for weight_name, weight in model.named_parameters():
        plain_name = weight_name.replace(COMPILED, "")
        rule, std = cast(Any, model).initial(plain_name)
        full = draw(weight.shape, rule, std, seed_of(seed, name, plain_name))
        with torch.no_grad():
            weight.copy_(_placed_like(full, weight))


def draw(shape: torch.Size, rule: str, std: float, seed: int) -> Tensor:
    """A new fp32 weight on the CPU: "normal" with `std`, "ones" or "zeros"."""
    if rule == "ones":
        return torch.ones(shape, device="cpu")
    if rule == "zeros":
        return torch.zeros(shape, device="cpu")
    return torch.empty(shape, device="cpu").normal_(
        0.0, std, generator=torch.Generator("cpu").manual_seed(seed)
    )


def _placed_like(full: Tensor, weight: Tensor) -> Tensor:
    if not isinstance(weight, DTensor):
        return full
    mesh = weight.device_mesh
    full = full.to(device=mesh.device_type, dtype=weight.dtype)
    return distribute_tensor(
        full, mesh, weight.placements, src_data_rank=None
    )  # None: every rank has the whole, nothing is sent


def read_model(
    source: Input, scratch: Path, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> tuple[nn.Module, Any]:
    """The model of an artifact, and its spec; dtype None = as stored.

    Bytes are compared with their digests before they are parsed (DamageError); weights that do not fit the
    config are a DataError.
    """
    config = source.json(CONFIG, scratch)
    try:
        kind = spec_class("model", str(config.get("kind", "")))
    except ValueError as error:
        raise DataError(f"{source.url}/{CONFIG}: {error}") from None
    spec = parse(kind, config, f"{source.url}/{CONFIG}")
    state = safetensors.torch.load_file(source.file(WEIGHTS, scratch), device=str(device))
    _check_names(state, spec, f"{source.url}/{WEIGHTS}")
    with torch.device("meta"):
        model = build(spec)
    model.load_state_dict(
        {name: weight.to(dtype or weight.dtype) for name, weight in state.items()}, assign=True
    )
    return model, spec


def model_files(state: Mapping[str, Tensor], spec: Spec) -> dict[str, bytes]:
    """The files of a model artifact, the same bytes for the same weights and spec. `state`: whole tensors by
    name.
    """
    plain = {
        name.replace(COMPILED, ""): weight.detach().to("cpu", copy=False).contiguous()
        for name, weight in state.items()
    }
    _check_names(plain, spec, "model")
    config = json.loads(canonical(cast(Any, spec).arguments()))
    return {
        # one metadata key at most: safetensors writes several in random order
        WEIGHTS: safetensors.torch.save(plain, {"format": "pt"}),
        CONFIG: (json.dumps(config, indent=1, sort_keys=True) + "\n").encode(),
    }


def _check_names(state: Mapping[str, Tensor], spec: Spec, place: str) -> None:
    """Names and shapes are exactly those of the spec, else a DataError that lists the first differences."""
    wanted = cast(Any, spec).shapes()
    found = {name: tuple(weight.shape) for name, weight in state.items()}
    if found == wanted:
        return
    faults = [f"no {name}" for name in wanted if name not in found]
    faults += [f"unknown {name}" for name in found if name not in wanted]
    faults += [f"{n} is {found[n]}, not {wanted[n]}" for n in wanted if n in found and found[n] != wanted[n]]
    raise DataError(f"{place}: weights do not fit the model: {'; '.join(faults[:3])} ({len(faults)} in all)")
