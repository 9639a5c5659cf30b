"""A limit of an agent's rate: bytes arrive unchanged and in order, and no faster than the limit."""

import time

from atelier.infra.sites.hourly import SendLimit


def test_a_limit_keeps_the_bytes_and_the_rate() -> None:
    blocks = [bytes([number]) * 100_000 for number in range(3)]
    began = time.monotonic()
    assert b"".join(SendLimit(mbps=8).paced(blocks)) == b"".join(blocks)
    # the last piece is given when the ones before it have had their time: 300 kB less a piece, at 1 MB/s
    assert time.monotonic() - began >= 0.2


def test_without_a_limit_blocks_pass_as_they_are() -> None:
    blocks = [b"a" * 200_000, b"b"]
    assert [*SendLimit().paced(blocks)] == blocks
