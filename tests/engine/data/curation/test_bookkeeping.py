"""Every document is kept or removed for a reason, and counts add up. The numbers of ranks and shards do not
change the result, nor do kills.
"""

import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.base import parse
from atelier.engine.config.curation import Curation
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.data.curation import spool
from tests.engine.data.curation.drawn import text, write_sources
from tests.engine.data.curation.pipeline import Pipeline


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_sources(tmp_path_factory.mktemp("sources"), seed=1)


@pytest.fixture(scope="module")
def curation(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Curation:
    """Filters of one source, copies, and questions that some documents answer."""
    questions = tmp_path_factory.mktemp("questions") / "questions.jsonl"
    texts = [path.read_text() for path in sorted(sources["other"].glob("*.txt"))[::5]]
    answers = [longest for each in texts if len(longest := max(each.split("."), key=len).split()) >= 13]
    rows = [{"question": f"Which {n}?", "answer": " ".join(answer)} for n, answer in enumerate(answers)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        "filters": {
            "words": {"kind": "gopher_quality", "min_words": 30, "min_stop_words": 0},
            "repetition": {"kind": "gopher_repetition"},
        },
        "filtered": ["main"],
        "decontaminate": {"questions": {"quiz": {"source": str(questions)}}, "margin": 60, "shortest": 80},
    }
    return parse(Curation, settings, "curation")


@pytest.fixture(scope="module")
def whole(sources: dict[str, Path], curation: Curation, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return Pipeline(tmp_path_factory.mktemp("whole"), sources, curation).run()


def result(pipeline: Pipeline) -> dict[str, Any]:
    """Everything that must not depend on ranks and shards."""
    found: dict[str, Any] = {name: pipeline.lines(name) for name in pipeline.sources}
    for key in ("verdicts.main", "copies", "overlaps"):
        folders = ["shards"] if key == "verdicts.main" else [f"{key}/0", f"{key}/1"]
        verdicts = [each for folder in folders for each in pipeline.verdicts(key, folder)]
        found[key] = [{k: v for k, v in each.items() if k != "row"} for each in verdicts]
    found["waterfalls"] = {name: pipeline.made[f"corpus.{name}"].record.summary for name in pipeline.sources}
    return found


def test_each_document_is_in_the_corpus_or_has_a_verdict(whole: Pipeline) -> None:
    kept = {(name, re.split("[/#]", line["id"])[0]) for name in whole.sources for line in whole.lines(name)}
    removed = {("main", each["id"]) for each in whole.verdicts("verdicts.main")}
    for place, name in enumerate(("main", "other")):
        for stage in ("copies", "overlaps"):
            verdicts = whole.verdicts(stage, f"{stage}/{place}")
            removed |= {(name, verdict["id"]) for verdict in verdicts if verdict["reason"]}
    read = {(name, line["id"]) for name in whole.sources for line in whole.verdicts(f"documents.{name}")}
    assert kept | removed == read and not kept & removed
    assert len(removed) > 15
    assert any("pieces" in verdict for verdict in whole.verdicts("overlaps", "overlaps/1"))


def test_counts_add_up_to_the_byte(whole: Pipeline) -> None:
    for name in whole.sources:
        steps = whole.made[f"corpus.{name}"].record.summary["waterfall"]
        read, *removed, left = steps
        texts = [line["text"] for line in whole.verdicts(f"documents.{name}")]
        assert (read["documents"], read["bytes"]) == (len(texts), sum(len(each.encode()) for each in texts))
        for key in ("documents", "bytes"):
            assert read[key] == left[key] + sum(step[key] for step in removed)
        assert left["bytes"] == sum(len(line["text"].encode()) for line in whole.lines(name))
    assert whole.made["documents.main"].record.summary["empty"] > 0


@pytest.mark.parametrize(("ranks", "shards"), [(2, 3), (4, 17), (3, 1)])
def test_ranks_and_shards_change_nothing(
    ranks: int, shards: int, sources: dict[str, Path], curation: Curation, whole: Pipeline, tmp_path: Path
) -> None:
    assert result(Pipeline(tmp_path, sources, curation, ranks=ranks, shards=shards).run()) == result(whole)


def test_a_rank_without_work_that_finds_the_result_there_ends_quietly(
    sources: dict[str, Path],
    curation: Curation,
    whole: Pipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    advance, late = spool.Spool._advance, 0  # pyright: ignore[reportPrivateUsage]

    def slow(self: spool.Spool, units: list[str], before: int) -> int:
        nonlocal late
        if self.ranks.rank == 0 or len(units) > 1:
            return advance(self, units, before)
        while not spool.exists(self._body):  # pyright: ignore[reportPrivateUsage]
            time.sleep(0.01)
        late += 1
        return 0  # what it read before rank 0 published

    monkeypatch.setattr(spool.Spool, "_advance", slow)
    assert result(Pipeline(tmp_path, sources, curation, ranks=2, shards=1).run()) == result(whole)
    assert late


class Killed(BaseException):
    """Stands for a kill: nothing after it runs."""


@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_is_killed_resumes_to_equal_bytes(
    seed: int,
    sources: dict[str, Path],
    curation: Curation,
    whole: Pipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before or after any write of a unit, an entry or a mark, again and again."""
    draw, write, put = random.Random(seed), spool.write_bytes, spool.put_file
    left = 0

    def dying(act: Any) -> Any:
        def wrapped(*given: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            found = act(*given)
            if left == -1:
                left = 0
                raise Killed
            return found

        return wrapped

    monkeypatch.setattr(spool, "write_bytes", dying(write))
    monkeypatch.setattr(spool, "put_file", dying(put))
    pipeline, kills = Pipeline(tmp_path, sources, curation, shards=5), 0
    while True:
        left = draw.randint(3, 14)
        try:
            pipeline.run()
            break
        except Killed:
            kills += 1
    assert kills >= 4
    assert result(pipeline) == result(whole)


def test_a_finished_shard_is_not_made_again(
    sources: dict[str, Path], curation: Curation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    finish = spool.Spool.finish

    def counted(self: spool.Spool, name: str, files: Any) -> None:
        if len(made) == 3:
            made.append("killed")
            raise Killed
        finish(self, name, files)
        made.append(name)

    monkeypatch.setattr(spool.Spool, "finish", counted)
    pipeline = Pipeline(tmp_path, {"main": sources["main"]}, curation, shards=6)
    with pytest.raises(Killed):
        pipeline.run()
    pipeline.run()
    assert made[:8] == ["00000", "00001", "00002", "killed", "00003", "00004", "00005", "00000"]


def test_a_filter_that_removes_everything_is_refused_with_its_counts(tmp_path: Path) -> None:
    curation = parse(
        Curation, {"filters": {"words": {"kind": "gopher_quality", "min_words": 10**6}}}, "curation"
    )
    sources = write_sources(tmp_path, seed=2, documents=30)
    with pytest.raises(
        DataError, match=r"no document of the source main is left of \d+; removed: words.min_words"
    ):
        Pipeline(tmp_path / "run", sources, curation).run()


def test_near_copies_and_those_between_them_are_on_one_side_of_the_split(tmp_path: Path) -> None:
    draw = random.Random(5)
    (tmp_path / "texts").mkdir()
    for number in range(60):
        words = text(draw, 20).split(" ")
        for variant in range(4):  # a chain: each like the one before, the ends unlike
            words[variant * 12 : variant * 12 + 9] = [f"new{variant}{n}" for n in range(9)]
            (tmp_path / "texts" / f"{number}-{variant}.txt").write_text(" ".join(words))
    curation = parse(Curation, {"deduplicate": {"threshold": 0.7, "most_removed": 1.0}}, "curation")
    pipeline = Pipeline(tmp_path / "run", {"main": tmp_path / "texts"}, curation, held_out=0.4).run()
    clusters = {v["id"]: v["cluster"] for v in pipeline.verdicts("copies", "copies/0") if "cluster" in v}
    sides: dict[str, set[str]] = {}
    for line in pipeline.lines("main"):
        if line["id"] in clusters:
            sides.setdefault(clusters[line["id"]], set()).add(line["split"])
    kept = [line["id"] for line in pipeline.lines("main") if line["id"] in clusters]
    assert len(kept) > len(sides) > 20  # several documents of a cluster are kept
    assert all(len(each) == 1 for each in sides.values())


def test_a_quality_classifier_is_learned_from_named_sources_and_judges_another(tmp_path: Path) -> None:
    draw = random.Random(3)
    for name, count in (("good", 60), ("bad", 60), ("main", 40)):
        (tmp_path / name).mkdir()
        for number in range(count):
            words = text(draw, 6) if name != "bad" else " ".join(f"x{draw.randrange(9)}q" for _ in range(80))
            if name == "main" and number % 2:
                words = " ".join(f"x{draw.randrange(9)}q" for _ in range(80))
            (tmp_path / name / f"{number:02d}.txt").write_text(words)
    settings = {
        "filters": {"quality": {"kind": "quality"}},
        "filtered": ["main"],
        "quality": {"positives": ["good"], "negatives": ["bad"]},
        "deduplicate": None,
    }
    sources = {name: tmp_path / name for name in ("main", "good", "bad")}
    curation = parse(Curation, settings, "curation")
    pipeline = Pipeline(tmp_path / "run", sources, curation).run()
    removed = [
        verdict for verdict in pipeline.verdicts("verdicts.main") if verdict["reason"] == "quality.alpha"
    ]
    assert len(removed) >= 10 and all(int(verdict["id"][:2]) % 2 for verdict in removed)
    report: dict[str, Any] = {**pipeline.made["classifier"].record.summary}["report"]
    assert report["held_out"]["good"]["accuracy"] > 0.9
    with pytest.raises(ConfigError, match=r"filters\.quality needs a classifier"):
        parse(Curation, {**settings, "quality": None}, "curation")


def test_shards_without_a_document_left_are_in_the_books_wherever_they_are(tmp_path: Path) -> None:
    draw = random.Random(8)
    for name in ("first", "main"):
        (tmp_path / name).mkdir()
    for number in range(6):
        content = "" if number in (0, 3) else json.dumps({"text": text(draw)}) + "\n"
        (tmp_path / "main" / f"{number}.jsonl").write_text(
            content + json.dumps({"text": text(draw)[:9]}) + "\n"
        )
        (tmp_path / "first" / f"{number}.jsonl").write_text(json.dumps({"text": text(draw)}) + "\n")
    filters = {"words": {"kind": "gopher_quality", "min_words": 10, "min_stop_words": 0}}
    curation = parse(Curation, {"filters": filters, "filtered": ["main"]}, "curation")
    sources = {"main": tmp_path / "main", "first": tmp_path / "first"}
    pipeline = Pipeline(tmp_path / "run", sources, curation, shards=6).run()
    assert len(pipeline.verdicts("verdicts.main")) == 6
    assert (len(pipeline.lines("main")), len(pipeline.lines("first"))) == (4, 6)


def test_a_document_longer_than_a_line_is_split_by_its_parts_and_only_its_end_has_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atelier.engine.data.curation.tasks import collect as module

    monkeypatch.setattr(module, "LONGEST", 4000)
    draw = random.Random(9)
    (tmp_path / "main").mkdir()
    whole = "\n\n".join(text(draw) for _ in range(60))
    (tmp_path / "main" / "book.txt").write_text(whole)
    curation = parse(Curation, {"deduplicate": None}, "curation")
    pipeline = Pipeline(tmp_path / "run", {"main": tmp_path / "main"}, curation, held_out=0.2).run()
    lines = pipeline.lines("main")
    assert "".join(line["text"] for line in lines) == whole
    assert {line["split"] for line in lines} == {"train", "held_out"}
    assert [bool(line.get("cut")) for line in lines] == [True] * (len(lines) - 1) + [False]


def test_the_end_of_a_part_is_an_end_where_the_next_part_was_removed(tmp_path: Path) -> None:
    from atelier.engine.data.curation.tasks.assemble import _with_ends, kept_pieces

    part = {"id": "a#1", "key": "", "text": "one", "cut": True}
    rows: list[Any] = [
        (0, {**part}, []),
        (1, {**part}, []),
        (3, {**part}, []),
        (4, {**part, "cut": False}, []),
    ]
    assert [bool(document.get("cut")) for document, _ in _with_ends(rows)] == [True, False, True, False]
    pieces: list[Any] = [{"pieces": [[0, 1], [2, 3]]}]
    assert [piece.get("cut", False) for piece in kept_pieces({**part}, pieces)] == [False, True]  # pyright: ignore
