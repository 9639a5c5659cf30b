"""The index of a corpus's words: speed and memory to make it, its size, and the time of 1,000 questions.

python benchmarks/word_index.py [--megabytes 10 100 1000] [--repeats 5] [--datatrove PYTHON] [--trial]

- Prose: words drawn with the frequencies of the standard library's docstrings, documents of 100 to 2,000
  words. Code and docstrings: those of the standard library, a file is a document.
- Made by a process of its own. Goals: 10 MB a CPU-second, at most 200 MB of memory and half a byte a byte.
- Questions: 1,000 of 8 to 60 words, half of them cut out of documents. Goals: these are all found, and the
  candidates of all are known in about a second. Median, least and most of the repeats.
- Peers, which read the corpus again for each set of questions: `scan`, a Python set of the questions' runs
  of 13 words, and, with an interpreter that has datatrove and spacy, its NGramsDecontFilter. In CPU-seconds
  a MB. A set of the corpus's own runs of 13 words is the plain index: its memory a byte of text.
"""

import argparse
import ast
import json
import os
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from machine import keep, use_own_code

from atelier.engine.config.record import Record, identify
from atelier.engine.config.run_file import RunFile
from atelier.engine.data.audit.documents import CorpusDocument
from atelier.engine.data.audit.part_match import scan
from atelier.engine.data.audit.word_index import WordIndex
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput, open_input
from atelier.engine.io.shards import ShardWriter
from atelier.engine.io.storage import read_object

QUESTIONS, SHORTEST, LONGEST = 1000, 8, 60
SHARD = 32 << 20  # bytes of text
WORD = re.compile(r"\w+")
MAKE = """
import sys
from atelier.engine.prepare import main
code = main(sys.argv[1:])
# not the maximum of wait4, which counts the parent's memory before this program was loaded
sys.stderr.write(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
sys.exit(code)
"""
DATATROVE = """
import json, sys, time
from importlib.metadata import version
from types import SimpleNamespace
from datatrove.data import Document
from datatrove.pipeline.decont import NGramsDecontFilter, NGramsDecontIndexer
from datatrove.pipeline.decont.n_grams import NGramsDecontConfig
texts, parts = json.load(open(sys.argv[1]))
config = NGramsDecontConfig(n_grams=13, find_query_ngrams=True, find_overlap_ngrams=False)
peer = NGramsDecontFilter(sys.argv[2], config)
begin = time.process_time()
own = SimpleNamespace(tokenizer=peer.tokenizer, config=config, hash_func=peer.hash_func)
hashes = [NGramsDecontIndexer.compute_hashes(own, part) for part in parts]
built = time.process_time() - begin
peer._index_hashes = {each: "questions" for own in hashes for each in own}
begin = time.process_time()
found = sum(peer.filter(Document(text=text, id=str(n))) is not True for n, text in enumerate(texts))
print(json.dumps([version("datatrove"), built, time.process_time() - begin, found]))
"""


def library() -> list[str]:
    """The sources of the standard library."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)
    return [path.read_text(encoding="utf-8", errors="replace") for path in paths]


def docstrings(sources: Iterable[str]) -> Iterator[str]:
    """Those of each file, if it has any."""
    for source in sources:
        try:
            nodes = list(ast.walk(ast.parse(source)))
        except (SyntaxError, ValueError):  # files that test the parser
            continue
        found = [
            ast.get_docstring(node)
            for node in nodes
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        ]
        if text := "\n\n".join(filter(None, found)):
            yield text


class Prose:
    """Texts of words drawn by their frequencies; one in 12 ends a sentence."""

    def __init__(self, texts: Iterable[str]) -> None:
        counts = Counter(word.lower() for text in texts for word in re.findall(r"[A-Za-z]+", text))
        self._words = np.array([*counts, *(f"{word}." for word in counts)], dtype=object)
        share = np.array(list(counts.values())) / counts.total()
        self._upto = np.cumsum(np.concatenate([share * 11 / 12, share / 12]))

    def text(self, rng: np.random.Generator, words: int) -> str:
        numbers = np.searchsorted(self._upto, rng.random(words) * self._upto[-1], side="right")
        return " ".join(self._words[numbers])

    def texts(self, size: float) -> Iterator[str]:
        """About `size` bytes."""
        rng = np.random.default_rng(3)
        while size > 0:
            text = self.text(rng, int(rng.integers(100, 2000)))
            size -= len(text)
            yield text


def corpus_of(texts: Iterable[str], folder: Path) -> ArtifactInput:
    """A corpus of shards; one document in 100 is held out."""
    output, writer, size, shard, number = ArtifactOutput(str(folder / "corpus")), None, 0, 0, -1
    for number, text in enumerate(texts):
        if writer is None:
            writer = ShardWriter(folder / "shard.zst")
        split = "train" if number % 100 else "held_out"
        writer.write({"id": f"d{number}", "text": text, "split": split, "group": f"g{number}"})
        size += len(text)
        if size >= SHARD:
            add(output, shard, writer)
            writer, size, shard = None, 0, shard + 1
    if writer is not None:
        add(output, shard, writer)
    output.close({"documents": number + 1})
    return published(folder / "corpus", "corpus")


def add(output: ArtifactOutput, shard: int, writer: ShardWriter) -> None:
    writer.close()
    output.add(f"payload/shards/{shard:05d}.jsonl.zst", writer.path)


def published(folder: Path, kind: str) -> ArtifactInput:
    body = json.loads((folder / "body.json").read_text())
    record = Record(
        kind=kind, name=kind, fingerprint=identify(kind, 1, {}, {}), version=1, identity={}, parents={},
        files=tuple(body["files"]), summary=body["summary"],
    )  # fmt: skip
    (folder / "record.json").write_text(record.sealed().text())
    return open_input(str(folder))


def made(corpus: ArtifactInput, folder: Path) -> tuple[ArtifactInput, dict[str, Any]]:
    """The index, made by a process of its own, and what it took."""
    run = RunFile(
        schema=1, task="index_words", version=1, config={}, inputs={"corpus": corpus.url},
        outputs={"word_index": str(folder / "index")}, scratch=str(folder / "scratch"),
    )  # fmt: skip
    (folder / "run.json").write_text(run.model_dump_json(by_alias=True))
    command = [sys.executable, "-c", MAKE, str(folder / "run.json")]
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    told = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"index_words ended with {process.returncode}: {told}")
    wall, cpu = time.monotonic() - begin, used.ru_utime + used.ru_stime
    index = published(folder / "index", "word_index")
    summary: dict[str, Any] = {**index.record.summary}
    about = read_object(str(folder / "index" / "index.json"))
    size, text = int(summary["index_bytes"]), int(summary["text_bytes"])
    return index, {
        "text_mb": round(text / 1e6, 1),
        "documents": about["documents"],
        "entries": about["entries"],
        "index_mb": round(size / 1e6, 1),
        "index_bytes_per_text_byte": round(size / text, 3),
        "cpu_s": round(cpu, 1),
        "mb_per_cpu_s": round(text / 1e6 / cpu, 1),
        "wall_s": round(wall, 1),
        "peak_memory_mb": round(int(told) / 1024),
    }


def questions(texts: Iterable[str], drawn: Callable[[int], str], every: int) -> tuple[list[str], list[int]]:
    """QUESTIONS questions, and the documents of the first half: one of `every` documents is asked about."""
    rng = np.random.default_rng(4)
    parts, owners = [], []
    for number, text in enumerate(texts):
        words = text.split()
        size = int(rng.integers(SHORTEST, LONGEST))
        if number % every or len(words) <= size or len(parts) >= QUESTIONS // 2:
            continue
        first = int(rng.integers(len(words) - size))
        part = " ".join(words[first : first + size])
        if len(WORD.findall(part)) >= SHORTEST:
            parts.append(part)
            owners.append(number)
    new = [drawn(int(rng.integers(SHORTEST, LONGEST))) for _ in range(QUESTIONS // 2)]
    return parts + new, owners


def asked(
    index: ArtifactInput,
    corpus: ArtifactInput,
    parts: list[str],
    owners: list[int],
    folder: Path,
    repeats: int,
) -> dict[str, Any]:
    begin = time.perf_counter()
    opened = WordIndex.open(index, folder)
    open_s = time.perf_counter() - begin
    seconds = []
    candidates = []
    for _ in range(repeats):
        begin = time.perf_counter()
        candidates = opened.candidates(parts)
        seconds.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    found = opened.matches(parts, corpus, folder)
    matches_s = time.perf_counter() - begin
    pairs = {(match.part, match.document) for match in found.matches}
    return {
        "questions": len(parts),
        "open_s": round(open_s, 3),
        "candidates_s": spread(seconds),
        "candidates_and_verified_matches_s": round(matches_s, 2),
        "candidates": sum(map(len, candidates)),
        "matches": len(pairs),
        "cut_out_of_documents": len(owners),
        "of_these_found": sum((n, owner) in pairs for n, owner in enumerate(owners)),
        "most_candidates_of_a_question": max(map(len, candidates)),
    }


def spread(seconds: list[float]) -> list[float]:
    return [round(one, 4) for one in (min(seconds), statistics.median(seconds), max(seconds))]


def peers(texts: list[str], parts: list[str], python: str, folder: Path) -> dict[str, Any]:
    """CPU-seconds a MB to read texts again for the questions, and the memory of a plain index."""
    size = sum(len(text) for text in texts) / 1e6
    begin = time.process_time()
    found = scan(
        (CorpusDocument(n, "train", n, str(n), text, len(text)) for n, text in enumerate(texts)), parts
    )
    result: dict[str, Any] = {"text_mb": round(size, 1)}
    documents = len({match.document for match in found.matches})
    result["scan"] = {"cpu_s_per_mb": round((time.process_time() - begin) / size, 4), "documents": documents}
    runs = {run for part in parts for run in runs_of(part)}
    begin = time.process_time()
    documents = sum(any(run in runs for run in runs_of(text)) for text in texts)
    result["set of the questions"] = {
        "cpu_s_per_mb": round((time.process_time() - begin) / size, 4), "documents": documents,
    }  # fmt: skip
    few = texts[: max(len(texts) // 10, 1)]
    tracemalloc.start()
    index = {run for text in few for run in runs_of(text)}
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    result["set of the corpus"] = {
        "runs": len(index), "memory_bytes_per_text_byte": round(memory / sum(map(len, few)), 1),
    }  # fmt: skip
    if python:
        (folder / "peer.json").write_text(json.dumps([few, parts]))
        command = [python, "-c", DATATROVE, str(folder / "peer.json"), str(folder)]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        version, built, seconds, documents = json.loads(told)
        result["datatrove"] = {
            "version": version, "text_mb": round(sum(map(len, few)) / 1e6, 2),
            "cpu_s_to_hash_questions": round(built, 2),
            "cpu_s_per_mb": round(seconds / (sum(map(len, few)) / 1e6), 3), "documents": documents,
        }  # fmt: skip
    return result


def runs_of(text: str) -> Iterator[tuple[str, ...]]:
    words = WORD.findall(text.lower())
    return (tuple(words[n : n + 13]) for n in range(len(words) - 12))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--datatrove", default="", help="an interpreter that has datatrove and spacy")
    parser.add_argument("--trial", action="store_true", help="2 MB; writes no result")
    given = parser.parse_args()
    use_own_code()
    sources = library()
    own = {"code": sources, "docstrings": list(docstrings(sources))}
    prose = Prose(own["docstrings"])
    texts: dict[str, Callable[[], Iterable[str]]] = {name: (lambda n=name: own[n]) for name in own}
    for size in [2] if given.trial else given.megabytes:
        texts[f"prose, {size:g} MB"] = lambda size=size: prose.texts(size * 1e6)
    numbers: dict[str, Any] = {}
    rng = np.random.default_rng(5)
    for name, each in texts.items():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            corpus = corpus_of(each(), folder)
            index, numbers[name] = made(corpus, folder)
            every = max(int(numbers[name]["documents"]) // QUESTIONS, 1)
            parts, owners = questions(each(), lambda words: prose.text(rng, words), every)
            numbers[name] |= asked(index, corpus, parts, owners, folder, given.repeats)
            print(name, numbers[name], flush=True)
            if name.startswith("prose") and "peers" not in numbers:
                numbers["peers"] = peers(list(each()), parts, given.datatrove, folder)
    keep("word_index", numbers, is_trial=given.trial)


if __name__ == "__main__":
    main()
