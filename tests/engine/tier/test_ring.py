"""Models larger than the memory for them compute the same bits as in memory, for drawn shapes and memories;
too little memory is refused with the needed amount.
"""

import gc
import random
import time
import weakref
from concurrent.futures import Future
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

from atelier.engine.config.blocks import MLPS
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.config.experts import Experts
from atelier.engine.config.generation import Sampling
from atelier.engine.config.model.ernie import Ernie
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.router.hash import Hash
from atelier.engine.config.router.topk import TopK
from atelier.engine.inference.opened import read_generator
from atelier.engine.inference.scoring import read_held_out, text_nats
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.model.contract import Model
from atelier.engine.model.load import blank, build, read_model, read_weights
from atelier.engine.plan.streamed import least_bytes
from atelier.engine.tier.buffers import Backing
from atelier.engine.tier.pieces import StoredUnits
from atelier.engine.tier.ring import Ring, outputs_of, read_model_within, ring_of
from tests.engine.scored_models import Study

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Study:
    return Study(tmp_path_factory.mktemp("ring"))


def drawn_spec(draw: random.Random, vocab: int) -> ModelSpec:
    layers = draw.randint(3, 6)
    shape = {
        "num_layers": layers,
        "hidden": 32,
        "num_heads": 2,
        "vocab": vocab,
        "init_std": 0.3,
        "mlp": draw.choice(tuple(MLPS)),
        "tied": draw.random() < 0.5,
        "norm": draw.choice(["rms", "layer"]),
    }
    if draw.random() < 0.7:
        experts = draw.choice([2, 3, 8])
        router = draw.choice([TopK(), TopK(balance="bias"), Hash()])
        each = Experts(
            ffn=draw.choice(["auto", 24, 100]),
            shared=draw.randint(0, 1),
            every=draw.randint(1, 2),
            router=router,
        )
        shape |= {"num_experts": experts, "experts_per_token": min(2, experts), "experts": each}
    if draw.random() < 0.3:
        shape.pop("tied")
        return Ernie(**shape)
    return GPT(**shape)


def batch_of(draw: random.Random, vocab: int, rows: int, tokens: int) -> dict[str, Tensor]:
    ids = torch.tensor([[draw.randrange(vocab) for _ in range(tokens)] for _ in range(rows)])
    return {
        "tokens_BT": ids,
        "positions_BT": torch.arange(tokens).expand(rows, -1),
        "documents_BT": torch.zeros_like(ids),
    }


def within(source: ArtifactInput, study: Study, memory: int) -> tuple[Model, ModelSpec]:
    return read_model_within(source, study.scratch, memory, device=CPU, dtype=torch.float32)


def least_of(model_input: ArtifactInput, study: Study) -> int:
    """The least memory in bytes, as the refusal of 1 byte says it."""
    with pytest.raises(ConfigError, match="is the minimum for this model") as found:
        within(model_input, study, 1)
    return int(float(found.value.way_out.split()[0]) * 1e9)


def hidden(model: Model, batch: dict[str, Tensor]) -> Tensor:
    with torch.inference_mode():
        return model.eval()(batch).hidden


@pytest.mark.parametrize("seed", range(12))
def test_any_shape_in_any_memory_computes_the_bits_of_all_in_memory(study: Study, seed: int) -> None:
    draw = random.Random(seed)
    spec = drawn_spec(draw, study.vocabulary.size)
    source = study.model_of(spec, f"m{seed}", most=draw.choice([20_000, 1 << 30]))
    whole, _ = read_model(source, study.scratch, dtype=torch.float32)
    total = sum(weight.numel() * 4 for weight in whole.parameters())
    least = least_of(source, study)
    assert least_bytes(spec, 4, line=1) <= least <= 1.01 * least_bytes(spec, 4)  # as plans say
    memory = draw.randint(min(least, total - 1), total - 1)
    ringed, _ = within(source, study, memory)
    for _ in range(3):
        batch = batch_of(draw, spec.tokens, draw.randint(1, 3), draw.randint(1, 20))
        assert torch.equal(hidden(ringed, batch), hidden(whole, batch))
    if (ring := ring_of(ringed)) is not None:  # else the lines that weights begin in made the difference
        counts = cast(dict[str, int], ring.counts())
        experts, blocks = ring.expert_buffers, ring.block_buffers
        assert counts["experts_in_memory"] <= experts.size <= counts["experts"]
        assert counts["blocks_in_memory"] <= ring.shares.stay + blocks.size
        assert counts["experts_met"] == experts.hits + counts["experts_read"]


@pytest.mark.parametrize("experts", [0, 8])
def test_text_is_the_same_and_no_more_than_the_memory_is_held(study: Study, experts: int) -> None:
    spec = GPT(
        num_layers=6, hidden=32, num_heads=2, vocab=study.vocabulary.size, num_experts=experts, init_std=0.3
    )
    source = study.model_of(spec, f"e{experts}")
    least = least_of(source, study)
    how = Sampling(max_tokens=30, temperature=1.0, seed=3)
    wanted = read_generator(source, study.scratch, CPU).text("Poem 3", how)
    for memory in (least, least + 20_000):
        generator = read_generator(source, study.scratch, CPU, memory=memory)
        assert generator.text("Poem 3", how) == wanted
        assert held(cast(Model, generator.model)) <= memory
    assert wanted


def held(model: Model) -> int:
    """Bytes of all buffers of a streamed model, and of weights that stay."""
    ring = ring_of(model)
    assert ring is not None
    buffers = (ring.block_buffers.buffers, ring.expert_buffers.buffers)
    weights = [weight for weight in model.parameters() if not weight.is_meta]
    found = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in (*buffers, *weights)
    }
    return sum(found.values())


def test_what_fits_is_not_streamed(study: Study) -> None:
    source = study.model("fits")
    model, _ = within(source, study, 10**9)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert not any(weight.is_meta for weight in model.parameters())


def test_a_cyclic_pass_reads_only_the_blocks_that_do_not_stay_and_each_once(study: Study) -> None:
    spec = GPT(num_layers=8, hidden=32, num_heads=2, vocab=study.vocabulary.size)
    source = study.model_of(spec, "cyclic")
    files, _ = read_weights(source, study.scratch)
    with blank():
        model = build(spec)
    block = (4 * 32 * 32 + 3 * 32 * spec.inner + 64) * 4
    ring = Ring(
        model, files, least_of(source, study) + 3 * block + 5000, device=CPU, dtype=torch.float32, place=""
    )
    assert ring.shares.stay == 3
    before = ring.bytes_read
    batch = batch_of(random.Random(0), spec.tokens, 1, 4)
    for _ in range(4):
        hidden(model, batch)
    ring.worker.close()
    assert 4 * 5 * block <= ring.bytes_read - before <= (4 * 5 + 1) * block  # and one ahead of the next


@pytest.mark.parametrize("experts", [0, 8])
def test_scores_are_the_same_and_blocks_are_read_once_for_many_batches(study: Study, experts: int) -> None:
    shape = {"num_layers": 6, "hidden": 32, "num_heads": 2, "num_experts": experts, "init_std": 0.3}
    source = study.model_of(GPT(vocab=study.vocabulary.size, **shape), f"scored{experts}")
    whole, _ = read_model(source, study.scratch, dtype=torch.float32)
    model, _ = within(source, study, least_of(source, study))
    text = read_held_out(study.tokens, study.vocabulary, study.scratch, 400)
    vocab = study.vocabulary.size
    nats = [
        text_nats(each.eval(), text, sequence=16, vocab=vocab, advance=lambda _: None)
        for each in (whole, model)
    ]
    assert nats[0] == nats[1]
    ring = ring_of(model)
    assert ring is not None
    batches = [batch_of(random.Random(n), vocab, 2, 5 + n) for n in range(7)]
    before = ring.block_buffers.misses
    with torch.inference_mode():
        for batch, output in zip(batches, outputs_of(model, batches), strict=True):
            assert torch.equal(output.hidden, whole(batch).hidden)
    assert ring.block_buffers.misses - before <= 7  # six blocks, and one ahead of the next pass


def test_a_file_that_loses_its_end_is_said_so(study: Study, tmp_path: Path) -> None:
    spec = GPT(num_layers=6, hidden=32, num_heads=2, vocab=study.vocabulary.size)
    source = study.model_of(spec, "cut")
    model, _ = read_model_within(
        source, study.scratch, least_of(source, study), device=CPU, dtype=torch.float32
    )
    batch = batch_of(random.Random(0), spec.tokens, 1, 4)
    file = study.file(source, "model.safetensors")
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size // 2)
    with pytest.raises(AtelierError, match="ends before byte"):
        for _ in range(2):
            hidden(model, batch)


def test_a_guess_that_was_wrong_gives_its_buffer_up(study: Study) -> None:
    spec = GPT(num_layers=6, hidden=32, num_heads=2, vocab=study.vocabulary.size)
    source = study.model_of(spec, "guess")
    model, _ = read_model_within(
        source, study.scratch, least_of(source, study), device=CPU, dtype=torch.float32
    )
    whole, _ = read_model(source, study.scratch, dtype=torch.float32)
    order, x_BTD = [0, 3, 1, 5, 2, 4, 4, 0], torch.randn(1, 4, 32)
    batch = batch_of(random.Random(0), spec.tokens, 1, 4)
    for number in order:
        with torch.inference_mode():
            args = [(m.blocks[number], m.shared(batch)) for m in (model, whole)]
            got, wanted = (block(x_BTD, shared.rope, shared.mask).hidden_BTD for block, shared in args)
        assert torch.equal(got, wanted)


class Slow:
    """A file that takes its time."""

    def __init__(self, backing: Backing) -> None:
        self.backing = backing

    def read(self, unit: int, into: Tensor) -> None:
        time.sleep(0.05)
        self.backing.read(unit, into)

    def write(self, unit: int, state: Tensor) -> None:
        self.backing.write(unit, state)


@pytest.mark.parametrize("waits", [True, False])
def test_a_slow_file_is_waited_for_and_without_waiting_the_bits_would_differ(
    study: Study, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    spec = GPT(num_layers=6, hidden=32, num_heads=2, vocab=study.vocabulary.size)
    source = study.model_of(spec, "slow")
    whole, _ = read_model(source, study.scratch, dtype=torch.float32)
    model, _ = within(source, study, least_of(source, study))
    ring = ring_of(model)
    assert ring is not None
    ring.block_buffers.backing = Slow(ring.block_buffers.backing)
    if not waits:
        monkeypatch.setattr(Future, "result", lambda self: None)
    batch = batch_of(random.Random(0), spec.tokens, 1, 4)
    assert torch.equal(hidden(model, batch), hidden(whole, batch)) == waits


def test_an_error_in_a_block_gives_its_buffers_back(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = GPT(num_layers=6, hidden=32, num_heads=2, vocab=study.vocabulary.size, num_experts=4)
    source = study.model_of(spec, "errors")
    model, _ = within(source, study, least_of(source, study))
    whole, _ = read_model(source, study.scratch, dtype=torch.float32)
    batch = batch_of(random.Random(0), spec.tokens, 1, 4)
    read = StoredUnits.read

    def failing(self: StoredUnits, unit: int, into: Tensor) -> None:
        raise OSError("the disk fails")

    for _ in range(5):
        monkeypatch.setattr(StoredUnits, "read", failing)
        with pytest.raises(OSError, match="the disk fails"):
            hidden(model, batch)
        monkeypatch.setattr(StoredUnits, "read", read)
    assert torch.equal(hidden(model, batch), hidden(whole, batch))


def assert_a_model_goes_when_nobody_has_it(study: Study) -> None:
    spec = GPT(num_layers=6, hidden=32, num_heads=2, vocab=study.vocabulary.size)
    source = study.model_of(spec, "goes")
    model, _ = within(source, study, least_of(source, study))
    known = weakref.ref(model)
    hidden(model, batch_of(random.Random(0), spec.tokens, 1, 4))
    del model
    gc.collect()
    assert known() is None


def test_a_streamed_model_goes_when_nobody_has_it(study: Study) -> None:
    assert_a_model_goes_when_nobody_has_it(study)
