"""Compiled translation catalogues as text: what gettext reads in them, and what is damaged or hostile."""

import gettext
import io
import random
import struct
from pathlib import Path

import pytest

from atelier.engine.config.data import Source
from atelier.engine.config.error import DataError
from atelier.engine.data import catalogue
from atelier.engine.io.source_files import files_of
from tests.catalogues import as_catalogue
from tests.engine.data.conftest import Workshop


def put(folder: Path, name: str, data: bytes) -> str:
    path = folder / "source" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize(("charset", "order"), [("utf-8", "<"), ("latin-1", ">")])
def test_a_catalogue_has_the_messages_that_gettext_has(charset: str, order: str) -> None:
    pairs = [(f"word {n}", f"W\xf6rter {n}") for n in range(50)]
    special = [("menu\4Open", "\xd6ffnen"), ("one\0many", "eins\0viele"), ("untold", "")]
    raw = as_catalogue([*pairs, *special], charset=charset, order=order)
    peer = gettext.GNUTranslations(io.BytesIO(raw))
    found = {row["msgid"]: row["msgstr"] for _, row in catalogue.messages(raw, "a.mo", stop)}
    for original, translation in pairs:
        assert found[original] == translation == peer.gettext(original)
    assert found["Open"] == peer.pgettext("menu", "Open") and found["one"] == peer.ngettext("one", "many", 1)
    assert len(found) == len(pairs) + 3


def test_either_side_of_a_catalogue_is_a_text(workshop: Workshop, tmp_path: Path) -> None:
    place = put(tmp_path, "a.mo", as_catalogue([(f"word {n}", f"Wort {n}") for n in range(40)]))
    for field, text in (("msgid", "word 7"), ("msgstr", "Wort 7")):
        corpus = workshop.curate(Source(source=place, field=field))
        assert f'"{text}"' in (Path(corpus.url) / "documents.jsonl").read_text()
    with pytest.raises(
        DataError, match=r"message 1: field 'text' is missing; fields there: catalogue, msgid, msgstr"
    ):
        workshop.curate(Source(source=place))


def test_a_damaged_or_hostile_catalogue_is_one_line() -> None:
    """Tables that point at one text a thousand times, and character sets that take hours, too."""
    whole, draw = as_catalogue([(f"word {n}", f"W\xf6rter {n}" * 20) for n in range(30)]), random.Random(5)
    faults = 0
    for _ in range(400):
        raw = bytearray(whole[: draw.choice([len(whole), draw.randrange(len(whole))])])
        for _ in range(draw.randrange(3)):
            if raw:
                raw[draw.randrange(min(len(raw), 60))] = draw.randrange(256)
        try:
            rows = catalogue.messages(bytes(raw), "a.mo", stop)
            assert sum(len(text) for _, row in rows for text in row.values()) < len(whole)
        except DataError as error:
            faults += 1
            assert str(error).startswith("a.mo: ") and "\n" not in str(error) and len(str(error)) < 150
    assert 100 < faults < 400
    same = struct.pack("<5I", 0x950412DE, 0, 1000, 20, 20) + struct.pack("<2I", 3000, 4000) * 1000
    for name in (b"punycode", b"rot13", b"idna", b"x" * 2000):
        slow = as_catalogue([("a", "b")]).replace(b"utf-8", name[:5])
        with pytest.raises(DataError, match="is not supported; convert it"):
            list(catalogue.messages(slow, "a.mo", stop))
    with pytest.raises(DataError, match="more bytes than the file has"):
        list(catalogue.messages(same, "a.mo", stop))


def stop(where: str, problem: str) -> None:
    raise DataError(f"{where}: {problem}")


def test_a_broken_message_can_be_left_out_and_a_folder_has_catalogues_only_when_asked(
    workshop: Workshop, tmp_path: Path
) -> None:
    raw = as_catalogue([(f"word {n}", f"Wort {n}") for n in range(40)]).replace(b"Wort 7\0", b"W\xffrt 7\0")
    place = put(tmp_path, "a.mo", raw)
    with pytest.raises(DataError, match=r"a.mo: message \d+: byte 1 is not utf-8; fix it, or .*skip"):
        workshop.curate(Source(source=place, field="msgstr"))
    corpus = workshop.curate(Source(source=place, field="msgstr", on_error="skip"))
    assert len((Path(corpus.url) / "documents.jsonl").read_text().splitlines()) >= 39
    put(tmp_path, "a.txt", b"one text")
    folder = str(Path(place).parent)
    assert [Path(name).name for name in files_of(Source(source=folder))] == ["a.txt"]
    assert len(files_of(Source(source=folder, field="msgid"))) == 2
