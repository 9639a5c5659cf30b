"""The same documents in every format give the same tokens; a damaged or hostile file gives one
line of error.
"""

import gzip
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from atelier.engine.config.data import Labels, Source
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.data import source_reader, tar
from atelier.engine.data.parquet import ParquetReader
from atelier.engine.io import source_files
from atelier.engine.io.source_files import files_of
from tests.checkout import TOP
from tests.engine.data.conftest import Workshop

Rows = list[dict[str, object]]


def as_lines(rows: Rows) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_parquet(rows: Rows, **options: int) -> bytes:
    target = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), target, **{"row_group_size": 7, **options})
    return target.getvalue()


def as_tar(members: dict[str, bytes], *more: tarfile.TarInfo) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, data in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
        for about in more:
            archive.addfile(about)
    return target.getvalue()


def as_texts(rows: Rows) -> bytes:
    return as_tar({f"shard/{n:04d}.txt": str(row["text"]).encode() for n, row in enumerate(rows)})


def as_objects(rows: Rows) -> bytes:
    return as_tar({f"./{n:04d}.json": json.dumps(row).encode() for n, row in enumerate(rows)})


def squeezed(data: bytes, **options: int) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


FORMATS: dict[str, Callable[[Rows], bytes]] = {
    "a.parquet": as_parquet,
    "a.tar": as_texts,
    "b/a.tar": as_objects,
    "c/a.tar": lambda rows: as_tar({"all.jsonl": as_lines(rows)}),
    "a.tar.gz": lambda rows: gzip.compress(as_texts(rows)),
    "a.tar.zst": lambda rows: squeezed(as_texts(rows)),
    "a.jsonl.zst": lambda rows: squeezed(as_lines(rows[:9])) + squeezed(as_lines(rows[9:])),  # two frames
}


@pytest.fixture
def rows(poems: list[str]) -> Rows:
    return [{"text": poem, "number": n} for n, poem in enumerate(poems)]


def put(folder: Path, name: str, data: bytes) -> str:
    path = folder / "source" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


def files(artifact_url: str, *but: str) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in Path(artifact_url).iterdir()
        if path.suffix not in (".json", *but)
    }


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_documents_give_the_same_tokens_ids_and_held_out_ones(
    workshop: Workshop, tmp_path: Path, rows: Rows, name: str
) -> None:
    plain = workshop.curate(Source(source=put(tmp_path, "a.jsonl", as_lines(rows))))
    other = workshop.curate(Source(source=put(tmp_path, name, FORMATS[name](rows))))
    assert files(plain.url) == files(other.url)  # documents.jsonl: ids, texts, groups, splits
    tokenizer = workshop.tokenizer(plain)
    tokens, others = (workshop.tokens(corpus, tokenizer) for corpus in (plain, other))
    assert files(tokens.url) == files(others.url)
    assert len(files(tokens.url)) == 5


def test_a_packed_text_is_the_document_of_the_plain_one(workshop: Workshop, tmp_path: Path) -> None:
    put(tmp_path, "a.txt", b"one text")
    put(tmp_path, "b.txt.zst", squeezed(b"another text"))
    corpus = workshop.curate(Source(source=str(tmp_path / "source")))
    assert {line["text"] for line in workshop.lines(corpus, "documents.jsonl")} == {
        "one text",
        "another text",
    }


@pytest.mark.parametrize("name", [name for name in FORMATS if "/" in name or "tar" not in name])
def test_labelled_examples_come_in_every_format_that_has_rows(
    workshop: Workshop, tmp_path: Path, name: str
) -> None:
    rows: Rows = [{"text": f"a boat of {n} oars", "label": n % 2, "more": [n]} for n in range(20)]
    plain = workshop.labels(Labels(source=put(tmp_path, "a.jsonl", as_lines(rows))))
    other = workshop.labels(Labels(source=put(tmp_path, name, FORMATS[name](rows))))
    assert files(plain.url, ".npy") == files(other.url, ".npy")


def test_a_sample_has_its_text_beside_what_else_belongs_to_it(workshop: Workshop, tmp_path: Path) -> None:
    members = {
        "0.jpg": b"\xff\xd8", "0.txt": b"a ship", "0.json": b'{"text": "not this", "url": "x"}',
        "1.json": b'{"text": "a boat"}', "1.jpg": b"\xff\xd8", ".hidden": b"", "LICENCE": b"free",
    }  # fmt: skip
    corpus = workshop.curate(Source(source=put(tmp_path, "a.tar", as_tar(members))))
    lines = workshop.lines(corpus, "documents.jsonl")
    assert {line["id"]: line["text"] for line in lines} == {"a.jsonl:1": "a ship", "a.jsonl:2": "a boat"}


def refused(workshop: Workshop, path: str, **more: str) -> str:
    with pytest.raises((DataError, ConfigError)) as caught:
        workshop.curate(Source.model_validate({"source": path, **more}))
    [line] = str(caught.value).splitlines()
    assert path in line and "; " in line
    return line


@pytest.mark.parametrize("cut", [1, 9, 600])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a.parquet", "not a complete parquet file"),
        ("b/a.tar", "not a complete tar archive"),
        ("a.jsonl.zst", "incomplete zstd data: it ends within a frame"),
    ],
)
def test_a_truncated_file_is_named(
    workshop: Workshop, tmp_path: Path, rows: Rows, name: str, says: str, cut: int
) -> None:
    data = FORMATS[name](rows)
    if "tar" in name:
        data = data.rstrip(b"\0")  # not even the block that its last member fills
    if "zst" in name:
        cut = min(cut, 200)
    assert says in refused(workshop, put(tmp_path, name, data[:-cut]))


def test_a_tar_that_ends_between_members_or_has_a_damaged_header_is_not_taken_for_whole(
    workshop: Workshop, tmp_path: Path, rows: Rows
) -> None:
    data = bytearray(as_objects(rows))
    members = [n for n in range(0, len(data), 512) if data[n : n + 2] == b"./"]
    said = refused(workshop, put(tmp_path, "a.tar", bytes(data[: members[20]])))
    assert "it ends without an end mark" in said
    data[members[20] + 150] ^= 0xFF  # of the checksum
    assert "a header is damaged" in refused(workshop, put(tmp_path, "b.tar", bytes(data)))
    assert "a header is damaged" in refused(workshop, put(tmp_path, "c.tar", b"no archive" * 99))
    assert "it ends without" in refused(workshop, put(tmp_path, "d.tar", b""))
    two = as_objects(rows[:20]) + as_objects(rows[20:])
    assert "more data follows the end" in refused(workshop, put(tmp_path, "e.tar", two))


def link(kind: bytes, name: str, to: str = "") -> tarfile.TarInfo:
    about = tarfile.TarInfo(name)
    about.type, about.linkname = kind, to
    return about


@pytest.mark.parametrize(
    ("member", "says"),
    [
        (link(tarfile.SYMTYPE, "x.txt", "/etc/passwd"), "x.txt: is a link to /etc/passwd"),
        (link(tarfile.LNKTYPE, "x.txt", "../secret"), "x.txt: is a link to ../secret"),
        (link(tarfile.FIFOTYPE, "x.txt"), "x.txt: is not a plain file"),
        (link(tarfile.CHRTYPE, "x.txt"), "x.txt: is not a plain file"),
        (link(tarfile.REGTYPE, "../../x.txt"), "../../x.txt: has a name that leads out of the archive"),
        (link(tarfile.REGTYPE, "/root/x.txt"), "/root/x.txt: has a name that leads out of the archive"),
        (link(tarfile.REGTYPE, "x.jpg"), "x: has no member .txt, .json or .jsonl; members there: jpg"),
    ],
)
def test_a_member_that_is_no_text_in_the_archive_is_refused_or_left_out_and_nothing_is_extracted(
    workshop: Workshop, tmp_path: Path, rows: Rows, member: tarfile.TarInfo, says: str
) -> None:
    texts = {f"{n}.txt": str(row["text"]).encode() for n, row in enumerate(rows)}
    path = put(tmp_path, "a.tar", as_tar(texts, member))
    assert says in refused(workshop, path)
    before = {each for each in tmp_path.rglob("*") if "scratch" not in each.parts}
    corpus = workshop.curate(Source(source=path, on_error="skip"))
    assert corpus.record.summary["skipped"] == 1 and corpus.record.summary["documents"] == len(rows)
    made = {each for each in tmp_path.rglob("*") if "scratch" not in each.parts} - before
    assert {each.name for each in made} == {
        Path(corpus.url).name,
        "documents.jsonl",
        "body.json",
        "record.json",
    }


def test_a_member_larger_than_a_text_and_a_header_without_end_are_not_read(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tar, "MOST_MEMBER", 99)
    path = put(tmp_path, "a.tar", as_tar({"a.txt": b"x" * 100, "b.txt": b"y"}))
    assert "a.txt: has 100 bytes; at most 99 are allowed per text" in refused(workshop, path)
    monkeypatch.setattr(tar, "MOST_HEADER", 500)
    path = put(tmp_path, "b.tar", as_tar({"a" * 700 + ".txt": b"x"}))
    assert "a header has 714 bytes; at most 500 are allowed" in refused(workshop, path)


def test_a_column_that_is_missing_or_no_text_is_named_with_those_that_are(
    workshop: Workshop, tmp_path: Path
) -> None:
    path = put(tmp_path, "a.parquet", as_parquet([{"body": "x", "number": 1, "tags": ["a"]}]))
    said = refused(workshop, path)
    assert said.endswith("has no column 'text'; columns there: body, number, tags")
    said = refused(workshop, path, field="tags")
    assert "column 'tags' is list<" in said and said.endswith("not text; columns of text: body")
    assert "column 'number' is int64, not text" in refused(workshop, path, field="number", on_error="skip")
    with pytest.raises(DataError, match=r"has no column 'prompt' \(or 'text'\); columns there: body, number"):
        workshop.labels(Labels(source=path))


def test_values_that_are_null_or_not_utf8_are_broken_rows(workshop: Workshop, tmp_path: Path) -> None:
    raw = pa.array([b"one", b"two \xff", b"three", None, b"five"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers(), raw.null_count)
    target = io.BytesIO()
    parquet.write_table(pa.table({"text": text}), target)
    path = put(tmp_path, "a.parquet", target.getvalue())
    assert f"{path}:2: byte 4 of the text is not UTF-8; fix it" in refused(workshop, path)
    corpus = workshop.curate(Source(source=path, on_error="skip"))
    assert corpus.record.summary["skipped"] == 2
    ids = [line["id"] for line in workshop.lines(corpus, "documents.jsonl")]
    assert ids == ["a.jsonl:1", "a.jsonl:3", "a.jsonl:5"]


@pytest.mark.parametrize(
    ("name", "data", "where"),
    [
        ("a.tar", as_tar({"a.txt": b"one", "b.txt": b"tw\xff", "c.txt": b"three"}), ": b.txt: byte 2"),
        ("a.tar", as_tar({"a.txt": b"one", "b.json": b'{"text"', "c.txt": b"3"}), ": b.json: not JSON"),
        ("a.tar", as_tar({"a.txt": b"1", "b.json": b'{"body": "x"}', "c.txt": b"3"}), ": b: field 'text' is"),
        ("a.jsonl.zst", squeezed(b'{"text": "1"}\n{"text": "\xff"}\n{"text": "3"}\n'), ":2: byte "),
        ("a.txt.zst", squeezed(b"\xff"), ": byte 0 is not UTF-8"),
    ],
)  # fmt: skip
def test_what_is_not_utf8_or_json_is_named_or_left_out(
    workshop: Workshop, tmp_path: Path, name: str, data: bytes, where: str
) -> None:
    path = put(tmp_path, name, data)
    assert path + where in refused(workshop, path)
    if name != "a.txt.zst":
        corpus = workshop.curate(Source(source=path, on_error="skip"))
        assert corpus.record.summary["skipped"] == 1 and corpus.record.summary["documents"] == 2


def test_a_frame_that_asks_for_too_large_a_window_is_refused(workshop: Workshop, tmp_path: Path) -> None:
    wide = zstandard.ZstdCompressionParameters(window_log=30, compression_level=1)
    packer = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    path = put(tmp_path, "a.jsonl.zst", packer.compress(b'{"text": "x"}\n' * 9) + packer.flush())
    assert "needs a window of more than 128 MiB to be unpacked" in refused(workshop, path)
    assert "not zstd data" in refused(workshop, put(tmp_path, "b.jsonl.zst", b"no frame"))


def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_reader, "MOST_TEXT", 1 << 20)
    for name in ("a.jsonl.zst", "a.txt.zst"):
        path = put(tmp_path, name, squeezed(bytes(3 << 20)))
        assert "more than 1 MiB in one text; cut it into several" in refused(workshop, path)


@pytest.mark.parametrize("name", ["a.parquet", "a.tar", "a.jsonl.zst"])
def test_a_file_that_changed_since_planning_is_refused(
    workshop: Workshop, tmp_path: Path, rows: Rows, name: str
) -> None:
    source = Source(source=put(tmp_path, name, FORMATS[name](rows)))
    planned = workshop.files(source)
    put(tmp_path, name, FORMATS[name](rows[1:]))
    with pytest.raises(DataError, match="changed since the run was planned"):
        workshop.curate(source, files=planned)


def test_a_parquet_file_that_changes_while_it_is_read_is_refused(
    workshop: Workshop, tmp_path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path, "a.parquet", as_parquet(rows))
    read = ParquetReader.rows

    def reading(*given):
        yield from read(*given)
        Path(path).touch()

    monkeypatch.setattr(ParquetReader, "rows", reading)
    assert "changed since the run was planned" in refused(workshop, path)


@pytest.mark.parametrize(("name", "way_out"), [("a.parquet", "(the extra parquet)")])
def test_a_missing_package_is_named_when_the_run_is_planned(
    tmp_path: Path, name: str, way_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_files, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"^data\.source: .* needs the package") as caught:
        files_of(Source(source=put(tmp_path, name, b"")))
    assert way_out in str(caught.value)


MEASURE = """
import io, sys
from atelier.engine.data.row import Column
from atelier.engine.data.source_reader import SourceReader
from atelier.engine.io.process import Progress
from atelier.engine.io.source_files import content_id
import zstandard
from pyarrow import parquet

for path in sys.argv[1:]:
    with SourceReader(on_error="stop", place="data", progress=Progress(io.StringIO())) as reader:
        count = sum(1 for _ in reader.rows(path, content_id(path), [Column(names=("text",))]))
    peak = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
    print(count, *peak)
"""


def peaks(*paths: str) -> list[tuple[int, int]]:
    """Rows read of each file, one after another in a process of its own, and its peak of memory in KiB."""
    command = [sys.executable, "-c", MEASURE, *paths]
    done = subprocess.run(command, capture_output=True, text=True, cwd=TOP, check=True)
    found = [line.split() for line in done.stdout.splitlines()]
    return [(int(count), int(size)) for count, size in found]


@pytest.mark.parametrize(
    "name",
    [
        "a.parquet",
        pytest.param("one-group.parquet", marks=pytest.mark.slow),
        pytest.param("a.tar", marks=pytest.mark.slow),
        "a.jsonl.zst",
        pytest.param("bomb.jsonl.zst", marks=pytest.mark.slow),
    ],
)
def test_memory_does_not_grow_with_the_file(tmp_path: Path, name: str) -> None:
    def written(number: int) -> str:
        rows: Rows = [{"text": f"{n:07d}" * 1000, "number": n} for n in range(number)]
        place = tmp_path / str(number)
        if name == "bomb.jsonl.zst":  # nearly nothing that is unpacked to 16 KiB a line
            return put(place, name, squeezed((b'{"text": "' + b" " * 16384 + b'"}\n') * number))
        if "parquet" in name:
            size = number if name == "one-group.parquet" else 500
            return put(place, name, as_parquet(rows, row_group_size=size, use_dictionary=False))
        return put(place, name, FORMATS[name](rows))

    few, most = peaks(written(2000), written(14000))
    assert (few[0], most[0]) == (2000, 14000)
    room = 40 if "parquet" in name else 12  # MiB
    assert most[1] - few[1] < room << 10, f"{few[1] >> 10} and {most[1] >> 10} MiB"  # of 84 MB of text more
