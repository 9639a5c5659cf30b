"""Build models by kind on the meta device, initialise them by name, and read and write model artifacts."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from atelier.engine.config.base import canonical
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.config.kind_files import MEND, kind_module
from atelier.engine.config.registry import ModelSpec, model_of
from atelier.engine.config.role import Trainable
from atelier.engine.config.seed import seed_of
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.io.weight_files import INDEX, WEIGHTS, index_of, plan_files
from atelier.engine.model.contract import Model, stored
from atelier.engine.model.weights import (
    COMPILED,
    Sink,
    StoredWeights,
    Weight,
    entries_of,
    open_weights,
    write_files,
)


class _Unfilled(TorchFunctionMode):
    """Makes torch.nn.init's functions leave their tensor unchanged."""

    def __torch_function__(  # called for any function of torch, with its arguments
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def blank() -> Iterator[None]:
    """Context that builds modules on the meta device without initialisation, for which torch would import its
    compiler (two seconds).
    """
    with torch.device("meta"), _Unfilled():
        yield


CONFIG = "config.json"


def build(spec: ModelSpec) -> Model:
    """The network of `spec` on the default device, with weights not yet set. Raises ConfigError, with the
    file, if the kind builds no Model, or one without spec or blocks.
    """
    model, file = kind_module("model", spec.kind, "build").build(spec), f"engine/model/{spec.kind}.py"
    if not isinstance(model, Model):
        raise ConfigError(
            f"model.{spec.kind}", f"{file}: build returns no Model, but {type(model).__name__}", MEND
        )
    if missing := [name for name in ("spec", "blocks") if not hasattr(model, name)]:
        problem = f"{file}: {type(model).__name__} does not set self.{missing[0]}"
        raise ConfigError(f"model.{spec.kind}", problem, MEND)
    return model


def initialise(model: Model, *, seed: int, name: str) -> None:
    """Set every weight of an unsharded model to its initial values."""
    for weight_name, weight in stored(model):
        plain_name = weight_name.replace(COMPILED, "")
        with torch.no_grad():
            weight.copy_(first_values(model, plain_name, weight.shape, seed, name))


def first_values(model: Model, weight: str, shape: torch.Size, seed: int, name: str) -> Tensor:
    """A weight's initial values, from a generator seeded by (seed, name, weight): independent of order,
    layout and device.

    Drawn on the CPU in fp32, so that an fp64 model starts from the same values. For a sharded weight each
    rank draws the whole and keeps its shard, without communication. The model's `initial(weight name)` gives
    the distribution.
    """
    rule, std = model.initial(weight)
    return draw(shape, rule, std, seed_of(seed, name, weight))


def draw(shape: torch.Size, rule: str, std: float, seed: int) -> Tensor:
    """A new fp32 weight on the CPU: "normal" with `std`, "ones" or "zeros"."""
    if rule == "ones":
        return torch.ones(shape, device="cpu")
    if rule == "zeros":
        return torch.zeros(shape, device="cpu")
    return torch.empty(shape, device="cpu").normal_(
        0.0, std, generator=torch.Generator("cpu").manual_seed(seed)
    )


def move_parts(model: nn.Module, trainable: Trainable) -> None:
    """Freeze all weights of the plain model, in place, except those of the parts named in `trainable`."""
    if trainable.kind == "parts":
        for name, child in model.named_children():
            child.requires_grad_(name in trainable.parts)


def read_weights(source: ArtifactInput, scratch: Path) -> tuple[StoredWeights, ModelSpec]:
    """The weights of a model artifact, not yet in memory, and its spec.

    Raises DamageError if bytes do not match their digests, DataError if weights do not fit the config,
    ConfigError for a version of the kind that this code does not support.
    """
    config = source.json(CONFIG, scratch)
    spec = model_of(config, f"{source.url}/{CONFIG}")
    stored = open_weights(source, scratch)
    check_shapes(stored.shapes(), spec, f"{source.url}/{WEIGHTS if WEIGHTS in source.names() else INDEX}")
    return stored, spec


def read_model(
    source: ArtifactInput, scratch: Path, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> tuple[Model, ModelSpec]:
    """The model of an artifact and its spec; dtype None = as stored. Raises as `read_weights`."""
    stored, spec = read_weights(source, scratch)
    with blank():
        model = build(spec)
    state = {name: weight.to(device=device, dtype=dtype or weight.dtype) for name, weight in stored.items()}
    model.load_state_dict(state, assign=True)
    return model, spec


def write_model(weights: Mapping[str, Weight], spec: ModelSpec, sink: Sink | None, *, most: int) -> None:
    """Pass the files of a model artifact to `sink`, a tensor at a time; equal weights and spec give equal
    bytes: one file of weights, or shards of at most `most` bytes. A collective; only the first rank has the
    sink.

    Raises DataError if the weights do not fit the spec.
    """
    check_shapes({name: weight.shape for name, weight in weights.items()}, spec, "model")
    files = plan_files(entries_of(weights), most)
    write_files(files, weights, sink)
    if sink is None:
        return
    if WEIGHTS not in files:
        sink(INDEX, [index_of(files)])
    config = json.loads(canonical(spec.arguments()))
    sink(CONFIG, [(json.dumps(config, indent=1, sort_keys=True) + "\n").encode()])


def check_shapes(found: Mapping[str, tuple[int, ...]], spec: ModelSpec, place: str) -> None:
    """Raise DataError, listing the first differences, unless names and shapes match the spec."""
    wanted = spec.shapes()
    if found == wanted:
        return
    faults = [f"no {name}" for name in wanted if name not in found]
    faults += [f"unknown {name}" for name in found if name not in wanted]
    faults += [f"{n} is {found[n]}, not {wanted[n]}" for n in wanted if n in found and found[n] != wanted[n]]
    raise DataError(f"{place}: weights do not fit the model: {'; '.join(faults[:3])} ({len(faults)} in all)")
