"""Bad input of a curation is named, counted, and fatal only where asked."""

import gzip
import json
import random
import time
from pathlib import Path

import pytest

from atelier.engine.config.base import parse
from atelier.engine.config.curation import Curation
from atelier.engine.config.data import Source
from atelier.engine.config.error import ConfigError, DataError
from tests.engine.data.curation.drawn import nearly, text
from tests.engine.data.curation.pipeline import Pipeline

PLAIN = parse(Curation, {}, "curation")


def folder(tmp_path: Path, **files: str | bytes) -> dict[str, Path]:
    """A source of these files; `_` in a name stands for a dot."""
    place = tmp_path / "main"
    place.mkdir()
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        (place / name.replace("_", ".")).write_bytes(data)
    return {"main": place}


def texts(count: int, seed: int = 1) -> dict[str, str]:
    draw = random.Random(seed)
    return {f"good{number}_txt": text(draw) for number in range(count)}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("bad_txt", b"caf\xe9 and more", r"bad\.txt: byte 3 is not UTF-8"),
        ("bad_jsonl", b'{"text": "a \\ud800 b"}\n', r"bad\.jsonl:1: .*half of a surrogate pair"),
        (
            "bad_jsonl_gz",
            gzip.compress(b'{"text": "a"}\n' * 900, mtime=0)[:-20],
            r"bad\.jsonl\.gz: not complete gzip data",
        ),
        ("bad_parquet", b"PAR1 is not enough", r"bad\.parquet"),
    ],
)
def test_a_broken_file_stops_the_run_whichever_rank_reads_it(
    tmp_path: Path, name: str, content: bytes, says: str, ranks: int
) -> None:
    sources = folder(tmp_path, **texts(5), **{name: content})
    with pytest.raises(DataError, match=says):
        Pipeline(tmp_path / "run", sources, PLAIN, ranks=ranks, shards=6).run()


def test_skipped_rows_and_empty_texts_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    rows = ['{"text": ""}', "not JSON", '{"text": 3}', '{"other": "x"}', json.dumps({"text": "good " * 30})]
    sources = folder(tmp_path, rows_jsonl="\n".join(rows * 20), **texts(3))
    pipeline = Pipeline(tmp_path / "run", sources, PLAIN)
    collect = pipeline.collect_config
    pipeline.collect_config = lambda name: collect(name).model_copy(
        update={"source": Source(source=str(sources[name]), on_error="skip")}
    )
    pipeline.run()
    summary = pipeline.made["corpus.main"].record.summary
    assert ({**summary}["skipped"], summary["empty"]) == (60, 20)
    assert "60 broken rows are left out, the first of them" in pipeline.warnings()
    assert [v["reason"] for v in pipeline.verdicts("copies", "copies/0")].count("exact_copy") == 19


def test_a_million_empty_documents_are_counted(tmp_path: Path) -> None:
    """A tenth of them here."""
    sources = folder(tmp_path, rows_jsonl='{"text": " "}\n' * 100_000, **texts(3))
    pipeline = Pipeline(tmp_path / "run", sources, PLAIN).run()
    assert pipeline.made["corpus.main"].record.summary["empty"] == 100_000


def test_a_source_of_duplicates_only_is_refused_with_the_way_out(tmp_path: Path) -> None:
    sources = folder(tmp_path, **{f"a{n}_txt": "The same words again." for n in range(9)})
    with pytest.raises(DataError, match=r"1 distinct text.*at least two are needed"):
        Pipeline(tmp_path / "run", sources, PLAIN).run()


def test_a_source_of_near_copies_stops_the_run_with_examples(tmp_path: Path) -> None:
    draw = random.Random(2)
    original = text(draw, 30)
    rows = "".join(json.dumps({"text": nearly(draw, original)}) + "\n" for _ in range(600))
    sources = folder(tmp_path, rows_jsonl=rows, **texts(3))
    began = time.process_time()
    with pytest.raises(
        DataError, match=r"\d+ of \d+ documents of the source main are near-copies.* like main/"
    ):
        Pipeline(tmp_path / "run", sources, PLAIN).run()
    assert time.process_time() - began < 10  # not all pairs
    allowed = parse(Curation, {"deduplicate": {"most_removed": 1.0}}, "curation")
    pipeline = Pipeline(tmp_path / "run", sources, allowed).run()
    assert len(pipeline.lines("main")) < 10


def test_an_evaluation_set_of_two_words_cuts_nothing_and_is_listed(tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "Who?", "answer": "Me."}\n')
    settings = {"decontaminate": {"questions": {"tiny": {"source": str(questions)}}}}
    pipeline = Pipeline(tmp_path / "run", folder(tmp_path, **texts(6)), parse(Curation, settings, "c")).run()
    assert "2 questions or answers are too short to be found" in pipeline.warnings()
    assert {**pipeline.made["overlaps"].record.summary}["uncheckable"] == 2
    assert len(pipeline.lines("main")) == 6


def test_a_row_without_a_question_is_refused_with_the_fields_that_it_has(tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"prompt": "Who is it?"}\n')
    settings = {"decontaminate": {"questions": {"quiz": {"source": str(questions)}}}}
    with pytest.raises(DataError, match=r"no text in question, answer; fields there: prompt; set data\."):
        Pipeline(tmp_path / "run", folder(tmp_path, **texts(6)), parse(Curation, settings, "c")).run()


def test_a_source_that_changes_after_the_plan_is_named(tmp_path: Path) -> None:
    sources = folder(tmp_path, **texts(4))
    pipeline = Pipeline(tmp_path / "run", sources, PLAIN)
    collect = pipeline.collect_config

    def planned(name: str):
        config = collect(name)
        (sources["main"] / "good2.txt").write_text("other words")
        return config

    pipeline.collect_config = planned
    with pytest.raises(DataError, match=r"good2\.txt: changed since the run was planned"):
        pipeline.run()


@pytest.mark.parametrize("key", ["filtered", "priority"])
def test_a_source_that_is_not_there_is_refused_with_the_nearest_name(key: str) -> None:
    curation = parse(Curation, {key: ["mian"], "deduplicate": None}, "data.curation")
    with pytest.raises(ValueError, match="no source 'mian'; did you mean main"):
        curation.check_sources(["main", "other"])
    with pytest.raises(ConfigError, match="holds a name twice"):
        parse(Curation, {key: ["main", "main"]}, "data.curation")


@pytest.mark.parametrize(
    "content",
    [
        "na " * 400_000,
        "x" * 1_200_000,
        "\x00" * 1_000_000,
        "\n" * 900_000 + "end",
        "一二三四五六七八九十" * 60_000,
    ],
    ids=["one word", "one long word", "zeros", "empty lines", "without spaces"],
)
def test_pathological_text_takes_seconds_and_is_in_the_books(tmp_path: Path, content: str) -> None:
    quality = {"kind": "gopher_quality", "min_stop_words": 0}
    settings = {"filters": {"repetition": {"kind": "gopher_repetition"}, "quality": quality}}
    sources = folder(tmp_path, odd_txt=content, **texts(6))
    began = time.process_time()
    pipeline = Pipeline(tmp_path / "run", sources, parse(Curation, settings, "c")).run()
    assert time.process_time() - began < 8
    assert {"odd.txt"} <= {verdict["id"] for verdict in pipeline.verdicts("verdicts.main")}
