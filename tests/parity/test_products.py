"""Random products against one process, and that every kind that there is takes part in them.

ATELIER_PRODUCTS_SEED=7 ATELIER_PRODUCTS_S=600 repeats the products of a seed, or tries for longer.
"""

import os
import random
from pathlib import Path

import pytest

from atelier.engine.config.registry import kinds
from tests.parity.products import MODELS, OPTIMISERS, OWN, TAUGHT
from tests.parity.trials import try_for

SECONDS = 120.0


@pytest.mark.parametrize(
    ("group", "drawn"),
    [("model", {*MODELS}), ("objective", {*OWN, *TAUGHT}), ("optim", {*OPTIMISERS})],
)
def test_every_kind_takes_part_in_the_products(group: str, drawn: set[str]) -> None:
    assert drawn == set(kinds(group))


@pytest.mark.slow
def test_random_products_give_what_one_process_gives(tmp_path: Path) -> None:
    seed = int(os.environ.get("ATELIER_PRODUCTS_SEED", random.SystemRandom().randrange(10**6)))
    found = try_for(float(os.environ.get("ATELIER_PRODUCTS_S", SECONDS)), seed, tmp_path, until_wrong=True)
    print(f"seed {seed}: {found.told()}")
    assert not found.failures, f"seed {seed}: {found.told()}; {', '.join(found.failures)}"
    assert found.tried
