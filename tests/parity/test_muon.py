"""Ranks that split matrices share the orthogonalisation of whole ones."""

import json
from pathlib import Path

import pytest

from tests.forks import start_gang
from tests.parity.muon import SHAPES

pytestmark = pytest.mark.slow


def test_each_of_four_ranks_orthogonalises_its_share_and_all_have_all_results(tmp_path: Path) -> None:
    start_gang("tests.parity.gang", tmp_path, 4, "tests.parity.muon", str(tmp_path))
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert sum(rank["done"] for rank in ranks) == len(SHAPES)
    assert all(0 < rank["done"] < len(SHAPES) / 2 for rank in ranks)
    assert all(rank["apart"] == 0.0 for rank in ranks)
