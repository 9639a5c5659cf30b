"""How the files of a source are shared out: into runs of about equal bytes, one or more for each rank."""

import random

import pytest

from atelier.engine.data.curation.tasks import collect
from atelier.engine.data.curation.tasks.collect import spans_of


@pytest.mark.parametrize("seed", range(3))
def test_every_file_is_in_one_span_and_there_are_as_many_as_asked_for(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(300):
        most = draw.choice([0, 1, 1000, 10**8])
        sizes = [draw.randint(0, most) for _ in range(draw.randint(1, 40))]
        shards = draw.randint(1, 40)
        spans = spans_of(sizes, shards)
        assert [n for span in spans for n in range(span.start, span.stop)] == [*range(len(sizes))]
        assert len(spans) == min(shards, len(sizes))


def test_files_of_nearly_equal_size_each_have_their_span() -> None:
    assert spans_of([99, 100, 100, 101], 4) == [slice(n, n + 1) for n in range(4)]
    assert spans_of([99, 100, 100, 101], 2) == [slice(0, 2), slice(2, 4)]
    assert spans_of([101, 100, 100, 99], 4) == [slice(n, n + 1) for n in range(4)]


def test_spans_have_nearly_equal_bytes() -> None:
    draw = random.Random(1)
    sizes = [draw.randint(1, 1000) for _ in range(500)]
    for shards in (2, 3, 8):
        shares = [sum(sizes[span]) for span in spans_of(sizes, shards)]
        assert max(shares) - min(shares) <= 2 * max(sizes)


def test_without_a_number_there_is_a_span_for_each_shard_of_text() -> None:
    assert len(spans_of([1] * 20, 0)) == collect.LEAST
    assert len(spans_of([collect.SHARD_BYTES] * 20, 0)) == 20
