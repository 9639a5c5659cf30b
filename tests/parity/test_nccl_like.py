"""Trainings finish in a gang whose messages block each other as with NCCL."""

import re
from pathlib import Path

import pytest

from atelier.engine.config.parallel import Parallel
from tests.forks import gang_errors
from tests.parity.cases import Parity, apart, layout

NCCL_LIKE = "tests.parity.nccl_like"
TWO: dict[str, tuple[Parallel, str]] = {
    schedule: (layout(pipeline=2, schedule=schedule), "taught") for schedule in ("1f1b", "interleaved", "zb")
}
FOUR: dict[str, tuple[Parallel, str]] = {
    "pipeline of 4": (layout(pipeline=4), "taught"),
    "interleaved x tensor": (layout(pipeline=2, schedule="interleaved", tensor=2), "taught"),
    "zero-bubble x tensor": (layout(pipeline=2, schedule="zb", tensor=2), "taught"),
    "pipeline x shard": (layout(pipeline=2, shard=2), "taught"),
    "pipeline x expert": (layout(pipeline=2, expert=2), "mixed"),
    "context x tensor": (layout(context=2, tensor=2), "taught"),
}


@pytest.mark.slow
@pytest.mark.parametrize("cases", [TWO, FOUR], ids=["two", "four"])
def test_trainings_end_as_in_one_process(cases: dict[str, tuple[Parallel, str]], tmp_path: Path) -> None:
    parity = Parity(tmp_path)
    parity.run(cases, NCCL_LIKE)
    for name, (_, training) in cases.items():
        role = "moe" if training == "mixed" else "teacher"
        curve, weights = apart(parity.beside(training), parity.setups[name], role)
        assert curve < 1e-10 and weights < 1e-8, name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sends first", r"rank \d hangs: send to \d \[3\], then receive from \d \[3\]"),
        ("other sizes", "mismatch"),
        ("together", ""),
    ],
)
def test_what_would_hang_or_fail_does_so_here(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_LIKE_S", "3" if said else "60")
    told = gang_errors("tests.parity.gang", tmp_path, 2, NCCL_LIKE, name)
    assert re.search(said, told) if said else not told
