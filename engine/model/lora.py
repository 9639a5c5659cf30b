"""Low-rank additions to the matrices of a plain model (LoRA, 2106.09685), and their files in peft's format.

W' = W + alpha / rank B A. The weight keeps its name, `x.weight`, and is frozen; `x.lora_A.weight` [rank, in]
and `x.lora_B.weight` [out, rank] are trained.
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atelier.engine.config.base import parse
from atelier.engine.config.error import ConfigError, DataError, nearest
from atelier.engine.config.foreign.adapters import MATRIX, Scaled, names_of, split
from atelier.engine.config.foreign.families import fitting
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Trainable
from atelier.engine.config.seed import seed_of
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.io.tensorfile import in_file_order
from atelier.engine.model.load import blank, draw
from atelier.engine.model.weights import Sink, StoredWeights, Weight, entries_of, write_files

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."  # peft's prefix of the wrapped model
INNER, OUTER = ".lora_A.weight", ".lora_B.weight"
Addition = tuple[Tensor, Tensor, float]  # A [r, in], B [out, r] and the scale of B A


class LowRank(nn.Module):
    """A linear layer with a frozen weight and a trained low-rank addition. B starts at 0, so the layer's
    output is unchanged at first.
    """

    def __init__(self, plain: nn.Linear, *, rank: int, alpha: float) -> None:
        super().__init__()
        device, dtype = plain.weight.device, plain.weight.dtype
        self.weight, self.bias = plain.weight, plain.bias
        self.scale = alpha / rank
        self.lora_A = nn.Linear(plain.in_features, rank, bias=False, device=device, dtype=dtype)
        self.lora_B = nn.Linear(rank, plain.out_features, bias=False, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + self.lora_B(self.lora_A(x)) * self.scale


def apply(model: nn.Module, trainable: Trainable, *, seed: int, name: str) -> None:
    """Freeze the model and add low-rank additions to the target matrices of its blocks; does nothing for
    other kinds.

    For an unsharded model, before it is compiled or sharded. Every A is normal with variance 1/in, from its
    own generator. Raises ConfigError for a target that no block has, except default targets, which some
    models lack.
    """
    if trainable.kind != "lora":
        return
    model.requires_grad_(False)
    for path in _targets(model, trainable):
        plain = model.get_submodule(path)
        if not isinstance(plain, nn.Linear):
            raise ConfigError("trainable.targets", f"{path} is not a plain matrix", "leave it out")
        layer = LowRank(plain, rank=trainable.rank, alpha=trainable.alpha)
        with torch.no_grad():
            for leaf, weight in ((INNER, layer.lora_A.weight), (OUTER, layer.lora_B.weight)):
                weight.copy_(addition_values(path + leaf, weight.shape, seed=seed, name=name))
        parent, leaf = path.rsplit(".", 1)
        setattr(model.get_submodule(parent), leaf, layer)


def is_addition(weight: str) -> bool:
    """Whether the name is that of a low-rank addition."""
    return weight.endswith((INNER, OUTER))


def addition_values(weight: str, shape: torch.Size, *, seed: int, name: str) -> Tensor:
    """The initial values of an addition, unsharded, on the CPU."""
    if weight.endswith(OUTER):
        return torch.zeros(shape, device="cpu")
    return draw(shape, "normal", shape[1] ** -0.5, seed_of(seed, name, weight))


def _targets(model: nn.Module, trainable: Trainable) -> list[str]:
    """The paths of the matrices that get an addition."""
    paths = [
        path for path, module in model.named_modules() if isinstance(module, nn.Linear) and "blocks." in path
    ]
    leaves = {path.rsplit(".", 1)[-1] for path in paths}
    for target in trainable.targets:
        if target not in leaves and target not in Trainable().targets:
            near = nearest(target, leaves)
            hint = f"did you mean {near}? " if near else ""
            raise ConfigError(
                "trainable.targets",
                f"no matrix is called {target!r}",
                f"{hint}there are: {', '.join(sorted(leaves))}",
            )
    found = [path for path in paths if path.rsplit(".", 1)[-1] in trainable.targets]
    if not found:
        raise ConfigError(
            "trainable.targets",
            f"the model has none of {', '.join(trainable.targets)}",
            f"there are: {', '.join(sorted(leaves))}",
        )
    return found


def merge(model: nn.Module) -> None:
    """Add every addition to its weight and restore plain layers; weights become trainable."""
    for path, layer in list(model.named_modules()):
        if not isinstance(layer, LowRank):
            continue
        out_features, in_features = layer.weight.shape
        with blank():
            plain = nn.Linear(in_features, out_features, bias=layer.bias is not None)
        with torch.no_grad():
            whole = layer.weight + _addition(layer.lora_A.weight, layer.lora_B.weight, layer.scale)
        plain.weight = nn.Parameter(whole.to(layer.weight.dtype))
        if layer.bias is not None:
            plain.bias = layer.bias
        parent, leaf = path.rsplit(".", 1)
        setattr(model.get_submodule(parent), leaf, plain)
    model.requires_grad_(True)


def merged(weights: Mapping[str, Weight], trainable: Trainable) -> dict[str, Weight]:
    """The plain model's weights from those of a model with additions, each merged when gathered; unchanged
    for kind=full.
    """
    scale = trainable.alpha / trainable.rank
    result = {name: weight for name, weight in weights.items() if not is_addition(name)}
    for name in weights:
        if name.endswith(INNER):
            path = name.removesuffix(INNER)
            plain = result[f"{path}.weight"]
            result[f"{path}.weight"] = plain._replace(
                gather=partial(_gather_merged, plain, weights[name], weights[path + OUTER], scale)
            )
    return result


def _gather_merged(plain: Weight, inner: Weight, outer: Weight, scale: float) -> Tensor | None:
    inner_RI, outer_OR = inner.gather(), outer.gather()
    # gather the additions first, so that only they and one weight are held
    addition = None if inner_RI is None or outer_OR is None else _addition(inner_RI, outer_OR, scale)
    weight = plain.gather()
    if addition is None or weight is None:
        return None
    if torch.promote_types(weight.dtype, addition.dtype) != addition.dtype:
        addition = addition.to(weight.dtype)
    return addition.add_(weight).to(weight.dtype)


def _addition(inner: Tensor, outer: Tensor, scale: float) -> Tensor:
    """alpha / rank B A, in fp32 or more."""
    exact = torch.promote_types(inner.dtype, torch.float32)
    return (outer.to(exact) @ inner.to(exact)).mul_(scale)


def write_adapter(
    weights: Mapping[str, Weight], trainable: Trainable, sink: Sink | None, *, base: str
) -> None:
    """Pass the additions to `sink` as peft's two files; equal weights give equal bytes. `base`: name of the
    base model. A collective.

    Raises DataError if there are none.
    """
    chosen = {PREFIX + name: weight for name, weight in weights.items() if is_addition(name)}
    if not chosen:
        raise DataError("adapter: the model has no low-rank additions; train it with trainable=lora")
    write_files({WEIGHTS: in_file_order(entries_of(chosen))}, chosen, sink)
    if sink is None:
        return
    found = {name.rsplit(".", 3)[-3] for name in chosen}
    config = {
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": trainable.alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": trainable.rank,
        "target_modules": [target for target in trainable.targets if target in found],
        "task_type": None,
    }
    sink(CONFIG, [(json.dumps(config, indent=1, sort_keys=True) + "\n").encode()])


def read_adapter(source: ArtifactInput, scratch: Path) -> tuple[dict[str, Tensor], Trainable]:
    """The additions of an artifact by plain names, and their spec; verified before parsing.

    Raises DataError for anything but plain LoRA.
    """
    place = f"{source.url}/{CONFIG}"
    config = source.json(CONFIG, scratch)
    if config.get("peft_type") != "LORA":
        raise DataError(f"{place}: peft_type is {config.get('peft_type')!r}; only LORA is supported")
    foreign = [
        key
        for key in ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save")
        if config.get(key)
    ]
    if foreign:
        raise DataError(f"{place}: {foreign[0]} is set; only plain LoRA is supported")
    chosen = {
        "kind": "lora",
        "rank": config.get("r"),
        "alpha": config.get("lora_alpha"),
        "targets": config.get("target_modules"),
    }
    trainable = parse(Trainable, chosen, place)
    state = StoredWeights(source.file(WEIGHTS, scratch))
    return {name.removeprefix(PREFIX): weight for name, weight in state.items()}, trainable


def attach(model: nn.Module, weights: Mapping[str, Tensor], trainable: Trainable) -> None:
    """`apply`, then load the additions of `read_adapter`. Raises DataError if they do not fit the model."""
    apply(model, trainable, seed=0, name="")
    wanted = {name: weight for name, weight in model.named_parameters() if name.endswith((INNER, OUTER))}
    faults = sorted(wanted.keys() ^ weights.keys())
    faults += [name for name in wanted.keys() & weights.keys() if wanted[name].shape != weights[name].shape]
    if faults:
        raise DataError(f"adapter: does not fit the model at {faults[0]} ({len(faults)} differences in all)")
    with torch.no_grad():
        for name, weight in wanted.items():
            weight.copy_(weights[name])


def of_base(
    stored: StoredWeights, spec: ModelSpec, how: Scaled, place: str
) -> tuple[str, Mapping[str, Addition]]:
    """The family whose names the adapter uses ('' = ours), and the additions by our weights' names. Raises
    DataError for weights that the base lacks, of another shape, missing, or not finite.
    """
    modules = {split(name)[0] for name in stored}
    if "" in modules or not modules:
        strange = next((name for name in stored if not split(name)[0]), "nothing")
        raise DataError(f"{place}: {strange}: only additions to matrices are supported")
    shapes, found = spec.shapes(), dict[str, Addition]()
    families: dict[str, Mapping[str, str]] = {}
    if isinstance(spec, GPT):
        families = {family.name: names_of(family, spec).ours for family in fitting(spec)}
    matrices = [name for name, shape in shapes.items() if len(shape) == 2 and name.endswith(MATRIX)]
    families[""] = {name.removesuffix(MATRIX): name.removesuffix(MATRIX) for name in matrices}
    family = next((name for name, ours in families.items() if modules <= ours.keys()), None)
    if family is None:
        known = next(iter(families.values()))
        raise DataError(
            f"{place}: the base has no {min(modules - known.keys())}, which the adapter changes;"
            " give the model that the adapter was tuned on"
        )
    for module in sorted(modules):
        ours = f"{families[family][module]}{MATRIX}"
        outputs, inputs = shapes[ours]
        pair = []
        for leaf, wanted in ((INNER, (how.rank, inputs)), (OUTER, (outputs, how.rank))):
            name = f"{PREFIX}{module}{leaf}"
            if name not in stored:
                raise DataError(f"{place}: {name} is missing")
            weight = stored[name]
            if tuple(weight.shape) != wanted:
                raise DataError(f"{place}: {name} is {tuple(weight.shape)}, but should be {wanted}")
            if not weight.isfinite().all():
                raise DataError(f"{place}: {name} has values that are not finite")
            pair.append(weight)
        found[ours] = (pair[0], pair[1], how.scale)
    return family, found


def with_addition(weight: Tensor, inner: Tensor, outer: Tensor, scale: float) -> Tensor:
    """W + scale B A, added in float32 or more."""
    exact = torch.promote_types(weight.dtype, torch.float32)
    return (weight.to(exact) + (outer.to(exact) @ inner.to(exact)).mul_(scale)).to(weight.dtype)
