"""The codec that a site chooses by the rate of its link."""

import random
from typing import Any

import pytest

from atelier.engine.extensions.sites.chooser import MARGIN, CodecChooser

SIZES = (4000, 2000, 1000, 500, 250)


def drawn(draw: random.Random) -> CodecChooser:
    return CodecChooser(
        delay=draw.randint(0, 20),
        interval=draw.randint(20, 50),
        stall=draw.choice((0.0, 0.05, 0.5)),
        step_s=10 ** draw.uniform(-2, 1),
        codec_s={codec: draw.uniform(0, 0.01) for codec in range(draw.randint(0, 5))},
    )


@pytest.mark.parametrize("seed", range(200))
def test_the_least_lossy_codec_that_keeps_the_time_is_taken(seed: int) -> None:
    """Each less lossy one would take longer than it may; and of more bandwidth no more is lost."""
    draw = random.Random(seed)
    chooser, peers = drawn(draw), draw.choice((("b",), ("b", "c")))
    before = len(SIZES)
    for power in range(-3, 9):
        rates: dict[str, float | None] = {peer: 10.0**power for peer in peers}
        found = chooser.choose(SIZES, rates, None)
        times = [
            chooser.seconds(codec, size, {peer: 10.0**power for peer in peers})
            for codec, size in enumerate(SIZES)
        ]
        assert all(took > chooser.time_s for took in times[:found])
        assert times[found] <= chooser.time_s or found == len(SIZES) - 1
        assert found <= before
        before = found


@pytest.mark.parametrize("seed", range(50))
def test_a_rate_at_the_border_does_not_change_it_every_round(seed: int) -> None:
    draw = random.Random(seed)
    chooser = CodecChooser(delay=10, interval=20, stall=0.0, step_s=1.0)
    border, last, changes = SIZES[2] / chooser.time_s, 2, 0
    for _ in range(100):
        found = chooser.choose(SIZES, {"b": border * draw.uniform(1.0, 1 / MARGIN)}, last)
        changes, last = changes + (found != last), found
    assert changes == 0
    assert chooser.choose(SIZES, {"b": border * 0.99}, last) == 3  # too slow for it: at once
    assert chooser.choose(SIZES, {"b": border * 2 / MARGIN * 1.01}, last) == 1


@pytest.mark.parametrize(
    ("how", "rates", "last", "found"),
    [
        ({}, (400,), None, 0),  # 4000 bytes in exactly the 10 s that they have
        ({}, (399,), None, 1),
        ({}, (400,), 0, 0),
        ({}, (400,), 1, 1),  # less lossy than the last: in 8 of the 10 s
        ({}, (499,), 1, 1),
        ({}, (500,), 1, 0),
        ({}, (400, 800), None, 0),  # to all peers at once
        ({}, (800, 399), None, 1),
        ({}, (25,), None, 4),
        ({}, (1,), None, 4),  # the lossiest, however long it takes
        ({"delay": 30}, (200,), None, 0),  # of the delay no more than there is between two messages
        ({"delay": 30}, (199,), None, 1),
        ({"delay": 0, "stall": 0.5}, (400,), None, 0),  # 10 s of the round's 20 s
        ({"delay": 0, "stall": 0.5}, (399,), None, 1),
        ({"codec_s": {0: 2.0}}, (500,), None, 0),  # the codec's own seconds
        ({"codec_s": {0: 2.0}}, (499,), None, 1),
        ({"codec_s": {1: 2.0}}, (250,), None, 1),
        ({"codec_s": {1: 2.1}}, (250,), None, 2),
    ],
)
def test_at_the_border_of_its_time_a_codec_is_taken_and_beyond_it_the_next(
    how: dict[str, Any], rates: tuple[int, ...], last: int | None, found: int
) -> None:
    given: dict[str, Any] = {"delay": 10, "interval": 20, "stall": 0.0, "step_s": 1.0} | how
    peers = {f"peer-{number}": float(rate) for number, rate in enumerate(rates)}
    assert CodecChooser(**given).choose(SIZES, peers, last) == found


def test_while_nothing_is_measured_the_lossiest_is_taken() -> None:
    chooser = CodecChooser(delay=10, interval=20, stall=0.0, step_s=1.0)
    assert chooser.choose(SIZES, {"b": 1e9, "c": None}, 0) == 4
    assert CodecChooser(delay=10, interval=20, stall=0.0).choose(SIZES, {"b": 1e9}, None) == 4
    assert chooser.choose(SIZES, {"b": 1e9, "c": 1e9}, None) == 0


def test_a_message_goes_to_all_peers_at_once() -> None:
    """The slowest decides; each rate was measured beside the others."""
    chooser = CodecChooser(delay=10, interval=20, stall=0.0, step_s=1.0)
    assert chooser.seconds(0, 1000, {"b": 100.0, "c": 50.0}) == chooser.seconds(0, 1000, {"c": 50.0}) == 20.0
    assert chooser.seconds(0, 1000, {}) == 0.0
