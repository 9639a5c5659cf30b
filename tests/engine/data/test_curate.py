import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atelier.engine.config.data import Source
from atelier.engine.config.error import DataError
from atelier.engine.data.corpus import HELD_OUT, TRAIN, fraction, split_of
from atelier.engine.io.source_files import TOPICS, content_id, stdlib_folder


@given(st.sets(st.text(st.characters(codec="utf-8")), min_size=2, max_size=40), st.floats(0.01, 0.49))
def test_a_split_has_both_sides_and_follows_the_hash_but_for_one_forced_group_a_side(groups, held_out):
    splits = split_of(groups, held_out, "data.source")
    assert set(splits.values()) == {TRAIN, HELD_OUT}
    forced = [g for g in groups if (splits[g] == HELD_OUT) != (fraction(g) < held_out)]
    assert len(forced) <= 1


def test_the_share_held_out_is_about_what_was_asked():
    splits = split_of((str(n) for n in range(20_000)), 0.05, "data.source")
    assert 900 < list(splits.values()).count(HELD_OUT) < 1100


def test_a_documents_split_depends_neither_on_order_nor_on_the_other_documents(workshop, poems):
    first = {
        line["text"]: line["split"] for line in workshop.lines(workshop.corpus(poems), "documents.jsonl")
    }
    other = workshop.corpus([*reversed(poems), *(f"more {n}" for n in range(30))])
    second = {line["text"]: line["split"] for line in workshop.lines(other, "documents.jsonl")}
    assert first == {text: second[text] for text in poems}


def test_exact_copies_are_kept_once_and_counted(workshop, poems):
    corpus = workshop.corpus(poems + poems[:3])
    assert corpus.record.summary["duplicates"] == 3
    assert corpus.record.summary["documents"] == len(workshop.lines(corpus, "documents.jsonl")) == 40


def test_the_summary_counts_documents_and_utf8_bytes_of_both_splits(workshop, poems):
    corpus = workshop.corpus(poems)
    lines = workshop.lines(corpus, "documents.jsonl")
    held_out = [line["text"] for line in lines if line["split"] == "held_out"]
    summary = corpus.record.summary
    assert summary["bytes"] == sum(len(text.encode()) for text in poems)
    assert (summary["held_out_documents"], summary["held_out_bytes"]) == (
        len(held_out),
        sum(len(t.encode()) for t in held_out),
    )
    assert summary["kinds"] == {"line": 40}
    assert set(lines[0]) == {"id", "text", "split", "group"}


def test_two_documents_are_enough_and_one_is_held_out(workshop):
    lines = workshop.lines(workshop.corpus(["one", "two"]), "documents.jsonl")
    assert sorted(line["split"] for line in lines) == ["held_out", "train"]


def test_a_single_document_is_refused_with_the_way_out(workshop):
    with pytest.raises(DataError, match=r"data\.source: 1 distinct text.*at least two are needed.*add files"):
        workshop.corpus(["only one", "only one"])


def test_a_source_without_text_is_refused(workshop, tmp_path):
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(DataError, match=r"holds no text \(1 files"):
        workshop.curate(Source(source=str(tmp_path / "empty.txt")))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"body": "x", "title": "y"}', "field 'text' is missing; fields there: body, title"),
        ('{"text": 3}', "field 'text' is a number, not text"),
        ('{"text": "half', "not JSON"),
        ('["text"]', "a list where an object is expected"),
        ('{"text": "\\ud800"}', "half of a surrogate pair"),
    ],
)
def test_a_broken_line_is_named_with_file_line_problem_and_way_out_or_skipped_when_asked(
    workshop, tmp_path, line, problem
):
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "good"}\n\n' + line + '\n{"text": "good too"}\n')
    with pytest.raises(DataError) as caught:
        workshop.curate(Source(source=str(path)))
    message = str(caught.value)
    assert message.startswith(f"{path}:3: ")
    assert problem in message
    assert "data.on_error=skip" in message
    corpus = workshop.curate(Source(source=str(path), on_error="skip"))
    assert corpus.record.summary["skipped"] == 1
    assert corpus.record.summary["documents"] == 2


def test_text_that_is_not_utf8_is_named_with_the_byte(workshop, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"fine")
    (tmp_path / "b.txt").write_bytes(b"abc\xff")
    with pytest.raises(DataError, match=r"b\.txt: byte 3 is not UTF-8"):
        workshop.curate(Source(source=str(tmp_path / "*.txt")))


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_lines_in_utf_16_are_refused_and_never_read_as_other_letters(workshop, tmp_path, coding):
    path = tmp_path / "x.jsonl"
    path.write_bytes("".join(f'{{"text": "a line, number {n}"}}\n' for n in range(6)).encode(coding))
    with pytest.raises(DataError, match=r"x\.jsonl:1: (not JSON|byte 0 of the line is not UTF-8)"):
        workshop.curate(Source(source=str(path)))
    with pytest.raises(DataError, match="holds no text"):
        workshop.curate(Source(source=str(path), on_error="skip"))


def test_a_file_that_changed_since_planning_is_refused_by_name(workshop, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b"}\n')
    files = workshop.files(Source(source=str(path)))
    path.write_text('{"text": "a"}\n{"text": "c"}\n')
    with pytest.raises(DataError, match=rf"{path}: changed since the run was planned"):
        workshop.curate(Source(source=str(path)), files=files)
    path.unlink()
    with pytest.raises(DataError, match=rf"{path}: gone since"):
        workshop.curate(Source(source=str(path)), files=files)


def test_a_remote_file_that_changed_since_planning_is_refused_by_name(workshop):
    import fsspec

    store = fsspec.filesystem("memory")
    try:
        store.pipe_file("/shelf/a.jsonl", b'{"text": "a"}\n{"text": "b"}\n')
        source = Source(source="memory://shelf/a.jsonl")
        files = workshop.files(source)
        assert workshop.curate(source, files=files).record.summary["documents"] == 2
        store.pipe_file("/shelf/a.jsonl", b'{"text": "a"}\n{"text": "b"}\n{"text": "c"}\n')
        with pytest.raises(DataError, match="changed since the run was planned"):
            workshop.curate(source, files=files)
    finally:
        store.rm("/shelf", recursive=True)


def test_packed_files_give_the_documents_of_the_plain_ones(workshop, tmp_path, poems):
    lines = "".join(json.dumps({"text": poem}) + "\n" for poem in poems).encode()
    (tmp_path / "plain.jsonl").write_bytes(lines)
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(lines))
    plain = workshop.lines(workshop.curate(Source(source=str(tmp_path / "plain.jsonl"))), "documents.jsonl")
    packed = workshop.lines(
        workshop.curate(Source(source=str(tmp_path / "packed.jsonl.gz"))), "documents.jsonl"
    )
    assert [(p["text"], p["split"]) for p in packed] == [(p["text"], p["split"]) for p in plain]
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(lines)[:-20])
    with pytest.raises(DataError, match="not complete gzip data"):
        workshop.curate(Source(source=str(tmp_path / "packed.jsonl.gz")))


def test_text_files_are_one_document_each_and_their_ids_do_not_tell_where_they_lie(workshop, tmp_path, poems):
    found = []
    for place in ("here", "there/deep"):
        folder = tmp_path / place
        (folder / "b").mkdir(parents=True)
        (folder / "a.txt").write_text(poems[0])
        (folder / "b" / "c.txt").write_text(poems[1])
        corpus = workshop.curate(Source(source=str(folder)))
        found.append(workshop.lines(corpus, "documents.jsonl"))
    assert found[0] == found[1]
    assert [line["id"] for line in found[0]] == ["a.txt", "b/c.txt"]


def test_the_standard_library_gives_source_topics_and_docs_of_built_in_modules_and_no_topic_twice(workshop):
    files = [
        [str(stdlib_folder() / name), content_id(str(stdlib_folder() / name))] for name in ("os.py", TOPICS)
    ]
    corpus = workshop.curate(Source(), files=files)
    lines = {line["id"]: line for line in workshop.lines(corpus, "documents.jsonl")}
    kinds = corpus.record.summary["kinds"]
    assert kinds["source"] == 1  # the file of the topics is not a document: it would hold the held-out ones
    assert kinds["topic"] > 50 and kinds["builtin"] > 20
    assert lines["os.py"]["group"] == "os.py"
    assert 'The "assert" statement' in lines[f"{TOPICS}:assert"]["text"]
    assert "def len(obj, /)\n    Return the number of items" in lines["builtin:builtins"]["text"]
    assert not any(" at 0x" in line["text"] for line in lines.values() if line["id"].startswith("builtin:"))


def test_some_packages_of_the_standard_library_are_their_files_and_nothing_else(workshop):
    corpus = workshop.curate(Source(source="stdlib:json,os"))
    assert set(corpus.record.summary["kinds"]) == {"source"}
    groups = {line["group"].split("/")[0] for line in workshop.lines(corpus, "documents.jsonl")}
    assert groups == {"json", "os.py"}
