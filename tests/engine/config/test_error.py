"""Errors that show text from other programs or users."""

import random

import pytest

from atelier.engine.config.error import UNSEEN, ConfigError, printable

NASTY = "\n\r\t\x1b\x00\x9b\u202e\u2066\ufeff\udcff\x7f ab\u00e9\u6f22"


@pytest.mark.parametrize("seed", range(50))
def test_whatever_is_shown_is_on_one_line_harmless_and_short(seed: int) -> None:
    draw = random.Random(seed)
    text = "".join(draw.choices(NASTY, k=draw.randint(0, 400)))
    most = draw.randint(20, 200)
    seen = printable(text, most)
    assert len(seen) <= most and not UNSEEN.search(seen)
    assert seen.encode() and len(seen.splitlines()) <= 1
    error = ConfigError(text, text, text)
    assert not UNSEEN.search(str(error)) and str(error).encode()


def test_a_text_without_harm_is_shown_as_it_is_and_a_long_one_keeps_both_ends() -> None:
    assert printable("data.source: caf\u00e9 \u6f22") == "data.source: caf\u00e9 \u6f22"
    assert printable("a\nb", keep="\n") == "a\nb"
    assert printable("x" * 5000, 0) == "x" * 5000
    long = printable(f"first{'-' * 1_000_000}last", 60)
    assert long.startswith("first") and long.endswith("last") and len(long) == 60
    assert printable("\x1b[2J") == "\\x1b[2J"
