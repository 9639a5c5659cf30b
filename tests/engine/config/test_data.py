"""Names of sources, as users see them."""

import pytest

from atelier.engine.config.data import Source


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("stdlib", "stdlib"),
        ("stdlib:asyncio,email", "stdlib"),
        ("books/war-and-peace.txt", "war-and-peace"),
        ("/data/texts/*.jsonl", "texts"),
        ("../texts/2024/**/*.jsonl.gz", "2024"),
        ("s3://bucket/wiki/part-*.jsonl", "wiki"),
        ("https://example.org/corpus.txt?version=2", "corpus"),
        ("*.txt", "text"),
        (".", "text"),
        ("a\x07.txt", r"a\x07"),
    ],
)
def test_a_source_is_called_by_the_last_part_of_its_path_that_is_no_pattern(source: str, title: str) -> None:
    assert Source(source=source).title == title
