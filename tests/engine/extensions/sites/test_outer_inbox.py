"""An event that ends one rank's wait for other sites ends the wait of all ranks, with the same error."""

from pathlib import Path

import pytest

from atelier.engine.config.parallel import Parallel
from tests.engine.parallel.gangs import gang


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("what", "ends"), [("stop", "StoppedError: stopped while m waited for b"), ("damage", "DamageError: ")]
)
def test_what_one_rank_meets_ends_all(tmp_path: Path, what: str, ends: str, rank: int) -> None:
    layout = Parallel(shard=2)
    found = gang(
        "tests.engine.extensions.sites.inbox_gang", tmp_path / "gang", layout, what, str(rank), per_node=2
    )
    assert found[0] == found[1]
    assert str(found[0]).startswith(ends)
