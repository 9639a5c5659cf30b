"""Codecs: decoded values, bytes and refusals. Shapes and numbers are drawn from seeds."""

import math
import random
import re

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.extensions.sites.codecs import decode, encode
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.encoded import message_bytes, parts_of
from atelier.engine.io.tensorfile import TensorEntry
from atelier.engine.io.weight_files import METADATA
from atelier.engine.model.weights import bytes_of, entry_of

CODECS = [
    Codec(),
    Codec(kind="bf16"),
    Codec(kind="int8"),
    Codec(kind="int4", block=32),
    Codec(kind="int2", block=8),
    Codec(kind="topk", share=0.1),
    Codec(kind="powersgd", rank=2),
]
LOSSY = [codec for codec in CODECS if codec.is_lossy]
SEEDS = range(30)


def name_of(codec: Codec) -> str:
    return codec.kind


def drawn(seed: int) -> Tensor:
    """A tensor of one to three dims, sometimes empty, of zeros, tiny or with a few large numbers."""
    draw = random.Random(seed)
    shape = [draw.choice([0, 1, 3, 8, 17, 33, 64]) for _ in range(draw.randint(1, 3))]
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    kind = draw.choice(["plain", "zeros", "tiny", "heavy"])
    if kind == "heavy":
        numbers[torch.rand(shape, generator=torch.Generator().manual_seed(seed + 1)) < 0.02] *= 1e4
    return numbers * {"zeros": 0.0, "tiny": 1e-44}.get(kind, 1.0)


def sent(codec: Codec, whole: Tensor, seed: int = 0) -> tuple[TensorEntry, list[Tensor]]:
    entry = entry_of("w", tuple(whole.shape), whole.dtype)
    return entry, encode(codec, entry, whole, seed)


def returned(codec: Codec, whole: Tensor, seed: int = 0) -> Tensor:
    entry, parts = sent(codec, whole, seed)
    return decode(codec, entry, parts, "w")


@pytest.mark.parametrize("codec", CODECS, ids=name_of)
def test_a_message_has_the_bytes_types_and_shapes_that_the_arithmetic_says(codec: Codec) -> None:
    for seed in SEEDS:
        whole = drawn(seed)
        entry, parts = sent(codec, whole)
        expected = parts_of(codec, entry)
        found = [
            entry_of(part.name, tuple(one.shape), one.dtype)
            for part, one in zip(expected, parts, strict=True)
        ]
        assert found == expected, seed
        assert [len(bytes_of(one)) for one in parts] == [part.num_bytes for part in expected], seed
        named = {part.name: one for part, one in zip(expected, parts, strict=True)}
        assert message_bytes(codec, [entry]) == len(save(named, METADATA)), seed


@pytest.mark.parametrize("codec", CODECS, ids=name_of)
def test_what_comes_back_is_as_near_as_the_codec_promises(codec: Codec) -> None:
    for seed in SEEDS:
        whole = drawn(seed)
        found = returned(codec, whole)
        assert found.shape == whole.shape and found.dtype == torch.float32
        wrong = (found - whole).flatten()
        if codec.kind == "none":
            assert torch.equal(found, whole)
        elif codec.kind == "bf16":
            assert (wrong.abs() <= whole.flatten().abs() * 2**-8 + 1e-40).all(), seed
        elif codec.bits and whole.numel():
            blocks = torch.nn.functional.pad(whole.flatten(), (0, -whole.numel() % codec.block))
            steps = blocks.view(-1, codec.block).abs().amax(1) / (2 ** (codec.bits - 1) - 1)
            most = steps.repeat_interleave(codec.block)[: whole.numel()] / 2
            assert (wrong.abs() <= most * 1.001 + 1e-43).all(), seed
            assert not found[whole == 0].any()
        elif codec.kind == "topk":
            kept = found.flatten() != 0
            assert torch.equal(found.flatten()[kept], whole.flatten()[kept])
            assert kept.sum() <= math.ceil(codec.share * whole.numel())
            rest = whole.flatten()[~kept].abs()
            assert not kept.any() or not len(rest) or rest.max() <= found.flatten()[kept].abs().min()
        else:  # a projection
            assert wrong.norm() <= whole.norm() * (1 + 1e-5) + 1e-40, seed


def test_powersgd_gives_a_matrix_of_its_rank_back() -> None:
    generator = torch.Generator().manual_seed(1)
    left, right = torch.randn(40, 2, generator=generator), torch.randn(30, 2, generator=generator)
    whole = (left @ right.T).view(5, 8, 30)
    assert (returned(Codec(kind="powersgd", rank=2), whole) - whole).abs().max() < 1e-4


@pytest.mark.parametrize("codec", LOSSY, ids=name_of)
def test_with_feedback_the_sum_of_what_is_sent_approaches_the_sum_of_what_was_meant(codec: Codec) -> None:
    """What is missing stays as large as one round loses; without feedback it grows with the rounds."""
    generator = torch.Generator().manual_seed(3)
    drift, rounds = torch.randn(48, 40, generator=generator) * 0.1, 200
    missing = {}
    for has_feedback in (True, False):
        meant, arrived, rest = torch.zeros(48, 40), torch.zeros(48, 40), torch.zeros(48, 40)
        for number in range(rounds):
            own = drift + torch.randn(48, 40, generator=torch.Generator().manual_seed(number)) * 0.01
            given = own + rest
            found = returned(codec, given, number)
            rest = given - found if has_feedback else rest
            meant, arrived = meant + own, arrived + found
        missing[has_feedback] = float((meant - arrived).norm() / meant.norm())
        if has_feedback:
            assert (meant - arrived - rest).norm() < 1e-3 * meant.norm()
    assert missing[True] < 0.25 * missing[False]
    assert missing[True] < {"topk": 0.2, "powersgd": 0.2}.get(codec.kind, 0.02)


def poisoned(codec: Codec) -> list[tuple[str, int, Tensor]]:
    """What is wrong, in which part, and the part."""
    _, parts = sent(codec, torch.randn(24, 40, generator=torch.Generator().manual_seed(5)))
    found: list[tuple[str, int, Tensor]] = []
    for place, part in enumerate(parts):
        if part.dtype.is_floating_point:
            for number in (float("nan"), float("inf")):
                bad = part.clone()
                bad.view(-1)[-1] = number
                found.append(("is not finite", place, bad))
    if codec.bits:
        codes = parts[1].clone()
        codes[3] = 255
        found.append(("has a code above", 1, codes))
        if codec.bits > 2:  # a finite scale, and too large a product
            found.append(("is not finite", 0, torch.full_like(parts[0], 3e38)))
    if codec.kind == "topk":
        for where, index in ((0, -1), (-1, 24 * 40), (5, int(parts[0][4])), (5, 0)):
            places = parts[0].clone()
            places[where] = index
            found.append(("its indices do not rise from 0 to below 960", 0, places))
    if codec.kind == "powersgd":
        found.append(("is not finite", 0, parts[0] * 3e38))
    return found


@pytest.mark.parametrize("codec", LOSSY, ids=name_of)
def test_poisoned_parts_are_refused_with_their_place(codec: Codec) -> None:
    entry, parts = sent(codec, torch.randn(24, 40, generator=torch.Generator().manual_seed(5)))
    cases = poisoned(codec)
    assert cases
    for problem, at, bad in cases:
        with pytest.raises(DataError, match=re.escape("mail/b: w") + f".*{problem}"):
            decode(codec, entry, [*parts[:at], bad, *parts[at + 1 :]], "mail/b: w")


def test_a_field_of_another_codec_is_refused() -> None:
    with pytest.raises(ValueError, match=r"codec.share does nothing with kind=int4; it is for topk"):
        Codec(kind="int4", share=0.5)
    with pytest.raises(ConfigError, match=r"too many numbers .2147483648."):
        parts_of(Codec(kind="topk"), TensorEntry("w", "F32", (2**16, 2**15)))
