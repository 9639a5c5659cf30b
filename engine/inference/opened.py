"""Open a model to ask it: in this process, or over the ranks of a gang (engine/inference/split.py)."""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import InferenceLayout
from atelier.engine.config.registry import ModelSpec
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.inference.generator import Generator, check_vocabulary
from atelier.engine.inference.models import TextModel, WholeModel
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.model.contract import Model, stored
from atelier.engine.model.load import blank, build, read_weights
from atelier.engine.model.placement import fill
from atelier.engine.parallel.gang import Gang
from atelier.engine.tier.ring import read_model_within


def bare(spec: ModelSpec, dtype: torch.dtype) -> Model:
    """The model without memory for its weights."""
    with blank():
        return build(spec).to(dtype).requires_grad_(False).eval()


def filled(model: Model, weights: Mapping[str, Tensor], device: torch.device) -> Model:
    """The model, or this rank's part of it, with these weights."""
    model.to_empty(device=device)
    for name, weight in stored(model):
        fill(weight, partial(weights.__getitem__, name))
    return model


@contextmanager
def opened(
    source: ArtifactInput,
    scratch: Path,
    layout: InferenceLayout,
    gang: Gang,
    *,
    dtype: torch.dtype,
    memory: int = 0,
    place: str = "--memory",
) -> Iterator[TextModel | None]:
    """The model of an artifact: in this process, with at most `memory` bytes of weights in memory at once (0
    = all), or over the ranks of a gang; None on ranks that have followed rank 0. Raises ConfigError at
    `place` for too little memory, or any limit in a gang; otherwise as `read_weights`.
    """
    if gang.world == 1:
        model, _ = read_model_within(source, scratch, memory, device=gang.device, dtype=dtype, place=place)
        yield cast(WholeModel, model.eval())
        return
    if memory:
        raise ConfigError(place, "is for a model on one rank", "leave it out, or use one rank")
    weights, spec = read_weights(source, scratch)
    with opened_weights(spec, weights, layout, gang, dtype) as asked:
        yield asked


@contextmanager
def opened_generator(
    source: ArtifactInput, scratch: Path, layout: InferenceLayout, gang: Gang, *, memory: int = 0
) -> Iterator[Generator | None]:
    """A model artifact with its tokenizer, as `opened`; weights and arithmetic in float32. Raises ConfigError
    if their vocabularies differ.
    """
    with opened(source, scratch, layout, gang, dtype=torch.float32, memory=memory) as model:
        yield None if model is None else _with_tokenizer(model, source, scratch)


def read_generator(
    source: ArtifactInput, scratch: Path, device: torch.device, *, memory: int = 0
) -> Generator:
    """The same in this process."""
    model, _ = read_model_within(source, scratch, memory, device=device, dtype=torch.float32)
    return _with_tokenizer(cast(WholeModel, model), source, scratch)


def _with_tokenizer(model: TextModel, source: ArtifactInput, scratch: Path) -> Generator:
    vocabulary = Vocabulary.of(source, scratch)
    check_vocabulary(vocabulary, model.spec, source.url)
    return Generator(model, vocabulary)


@contextmanager
def opened_weights(
    spec: ModelSpec, weights: Mapping[str, Tensor], layout: InferenceLayout, gang: Gang, dtype: torch.dtype
) -> Iterator[TextModel | None]:
    """As `opened`, of a model with these weights."""
    if gang.world == 1:
        yield cast(WholeModel, filled(bare(spec, dtype), weights, gang.device))
        return
    # the libraries of a gang take a second to import
    split = importlib.import_module("atelier.engine.inference.split")
    model = split.split_model(spec, weights, layout, gang, dtype)
    if not gang.is_first:
        model.follow()
        yield None
        return
    try:
        yield model
    finally:
        model.stop()
