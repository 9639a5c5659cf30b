"""A row's logits have the same bits in any batch."""

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from atelier.engine.config.base import parse
from atelier.engine.config.generation import Sampling
from atelier.engine.config.model.ernie import Ernie
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.registry import ModelSpec
from atelier.engine.data.control_prompt import Prefix
from atelier.engine.inference import rows as rows_file
from atelier.engine.inference.generator import Generator
from atelier.engine.inference.opened import read_generator
from atelier.engine.inference.rows import SLOTS, Rows, ServedRow
from atelier.engine.inference.sampling import continuation
from tests.engine.scored_models import Study

MIXTURE = {"num_experts": 4, "experts_per_token": 2}
KINDS: dict[str, tuple[type[ModelSpec], dict[str, Any]]] = {
    "rope": (GPT, {}),
    "learned": (GPT, {"positions": "learned", "max_positions": 64, "norm": "layer", "num_kv_heads": 1}),
    "window": (GPT, {"window": 5, "head_dim": 12}),
    "wide": (GPT, {"hidden": 96, "num_heads": 4, "num_layers": 3}),
    "topk": (GPT, MIXTURE | {"experts": {"shared": 1}}),
    "expert_choice": (GPT, MIXTURE | {"experts": {"router": {"kind": "expert_choice"}}}),
    "hash": (GPT, MIXTURE | {"experts": {"router": {"kind": "hash"}}}),
    "nets": (Ernie, {"nlg": {"num_layers": 2, "hidden": 24, "num_heads": 2}, "prompts": 4}),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(tmp_path_factory.mktemp("study"))


def generator_of(study: Study, name: str) -> Generator:
    kind, settings = KINDS[name]
    numbers = {"num_layers": 2, "hidden": 32, "num_heads": 2, "vocab": study.vocabulary.size, "init_std": 0.3}
    spec = parse(kind, numbers | settings, "model")
    return read_generator(study.model_of(spec, name), study.scratch, torch.device("cpu"))


class Recorded(Rows):
    """Rows that keep the logits of every draw."""

    def __init__(self, generator: Generator) -> None:
        self.logits: dict[int, list[Tensor]] = {}
        super().__init__(generator.model, generator.vocabulary.ends)

    def _draw(self, row: ServedRow, logits_V: Tensor) -> None:
        self.logits.setdefault(id(row), []).append(logits_V.clone())
        super()._draw(row, logits_V)


def texts(generator: Generator, number: int) -> list[tuple[Prefix, Sampling]]:
    """Beginnings of many lengths, every third one cold, each with a seed of its own."""
    found = []
    for n in range(number):
        how = Sampling(
            max_tokens=4 + n * 7 % 17, temperature=(n % 3) * 0.6, top_p=1 - n % 4 * 0.1, seed=n * 1000
        )
        found.append((generator.before("Poem 3: the sea is"[: 1 + n * 5 % 18], how), how))
    return found


def together(rows: Rows, asked: list[tuple[Prefix, Sampling]], most: int) -> list[ServedRow]:
    """Continue all, `most` at a time: one joins when another ends."""
    todo, running = list(enumerate(asked)), []
    done: dict[int, ServedRow] = {}
    while todo or running:
        while todo and len(running) < most:
            number, (before, how) = todo.pop(0)
            running.append((number, rows.begin(before, how)))
        done |= {number: row for number, row in running if row.is_done}
        running = [one for one in running if not one[1].is_done]
        if running:
            rows.step([row for _, row in running])
    return [done[number] for number in range(len(asked))]


@pytest.mark.parametrize("name", KINDS)
def test_a_rows_logits_have_the_bits_that_they_have_alone_and_say_what_is_generated_without_slots(
    study: Study, name: str
) -> None:
    """The latter but for rounding."""
    generator = generator_of(study, name)
    asked, ends = texts(generator, 16), generator.vocabulary.ends
    some = asked[:8]
    plain = [list(continuation(generator.model, before.ids, how, ends)) for before, how in some]
    rows = Recorded(generator)
    assert rows.are_together
    alone = [row for one in asked for row in together(rows, [one], 1)]
    beside = together(rows, asked, SLOTS)
    assert sum(len(row.ids) for row in alone) > 80
    for one, other in zip(alone, beside, strict=True):
        assert one.ids == other.ids
        for mine, its in zip(rows.logits[id(one)], rows.logits[id(other)], strict=True):
            assert torch.equal(mine, its)
    assert (
        sum(row.ids != its for row, its in zip(alone[: len(plain)], plain, strict=True)) <= 1
    )  # one of 900, measured
    # and what is not computed in slots is as it was
    before, how = some[-1]
    assert list(continuation(generator.model, before.ids, how, ends)) == plain[-1]


def test_a_model_that_rounds_by_slot_computes_every_row_by_itself(study: Study) -> None:
    generator = generator_of(study, "rope")

    class BySlot(nn.Module):
        def forward(self, x_BTD: Tensor) -> Tensor:
            return x_BTD * (1 + 1e-7 * torch.arange(len(x_BTD)))[:, None, None]

    network = cast(nn.Module, generator.model)
    network.norm = nn.Sequential(cast(nn.Module, network.norm), BySlot())
    rows = Rows(generator.model, generator.vocabulary.ends)
    assert not rows.are_together
    asked = texts(generator, 6)
    assert [row.ids for row in together(rows, asked, 6)] == [
        list(continuation(generator.model, before.ids, how, generator.vocabulary.ends))
        for before, how in asked
    ]


def test_a_model_that_looks_at_other_rows_computes_every_row_by_itself(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_file, "MoE", Rows)  # its experts' products have as many rows as tokens came
    assert not Rows(generator_of(study, "topk").model, study.vocabulary.ends).are_together
    assert Rows(generator_of(study, "rope").model, study.vocabulary.ends).are_together


def test_a_row_whose_logits_are_not_finite_ends_with_the_reason_and_others_go_on(study: Study) -> None:
    generator = generator_of(study, "rope")
    rows = Rows(generator.model, generator.vocabulary.ends)
    how = Sampling(max_tokens=9, temperature=0.0)
    good, bad = (rows.begin(generator.before(text, how), how) for text in ("Poem", "sea"))
    with torch.inference_mode():
        bad.cache.blocks[0].seen()[1][:] = torch.nan
    while not good.is_done:
        rows.step([row for row in (bad, good) if not row.is_done])
    assert bad.fault is not None and "not finite" in str(bad.fault)
    assert good.fault is None and good.ids == together(rows, [(generator.before("Poem", how), how)], 1)[0].ids


def test_a_prompt_is_read_once_and_a_pass_draws_for_all(study: Study) -> None:
    generator = generator_of(study, "rope")
    rows = Rows(generator.model, generator.vocabulary.ends)
    how = Sampling(max_tokens=12, temperature=1.0, seed=4)
    asked = [(generator.before("Poem", how), how)] * SLOTS
    (first, *_) = together(rows, asked, SLOTS)
    assert rows.num_passes == SLOTS + len(first.ids) - 1 + (len(first.ids) < 12)


def test_room_is_that_of_keys_and_values(study: Study) -> None:
    generator = generator_of(study, "learned")
    rows, how = Rows(generator.model, generator.vocabulary.ends), Sampling(max_tokens=1000)
    token = 2 * 2 * 16 * 4  # keys and values, layers, width of the one head, bytes
    assert rows.room(Prefix([1, 2], []), Sampling(max_tokens=5)) == 7 * token
    assert rows.room(Prefix([1, 2], []), how) == 65 * token  # no position lies further away
