"""Document filters beside those of datatrove: decisions, and megabytes a second of one core.

python benchmarks/filters.py --peer PYTHON [--documents 5000] [--rounds 3] [--table]

PYTHON: the interpreter of an environment with `datatrove[io,processing]` 0.10.1, spacy, pydantic and numpy.
Both run in one process of it, on the same documents: the standard library's sources, docstrings and help
topics, and drawn junk. Goals: with datatrove's words and sentences every decision and its reason are equal;
with our own, at least 1.5 times its megabytes a second. --table: write the decisions on some documents to
tests/engine/data/filter/decisions.json, which a quick test reads.
"""

import argparse
import importlib
import json
import random
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "src"), str(Path(__file__).parent)]

from filter_documents import drawn, written

from atelier.engine.config.filter.c4 import C4
from atelier.engine.config.filter.fineweb import FineWeb
from atelier.engine.config.filter.gopher_quality import GopherQuality
from atelier.engine.config.filter.gopher_repetition import GopherRepetition
from atelier.engine.data.filter_text import DocumentText, check_of
from atelier.engine.data.splitter import OWN, Splitter

TABLE = TOP / "tests" / "engine" / "data" / "filter" / "decisions.json"
IN_TABLE = 200  # documents of the table, the shortest of each kind of document
SPECS = {spec.kind: spec for spec in (GopherQuality(), GopherRepetition(), C4(), FineWeb())}
REASONS = {  # of datatrove -> ours
    "gopher_quality": {
        "gopher_short_doc": "min_words",
        "gopher_long_doc": "max_words",
        "gopher_below_avg_threshold": "min_mean_word_length",
        "gopher_above_avg_threshold": "max_mean_word_length",
        "gopher_too_many_hashes": "max_hashes",
        "gopher_too_many_ellipsis": "max_ellipses",
        "gopher_too_many_bullets": "max_bullet_lines",
        "gopher_too_many_end_ellipsis": "max_ellipsis_lines",
        "gopher_below_alpha_threshold": "min_alphabetic_words",
        "gopher_enough_stop_words": "min_stop_words",
    },
    "gopher_repetition": {
        "dup_para_frac": "max_duplicate_paragraphs",
        "dup_para_char_frac": "max_duplicate_paragraph_chars",
        "dup_line_frac": "max_duplicate_lines",
        "dup_line_char_frac": "max_duplicate_line_chars",
        **{f"top_{n}_gram": f"max_top_{n}gram" for n in range(2, 5)},
        **{f"duplicated_{n}_n_grams": f"max_duplicate_{n}grams" for n in range(5, 11)},
    },
    "c4": {
        "lorem_ipsum": "lorem_ipsum",
        "curly_bracket": "curly_brackets",
        "too_few_sentences": "min_sentences",
    },
    "fineweb": {
        "line_punct_ratio": "min_punctuated_lines",
        "short_line_ratio": "max_short_lines",
        "char_dup_ratio": "max_duplicate_line_chars",
        "list_ratio": "max_newlines",
    },
}
Decide = Callable[[str], list[str]]  # a text -> for each filter the reason of its refusal; '' = kept


def ours(splitter: Splitter) -> Decide:
    checks = [check_of(spec) for spec in SPECS.values()]

    def decide(text: str) -> list[str]:
        shared = DocumentText(text, splitter=splitter)
        found = [check(shared) for check in checks]
        return [refused.reason if refused else "" for refused in found]

    return decide


def theirs() -> tuple[Decide, Splitter]:
    """The filters of datatrove and its splitter, which splits a text once for all filters as well."""
    kinds = importlib.import_module("datatrove.pipeline.filters")
    document = importlib.import_module("datatrove.data").Document
    texts = importlib.import_module("datatrove.utils.text")
    filters = {
        "gopher_quality": kinds.GopherQualityFilter(),
        "gopher_repetition": kinds.GopherRepetitionFilter(),
        "c4": kinds.C4QualityFilter(),
        "fineweb": kinds.FineWebQualityFilter(),
    }

    def decide(text: str) -> list[str]:
        found = []
        for kind, each in filters.items():
            decision = each.filter(document(text=text, id="0"))
            reason = decision[1] if isinstance(decision, tuple) else ""
            found.append(reason and f"{kind}.{REASONS[kind].get(reason, reason)}")
        return found

    sentences = texts.split_into_sentences
    return decide, Splitter(texts.split_into_words, lambda line: len(sentences(line)))


def compared(texts: list[str], rounds: int) -> dict[str, Any]:
    """The decisions of each side on each text, and the CPU-seconds of each round."""
    decide, splitter = theirs()
    sides = {"datatrove": decide, "with its words": ours(splitter), "own words": ours(OWN)}
    for side in sides.values():  # what is loaded at the first use is not timed
        side(texts[0])
    decisions: dict[str, list[list[str]]] = {}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds):
        names = [*sides][turn % len(sides) :] + [*sides][: turn % len(sides)]
        for name in names:
            importlib.import_module("datatrove.utils.text").split_into_parts.cache_clear()
            begin = time.process_time()
            decisions[name] = [sides[name](text) for text in texts]
            seconds[name].append(time.process_time() - begin)
    return {"decisions": decisions, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", default="")
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--of", default="", help="used by itself: the file with the documents")
    asked = parser.parse_args()
    if asked.of:
        print(json.dumps(compared(json.loads(Path(asked.of).read_text()), asked.rounds)))
        return
    texts = documents(asked.documents)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "documents.json"
        file.write_text(json.dumps([text for _, text in texts]))
        command = [asked.peer, __file__, "--of", str(file), "--rounds", str(asked.rounds)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    found = json.loads(done.stdout)
    report(texts, found, asked)


def documents(number: int) -> list[tuple[str, str]]:
    """(kind, text) of about half written and half drawn documents, in a fixed random order."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    rng = random.Random(0)
    mine = written(sources, rng, number // 2)
    found = mine + drawn([text for _, text in mine], rng, number - len(mine))
    rng.shuffle(found)
    return found


def report(texts: list[tuple[str, str]], found: dict[str, Any], asked: argparse.Namespace) -> None:
    size = sum(len(text.encode(errors="surrogatepass")) for _, text in texts) / 1e6
    decisions = {name: [tuple(row) for row in rows] for name, rows in found["decisions"].items()}
    peer, kinds = decisions["datatrove"], [*SPECS]
    numbers: dict[str, Any] = {
        "documents": len(texts),
        "megabytes": round(size, 2),
        "documents by kind": dict(sorted(Counter(kind for kind, _ in texts).items())),
        "refused by datatrove": {
            kind: dict(sorted(Counter(row[n] for row in peer if row[n]).items()))
            for n, kind in enumerate(kinds)
        },
    }
    for side in ("with its words", "own words"):
        numbers[f"other decisions, {side}"] = {
            kind: sum(bool(a[n]) != bool(b[n]) for a, b in zip(peer, decisions[side], strict=True))
            for n, kind in enumerate(kinds)
        }
        numbers[f"other reasons, {side}"] = {
            kind: sum(a[n] != b[n] for a, b in zip(peer, decisions[side], strict=True))
            for n, kind in enumerate(kinds)
        }
    for n, kind in enumerate(kinds):
        for (of, text), a, b in zip(texts, peer, decisions["with its words"], strict=True):
            if a[n] != b[n]:
                print(kind, of, repr(text[:120]), a[n], b[n], file=sys.stderr)
    medians = {name: statistics.median(times) for name, times in found["seconds"].items()}
    numbers["CPU-seconds per MB"] = {name: round(each / size, 4) for name, each in medians.items()}
    numbers["rate over datatrove's"] = {
        name: round(medians["datatrove"] / medians[name], 2) for name in ("with its words", "own words")
    }
    print(json.dumps(numbers, indent=1))


if __name__ == "__main__":
    main()
