"""Web pages and WARC archives as sources: their text, damage, pages that take too long."""

import gzip
import io
import random
import socket
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import zstandard
from fastwarc.warc import ArchiveIterator

from atelier.engine.config.curation import Curation
from atelier.engine.config.data import Source
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.data import web
from atelier.engine.data.source import Document, documents
from atelier.engine.data.source_reader import SourceReader
from atelier.engine.data.warc import MOST_PAGE, pages_of
from atelier.engine.io import source_files
from atelier.engine.io.limited_process import LimitedProcess, Limits
from atelier.engine.io.process import Progress
from atelier.engine.io.shards import shard_lines
from atelier.engine.io.source_files import content_id, files_of
from atelier.infra.store.source_contents import contents_of, identity_of
from tests.engine.data.archives import ODD, OTHERS, PAGES, RECORDS, TEXTS, page, record, served
from tests.engine.data.conftest import Workshop
from tests.engine.data.curation.pipeline import Pipeline


@pytest.fixture(scope="module")
def processes() -> Iterator[dict[Limits, LimitedProcess]]:
    found: dict[Limits, LimitedProcess] = {}
    yield found
    for each in found.values():
        each.close()


@pytest.fixture(autouse=True)
def _shared(processes: dict[Limits, LimitedProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers share a process, whose start is most of the time of a test."""

    def process(module: str, limits: Limits) -> LimitedProcess:
        return processes.setdefault(limits, LimitedProcess(module, limits))

    monkeypatch.setattr(web, "LimitedProcess", process)
    monkeypatch.setattr(web.PageReader, "close", lambda _: None)


def put(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def read(given: str, on_error: str = "stop") -> tuple[list[Document], SourceReader]:
    source = Source(source=given)
    files = [(path, content_id(path)) for path in files_of(source)]
    with SourceReader(on_error=on_error, place="data", progress=Progress(io.StringIO())) as reader:
        return list(documents(source, files, reader)), reader


@pytest.mark.parametrize("packed", ["", ".gz", ".zst", "one frame.zst"])
def test_an_archive_gives_the_text_of_each_page(tmp_path: Path, packed: str) -> None:
    pack = {"": bytes, ".gz": gzip.compress}.get(packed, zstandard.ZstdCompressor().compress)
    whole = pack(b"".join(RECORDS)) if "one" in packed else b"".join(map(pack, RECORDS))
    found, reader = read(put(tmp_path / f"crawl.warc{packed.removeprefix('one frame')}", whole))
    assert [document.text.strip() for document in found] == TEXTS
    assert found[0].id.endswith(f":{len(OTHERS) + 1}:http://a.example/\u00fc")
    assert len({document.id for document in found}) == len(TEXTS)
    assert reader.notes == {
        "pages of a guessed encoding": 1,
        "records of other media types": 1,
        "records about the crawl": 2,
        "responses of another status than 200": 1,
    }


def test_its_records_are_those_that_fastwarc_reads() -> None:
    # it fails on pages whose chunks are joined, or whose content is unpacked, against their fields
    alike = [each for each in RECORDS if b"joined" not in each and b"unpacked" not in each]
    whole = b"".join(alike)
    ours = [(page.kind, page.body) for page in pages_of(io.BytesIO(whole), "a", Counter(), refuse)]
    theirs = []
    for each in ArchiveIterator(io.BytesIO(whole), parse_http=True, auto_decode="all"):
        kind = each.http_content_type if each.is_http else each.headers.get("Content-Type")
        status = each.http_headers.status_code if each.http_headers else 200
        if kind in ("text/html", "text/plain") and status == 200:
            theirs.append((kind, each.reader.read()))
    assert ours == theirs


CURATION = Curation.model_validate({"deduplicate": {"most_removed": 1.0}})


def refuse(where: str, problem: str) -> None:
    raise AssertionError((where, problem))


@pytest.mark.parametrize("ending", [".html", ".htm.gz"])
def test_a_page_of_its_own_is_one_document(tmp_path: Path, ending: str) -> None:
    body = page("a page")
    for name in ("a", "b/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        put(tmp_path / f"{name}{ending}", gzip.compress(body) if ending.endswith("gz") else body)
    found, _ = read(f"{tmp_path}/**/*{ending}")
    assert [(each.id, each.text) for each in found] == [(f"a{ending}", "a page"), (f"b/c{ending}", "a page")]


def test_pages_are_read_only_where_asked_for(tmp_path: Path) -> None:
    put(tmp_path / "a.txt", b"a text")
    put(tmp_path / "b.html", page("a page"))
    assert [each.text for each in read(str(tmp_path))[0]] == ["a text"]
    (tmp_path / "a.txt").unlink()
    with pytest.raises(DataError, match=r"no text file.*web pages if the name or glob ends with \.html"):
        read(str(tmp_path))


def test_without_the_library_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = {source_files.WEB_LIBRARY}
    monkeypatch.setattr(source_files, "find_spec", lambda name: None if name in hidden else find_spec(name))
    with pytest.raises(ConfigError, match=r"needs the package resiliparse.*extra web"):
        files_of(Source(source=put(tmp_path / "a.html", page("a"))))


def test_the_library_that_extracts_text_is_part_of_the_identity(tmp_path: Path) -> None:
    named = {}
    for name in ("a.html", "a.txt"):
        named[name] = identity_of(contents_of([put(tmp_path / name, page("a"))]))
    assert "resiliparse" in named["a.html"]
    assert "resiliparse" not in named["a.txt"]


def test_an_archive_that_ends_early_is_never_read_as_a_whole_one(tmp_path: Path) -> None:
    whole, draws = b"".join(RECORDS), random.Random(1)
    ends = {sum(map(len, RECORDS[:count])) for count in range(len(RECORDS) + 1)}
    for cut in sorted({*draws.sample(range(len(whole)), 300), *ends, *(end - 2 for end in ends if end)}):
        pages = pages_of(io.BytesIO(whole[:cut]), "a", Counter(), refuse)
        if cut in ends:
            assert all(page.body for page in pages)
        else:
            with pytest.raises(DataError, match=r"a: record [0-9]+: "):
                list(pages)


def test_damage_of_a_records_frame_is_an_error_and_other_damage_stays_in_its_page() -> None:
    draws, refused = random.Random(2), 0
    whole = b"".join(RECORDS)
    expected = [page.body for page in pages_of(io.BytesIO(whole), "a", Counter(), refuse)]
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[draws.randrange(len(whole))] = draws.randrange(256)
        told: list[str] = []
        pages = pages_of(
            io.BytesIO(bytes(damaged)), "a", Counter(), lambda where, problem, told=told: told.append(where)
        )
        try:
            found = [page.body for page in pages]
        except DataError:
            refused += 1
            continue
        # a kind, a media type or a status may have changed: at most one page is gone
        assert len(found) + len(told) >= len(expected) - 1
        assert sum(body not in expected for body in found) <= 1
    assert refused > 20


def test_a_foreign_byte_between_records_is_an_error() -> None:
    whole = RECORDS[4] + b"junk\r\n" + RECORDS[5]
    with pytest.raises(DataError, match="record 2: does not begin with WARC/"):
        list(pages_of(io.BytesIO(whole), "a", Counter(), refuse))


BROKEN = {
    "is not an HTTP response": record(b"nothing of the kind"),
    "is not br": record(served(b"\xff\xff\xff\xff", "Content-Encoding: br")),
    "is not deflate": record(served(b"\x0fxyz", "Content-Encoding: deflate")),
    "its content: .*zstd": record(served(b"\x28\xb5\x2f\xfdxyz", "Content-Encoding: zstd")),
    "more than 100 gzip members": record(served(gzip.compress(b"x") * 101, "Content-Encoding: gzip")),
    "nested more than 4000 deep": record(served(b"<div>" * 5000)),
    "segment": record(served(page("a")), "response", "application/http", "WARC-Segment-Number: 1"),
    "is larger than": record(served(gzip.compress(bytes(MOST_PAGE + 1)), "Content-Encoding: gzip")),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_a_broken_page_is_named_or_skipped(tmp_path: Path, problem: str) -> None:
    path = put(tmp_path / "a.warc", BROKEN[problem] + record(PAGES["plain"]))
    with pytest.raises(DataError, match=f"a.warc: record 1: .*{problem}"):
        read(path)
    found, reader = read(path, on_error="skip")
    assert ([each.text for each in found], reader.skipped) == (["plain"], 1)


@pytest.mark.parametrize(
    "memory,cpu_s,body,problem",
    [
        (
            web.MEMORY,
            0.2,
            b"<table><tr>" * 3000 + b"<p>x" * 300_000,
            "the page takes more than 0.2 seconds of processor time",
        ),
        (1 << 27, 0, b"<p>x" * 2_000_000, "memory|parse|signal"),
    ],
)
def test_a_page_that_takes_too_much_is_broken_and_the_next_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int, cpu_s: float, body: bytes, problem: str
) -> None:
    monkeypatch.setattr(web, "MEMORY", memory)
    monkeypatch.setattr(web, "CPU_S", cpu_s)
    path = put(tmp_path / "a.warc", record(served(body)) + record(PAGES["plain"]))
    with pytest.raises(DataError, match=f"record 1: its text cannot be extracted: .*({problem})"):
        read(path)
    found, _ = read(path, on_error="skip")
    assert [each.text for each in found] == ["plain"]


def test_hostile_pages_end_in_text_or_a_named_problem(tmp_path: Path) -> None:
    draws = random.Random(3)
    tokens = [
        part.encode()
        for part in ("<", ">", "</", "<p", "<script>", "<!--", "-->", "&#xD800;", "<table>", "&amp")
    ]
    tokens += [b"\0", b"\xff\xfe", b"<![CDATA[", b"\xed\xa0\x80", b"<meta charset=utf-7>", b"text "]
    pages = [b"".join(draws.choices(tokens, k=draws.randrange(60))) for _ in range(200)]
    whole = b"".join(record(served(each)) for each in pages)
    found, reader = read(put(tmp_path / "a.warc", whole), on_error="skip")
    assert len(found) + reader.skipped + reader.empty == len(pages)
    for each in found:
        each.text.encode()  # no surrogates


def test_a_corpus_of_pages_says_what_was_no_page(workshop: Workshop, tmp_path: Path) -> None:
    corpus = workshop.curate(Source(source=put(tmp_path / "a.warc", b"".join(RECORDS))))
    assert corpus.record.summary["documents"] == len(TEXTS)
    assert corpus.record.summary["web"]["records about the crawl"] == 2
    assert "records about the crawl: 2" in workshop.printed()


def test_the_network_is_never_asked(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        body = (
            f'<link rel=stylesheet href="{there}"><img src="{there}"><script src="{there}"></script>'.encode()
        )
        found, _ = read(
            put(tmp_path / "a.warc", record(served(body + page("a"), media="application/xhtml+xml")))
        )
        assert [each.text for each in found] == ["a"]
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("ranks", [1, 2])
def test_curation_reads_pages_and_counts_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    monkeypatch.setattr(web, "LimitedProcess", LimitedProcess)  # ranks are threads here
    folder = tmp_path / "crawl"
    folder.mkdir()
    for name in "abc":
        put(folder / f"{name}.warc.gz", b"".join(map(gzip.compress, RECORDS)))
    pipeline = Pipeline(tmp_path, {"main": folder / "*.warc.gz"}, CURATION, ranks=ranks).run()
    summary = pipeline.made["documents.main"].record.summary
    assert summary["documents"] == 3 * len(TEXTS)
    assert summary["web"]["responses of another status than 200"] == 3
    lines = pipeline.lines("main")
    kept = [(line["id"].partition(":")[0], line["text"].strip()) for line in lines]
    assert sorted(kept) == sorted(("a.warc.gz", text) for text in TEXTS)  # of copies the first is kept


@pytest.mark.parametrize("case", ODD)
def test_a_page_is_read_as_browsers_read_it(tmp_path: Path, case: str) -> None:
    response, text = ODD[case]
    found, _ = read(put(tmp_path / "a.warc", record(response) + record(PAGES["plain"])))
    assert [" ".join(each.text.split()) for each in found] == [text, "plain"]


@pytest.mark.parametrize("case", ["no last chunk", "cut gzip"])
def test_a_page_that_is_cut_short_is_counted(tmp_path: Path, case: str) -> None:
    _, reader = read(put(tmp_path / "a.warc", record(ODD[case][0])))
    assert reader.notes == {"pages cut short by the crawler or the server": 1}


def test_what_is_no_page_never_stops_the_run_and_is_counted(tmp_path: Path) -> None:
    large = bytes(MOST_PAGE + 1)
    records = [
        record(served(large, media="video/mp4")),
        record(served(large, status="HTTP/1.1 404 Not Found")),
        record(served(b"x", media="video/mp4"), "response", "application/http", "WARC-Segment-Number: 1"),
        record(b"--http-password=secret", "resource", "text/plain", address="metadata://gnu.org/arguments"),
        record(page("again"), "resource", "text/html", address="urn:text:http://a.example/"),
        record(b"", "revisit"),
        record(b""),
        record(served(b"anything", media="")),
        record(served(b"<html><script>only()</script></html>")),
    ]
    found, reader = read(put(tmp_path / "a.warc", b"".join(records)))
    assert not found
    assert reader.notes == {
        "pages without text": 1,
        "records about the crawl": 2,
        "records of other media types": 2,
        "records without a media type": 1,
        "records without content": 1,
        "responses of another status than 200": 1,
        "revisits": 1,
    }


def test_passwords_of_addresses_are_left_out(tmp_path: Path) -> None:
    address = "http://user:secret@a.example/?to=jane.doe@example.org"
    path = put(tmp_path / "a.warc", record(PAGES["plain"], address=address))
    [found] = read(path)[0]
    assert found.id == "a.warc:1:http://a.example/?to=jane.doe@example.org"
    pipeline = Pipeline(tmp_path, {"main": tmp_path / "a.warc"}, CURATION)
    config = pipeline.collect_config("main").model_copy(update={"personal": True})
    pipeline.make("collect", "documents.main", "documents", config, [])
    [line] = shard_lines(pipeline.made["documents.main"], "shards/00000.jsonl.zst", tmp_path)
    assert "jane" not in line["id"]


@pytest.mark.parametrize("name", ["a.warc.wet.gz", "a.xhtml", "site.html/b.html"])
def test_names_of_web_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    whole = record(b"a text", "conversion", "text/plain") if "wet" in name else page("a text")
    put(tmp_path / name, gzip.compress(whole) if name.endswith("gz") else whole)
    for given in {name, f"{name.partition('/')[0]}{'/' if '/' in name else ''}"}:
        assert [each.text for each in read(str(tmp_path / given))[0]] == ["a text"]
