"""The task `curate`: read source files into documents.jsonl, each document in the training or held-out
split.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from zlib import crc32

from atelier.engine.config.base import Json
from atelier.engine.config.data import Source, is_stdlib, share_note
from atelier.engine.config.error import DataError
from atelier.engine.data.copies import text_group
from atelier.engine.data.corpus import DOCUMENTS, HELD_OUT, TRAIN, CorpusLine, split_of
from atelier.engine.data.source import Document, Files, documents
from atelier.engine.data.source_reader import SourceReader
from atelier.engine.io.artifact import ArtifactOutput
from atelier.engine.io.process import Progress
from atelier.engine.io.source_files import total_bytes

# A long document is split into parts, each short enough for one line of the corpus. Only the text of a line,
# not a character count, decides whether a part ends there. So documents that share pages share most of their
# parts, and copies fall on one side of the held-out split.
SMALLEST = 1024  # characters per part
LONGEST = 8 << 20  # characters per corpus line: at most 48 MiB as JSON, which document.py can read
OF_A_SHARE = 32  # parts in the held-out share
ENDS = 4  # one line in this many may end a part
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


@dataclass
class _Found:
    """Counts and digests of the documents read, without their texts."""

    groups: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # characters
    kinds: Counter[str] = field(default_factory=Counter)
    keys: set[bytes] = field(default_factory=set)
    duplicates: int = 0

    def adds(self, document: Document) -> bool:
        """Whether the document is not a copy of an earlier one."""
        key = bytes.fromhex(document.key)[:16]
        if key in self.keys:
            self.duplicates += 1
            return False
        self.keys.add(key)
        self.groups.append(document.group)
        self.sizes.append(len(document.text))
        self.kinds[document.kind] += 1
        return True


def curate(
    source: Source, held_out: float, files: Files, output: ArtifactOutput, scratch: Path, progress: Progress
) -> dict[str, Json]:
    """Write documents.jsonl, one CorpusLine per line. Returns the summary.

    Among copies of a text the first by file order is kept. A document longer than the whole held-out share is
    split by its parts, except source files of the standard library. Raises DataError if the source has no
    text.
    """
    progress.start(total_bytes(files), "bytes")
    scratch.mkdir(parents=True, exist_ok=True)
    unsplit, split = scratch / "unsplit.jsonl", scratch / DOCUMENTS
    found = _Found()
    with (
        SourceReader(on_error=source.on_error, place="data", progress=progress) as reader,
        open(unsplit, "w", encoding="utf-8") as target,
    ):
        for document in documents(source, files, reader):
            if found.adds(document):
                target.write(_line(document))
    if not found.groups:
        files_read = f"{len(files)} files, {reader.skipped} broken lines left out"
        raise DataError(
            f"data.source: {source.source} holds no text ({files_read}); give another data.source"
        )
    share = held_out * sum(found.sizes)
    whole = math.inf if is_stdlib(source.source) else max(2 * SMALLEST, share)
    cut = _cut(unsplit, found, whole=whole, size=part_size(share))
    groups = [group for n, group in enumerate(found.groups) if n not in cut]
    groups += [group for each in cut.values() for group, _ in each]
    sizes = _split(unsplit, split, split_of(groups, held_out, "data.source"), cut)
    output.add(DOCUMENTS, split)
    unsplit.unlink()
    split.unlink()
    apart = sum(found.sizes[n] > whole for n in cut)
    _tell(progress, sizes, held_out, apart)
    return {
        "documents": sum(map(len, sizes.values())),
        "bytes": sum(map(sum, sizes.values())),
        "held_out_documents": len(sizes[HELD_OUT]),
        "held_out_bytes": sum(sizes[HELD_OUT]),
        "in_parts": apart,
        "skipped": reader.skipped,
        "duplicates": found.duplicates,
        "kinds": dict(sorted(found.kinds.items())),
        **({"web": dict(reader.notes)} if reader.notes else {}),
    }


def _tell(progress: Progress, sizes: dict[str, list[int]], held_out: float, apart: int) -> None:
    if apart:
        progress.warn(
            f"{apart} document(s), longer than the whole held-out share, are split by their parts, so"
            " training reads text around the held-out parts"
        )
    own, rest = (sum(sizes[name]) for name in (HELD_OUT, TRAIN))
    if said := share_note(own, own + rest, held_out, "data.held_out"):
        progress.warn(said)


def _line(document: Document) -> str:
    return (
        json.dumps({"group": document.group, "id": document.id, "text": document.text}, ensure_ascii=False)
        + "\n"
    )


Parts = list[tuple[str, int]]  # of a document: group and characters of each part


def _cut(unsplit: Path, found: _Found, *, whole: float, size: int) -> dict[int, Parts]:
    """By number: the parts of each document longer than `whole`, with their own groups, or longer than a
    corpus line.
    """
    cut: dict[int, Parts] = {}
    long = {n for n, length in enumerate(found.sizes) if length > min(whole, LONGEST)}
    for number, line in _lines_of(unsplit, long):
        groups_apart = found.sizes[number] > whole
        texts = parts(line["text"], size)
        cut[number] = [(text_group(each) if groups_apart else line["group"], len(each)) for each in texts]
    return cut


def _lines_of(path: Path, numbers: set[int]) -> Iterator[tuple[int, CorpusLine]]:
    if not numbers:
        return
    with open(path, encoding="utf-8", newline="\n") as lines:
        for number, text in enumerate(lines):
            if number in numbers:
                yield number, json.loads(text)


def _split(
    unsplit: Path, target: Path, splits: dict[str, str], cut: dict[int, Parts]
) -> dict[str, list[int]]:
    """Copy the lines with their splits, documents in `cut` as several lines; returns the UTF-8 bytes of each
    split's lines.
    """
    sizes: dict[str, list[int]] = {TRAIN: [], HELD_OUT: []}
    with open(unsplit, encoding="utf-8", newline="\n") as lines, open(target, "w", encoding="utf-8") as file:
        for number, text in enumerate(lines):
            line: CorpusLine = json.loads(text)
            for each in runs_of(line, cut[number], splits) if number in cut else [line]:
                each["split"] = splits[each["group"]]
                sizes[each["split"]].append(len(each["text"].encode()))
                file.write(json.dumps(each, ensure_ascii=False, sort_keys=True) + "\n")
    return sizes


def runs_of(line: CorpusLine, pieces: Parts, splits: dict[str, str]) -> Iterator[CorpusLine]:
    """The document as lines: neighbouring parts of one side are joined, up to LONGEST characters."""
    text, begin, count = line["text"], 0, 0
    while pieces:
        group, end, taken = pieces[0][0], begin, 0
        for other, length in pieces:
            if splits[other] != splits[group] or (taken and end + length - begin > LONGEST):
                break
            end, taken = end + length, taken + 1
        pieces, count = pieces[taken:], count + 1
        found: CorpusLine = {
            "group": group,
            "id": f"{line['id']}#{count}",
            "text": text[begin:end],
            "split": splits[group],
        }
        yield {**found, "cut": True} if pieces or line.get("cut") else found
        begin = end


def part_size(share: float) -> int:
    """Approximate characters per part if `share` characters are to be held out."""
    return int(min(max(share / OF_A_SHARE, SMALLEST), LONGEST // 3))


def parts(text: str, size: int) -> list[str]:
    """The text in parts of about `size` characters (half to twice as many). They end with a paragraph, else a
    line, else a word, else anywhere.
    """
    ends, place, last = [0], 0, ""
    for line in _lines(text, size // 4):
        length = place + len(line) - ends[-1]
        is_place = not line.strip() or length >= size  # the end of a paragraph, or long enough without one
        place += len(line)
        last = line if line.strip() else last
        may_end = length >= size // 2 and is_place and not crc32(last.encode(errors="surrogatepass")) % ENDS
        if may_end or length >= size + size // 2:
            ends.append(place)
    if place > ends[-1]:
        short = place - ends[-1] < size // 2 and len(ends) > 1
        ends[-1:] = [place] if short else [ends[-1], place]
    return [text[begin:end] for begin, end in pairwise(ends)]


def _lines(text: str, most: int) -> Iterator[str]:
    """The lines of a text; longer lines than `most` in pieces, which end with a blank if possible."""
    for found in _LINE.finditer(text):
        line, begin = found[0], 0
        while len(line) - begin > most:
            blank = max(line.rfind(" ", begin, begin + most), line.rfind("\t", begin, begin + most))
            end = blank + 1 if blank >= begin else begin + most
            yield line[begin:end]
            begin = end
        yield line[begin:]
