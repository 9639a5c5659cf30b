"""Random products against one process; every kind takes part in them.

The same products each time, as many as the machine tries in two minutes; ATELIER_PRODUCTS_SEED=7
ATELIER_PRODUCTS_S=600 tries others, for longer. benchmarks/products.py takes an hour and a random seed.
"""

import os
from itertools import islice
from pathlib import Path

import pytest

from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.registry import kinds
from tests.parity import trials
from tests.parity.detectors import DETECTED
from tests.parity.objectives import OWN, TAUGHT
from tests.parity.products import MODELS, OPTIMISERS, Product, product, products, regathers
from tests.parity.trials import try_for, try_some

SECONDS, SEED = 120.0, 611


def has_other_rows(one: Product) -> bool:
    axes = one.layout.axes_of
    return any(axes(name).data > axes(role.teacher).data for name, role in one.roles.items() if role.teacher)


def has_other_padding(one: Product) -> bool:
    """Than the teacher with whose logits it is compared."""
    return any(
        getattr(role.model, "vocab_padding", 0) != getattr(one.roles[role.teacher].model, "vocab_padding", 0)
        for role in one.roles.values()
        if any(type(spec).reads_logits_only for spec in role.objective.values())
    )


def has_decoder(one: Product) -> bool:
    return any(type(role.model) is GPT for role in one.roles.values())


def has_memories(one: Product) -> bool:
    models = [role.model for role in one.roles.values()]
    return any(isinstance(model, GPT) and bool(model.memory.blocks) for model in models)


@pytest.mark.parametrize(
    ("group", "drawn"),
    [("model", {*MODELS}), ("objective", {*OWN, *TAUGHT, *DETECTED}), ("optim", {*OPTIMISERS})],
)
def test_every_kind_takes_part_in_the_products(group: str, drawn: set[str]) -> None:
    assert drawn == set(kinds(group))


@pytest.mark.slow
def test_padding_of_the_vocabulary_and_memories_take_part_in_the_products() -> None:
    drawn = list(islice(products(1, 4), 60))
    padded = [one for one in drawn if any(getattr(r.model, "vocab_padding", 0) for r in one.roles.values())]
    for some in (padded, [one for one in drawn if has_memories(one)]):
        assert len(some) > 5 and any(one.layout.tensor > 1 for one in some)


@pytest.mark.slow
def test_students_with_other_padding_than_their_teacher_learn_alike_on_every_layout(tmp_path: Path) -> None:
    """The same products each time: on some the vocabulary is split."""
    drawn = (one for one in products(1, 4) if has_other_padding(one) and one.train.precision == "fp64")
    some = list(islice((one for one in drawn if one.layout.tensor > 1), 3))
    found = try_some(some, tmp_path)
    assert not found.failures and len(some) == 3, found.told()


@pytest.mark.slow
def test_roles_that_detect_take_part_in_the_products() -> None:
    drawn = [
        one for one in islice(products(1, 4), 80) if any(role.reads_changed for role in one.roles.values())
    ]
    assert len(drawn) > 4 and any(one.layout.tensor * one.layout.pipeline > 1 for one in drawn)


@pytest.mark.slow
def test_students_that_lie_otherwise_than_their_teacher_learn_from_all_its_heads(tmp_path: Path) -> None:
    """The same products each time: those in which a student's ranks have rows of their own."""
    drawn = (one for one in products(1, 4) if regathers(one) and one.train.precision == "fp64")
    some = list(islice((one for one in drawn if has_other_rows(one)), 4))
    found = try_some(some, tmp_path)
    assert not found.failures and len(some) == 4, found.told()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_attention_by_the_ends_of_documents_gives_what_masks_give(ranks: int, tmp_path: Path) -> None:
    """In gangs that read them as on GPUs; the same products each time, with windows, context and lessons."""
    drawn = (one for one in products(65, ranks) if one.train.precision == "fp64" and has_decoder(one))
    some = list(islice(drawn, 6)) + list(islice((one for one in drawn if one.layout.context > 1), 2))
    found = try_some(some, tmp_path, "tests.parity.packed")
    assert not found.failures, found.told()


@pytest.mark.slow
def test_random_products_give_what_one_process_gives(tmp_path: Path) -> None:
    seed = int(os.environ.get("ATELIER_PRODUCTS_SEED", SEED))
    found = try_for(float(os.environ.get("ATELIER_PRODUCTS_S", SECONDS)), seed, tmp_path, until_wrong=True)
    print(f"seed {seed}: {found.told()}")
    assert not found.failures, f"seed {seed}: {found.told()}; {', '.join(found.failures)}"
    assert found.tried


@pytest.mark.slow
def test_a_product_in_bf16_may_be_apart_by_what_bf16_rounds_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = product("398187/2/716")
    assert one is not None and one.train.precision == "bf16"
    found = try_some([one], tmp_path / "as it is")
    assert not found.failures, found.told()
    monkeypatch.setattr(trials.Workbench, "_rounding", lambda *_: 1e-7)
    assert try_some([one], tmp_path / "with less").failures


@pytest.mark.slow
def test_a_product_whose_experts_tie_in_bf16_is_judged_in_fp32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = product("346052/4/456")
    assert one is not None and one.train.precision == "bf16" and trials.chooses_experts(one)
    found = try_some([one], tmp_path / "as it is")
    assert not found.failures and found.tried[4] == 2, found.told()
    monkeypatch.setitem(trials.BOUNDS, "fp32", (1e-9, None))
    assert [*try_some([one], tmp_path / "with less").failures] == ["346052/4/456/fp32"]
