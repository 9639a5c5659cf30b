"""An event that ends one rank's wait for other sites ends the wait of all ranks, with the same error."""

import json
from pathlib import Path

from tests.engine.extensions.sites.inbox_gang import CASES
from tests.forks import gang_errors

ENDS = {"stop": "StoppedError: stopped while m waited for b", "damage": "DamageError: "}


def test_what_one_rank_meets_ends_all(tmp_path: Path) -> None:
    told = gang_errors("tests.engine.extensions.sites.inbox_gang", tmp_path, 2, str(tmp_path), timeout_s=60)
    assert not told, told
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    for (what, rank), *ends in zip(CASES, *found, strict=True):
        assert ends[0] == ends[1] and ends[0].startswith(ENDS[what]), (what, rank, ends)
