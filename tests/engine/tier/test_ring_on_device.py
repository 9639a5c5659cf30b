"""Streamed models that compute on a device, played by a CPU that copies late: the bits of all in memory."""

import random

import pytest
import torch

from atelier.engine.config.model.gpt import GPT
from atelier.engine.model.load import read_model
from atelier.engine.tier import ring as ring_file
from atelier.engine.tier.on_device import DeviceBuffers
from atelier.engine.tier.ring import outputs_of, ring_of
from tests.engine.scored_models import Study
from tests.engine.tier.late_copies import Late, LateCopies
from tests.engine.tier.test_ring import (
    assert_a_model_goes_when_nobody_has_it,
    batch_of,
    drawn_spec,
    hidden,
    least_of,
    within,
)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(tmp_path_factory.mktemp("ring"))


@pytest.fixture(autouse=True)
def copies_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_file, "copies_to", lambda device: LateCopies())


@pytest.mark.parametrize("seed", range(6))
def test_any_shape_in_any_memory_computes_the_bits_of_all_in_memory(study: Study, seed: int) -> None:
    draw = random.Random(seed)
    spec = drawn_spec(draw, study.vocabulary.size)
    source = study.model_of(spec, f"m{seed}")
    whole, _ = read_model(source, study.scratch, dtype=torch.float32)
    least = least_of(source, study)
    memory = draw.randint(least, int(1.2 * least))
    ringed, _ = within(source, study, memory)
    for _ in range(3):
        batch = batch_of(draw, spec.tokens, draw.randint(1, 3), draw.randint(1, 20))
        assert torch.equal(hidden(ringed, batch), hidden(whole, batch))
    if (ring := ring_of(ringed)) is not None:
        for buffers in (ring.block_buffers, ring.expert_buffers):
            assert isinstance(buffers, DeviceBuffers) and buffers.most <= buffers.size
            assert buffers.host.size <= 4  # of the host's ring


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_a_copy_is_waited_for_and_without_waiting_the_bits_would_differ(
    study: Study, monkeypatch: pytest.MonkeyPatch, is_waited_for: bool
) -> None:
    shape = {"num_layers": 6, "hidden": 32, "num_heads": 2, "num_experts": 8, "init_std": 0.3}
    source = study.model_of(GPT(vocab=study.vocabulary.size, **shape), "waits")
    whole, spec = read_model(source, study.scratch, dtype=torch.float32)
    model, _ = within(source, study, least_of(source, study))
    if not is_waited_for:
        monkeypatch.setattr(Late, "wait", lambda self: None)
    batches = [batch_of(random.Random(n), spec.tokens, 2, 5 + n) for n in range(4)]
    with torch.inference_mode():
        pairs = zip(batches, outputs_of(model.eval(), batches), strict=True)
        same = [torch.equal(output.hidden, whole(batch).hidden) for batch, output in pairs]
    assert all(same) if is_waited_for else not any(same)


def test_a_pass_copies_a_block_once_for_many_batches(study: Study) -> None:
    spec = GPT(num_layers=6, hidden=32, num_heads=2, vocab=study.vocabulary.size)
    source = study.model_of(spec, "once")
    model, _ = within(source, study, least_of(source, study))
    batches = [batch_of(random.Random(n), spec.tokens, 2, 5) for n in range(7)]
    with torch.inference_mode():
        assert len(list(outputs_of(model.eval(), batches))) == 7
    ring = ring_of(model)
    assert ring is not None and 6 <= ring.block_buffers.misses <= 7  # and one ahead of the next pass
    assert ring.counts()["experts_read"] == 0


def test_a_streamed_model_goes_when_nobody_has_it(study: Study) -> None:
    assert_a_model_goes_when_nobody_has_it(study)
