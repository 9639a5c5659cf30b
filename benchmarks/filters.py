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
from machine import keep

from atelier.engine.config.filter.c4 import C4
from atelier.engine.config.filter.fineweb import FineWeb
from atelier.engine.config.filter.gopher_quality import GopherQuality
from atelier.engine.config.filter.gopher_repetition import GopherRepetition
from atelier.engine.data.filter_text import DocumentText, check_of
from atelier.engine.data.personal import masked
from atelier.engine.data.repair import repaired
from atelier.engine.data.splitter import OWN, Splitter

TABLE = TOP / "tests" / "engine" / "data" / "filter" / "decisions.json"
OF_A_REASON, LONGEST_IN_TABLE = 3, 4000  # texts, characters
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
    sides["its words alone"] = lambda text: [*splitter.words(text)][:0]
    for side in sides.values():  # loading at the first use is not timed
        side(texts[0])
    decisions: dict[str, list[list[str]]] = {}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds):
        for name in [*sides][turn % len(sides) :] + [*sides][: turn % len(sides)]:
            importlib.import_module("datatrove.utils.text").split_into_parts.cache_clear()
            begin = time.process_time()
            decisions[name] = [sides[name](text) for text in texts]
            seconds[name].append(time.process_time() - begin)
    return {"decisions": decisions, "seconds": seconds, "changed": changed(texts)}


def changed(texts: list[str]) -> dict[str, int]:
    """How many texts datatrove's formatters change, and how many our functions change in another way."""
    formatters = importlib.import_module("datatrove.pipeline.formatters")
    both = {
        "addresses masked": (formatters.PIIFormatter, lambda text: masked(text)[0]),
        "repaired": (formatters.FTFYFormatter, repaired),
    }
    found = {}
    for name, (formatter, function) in both.items():
        theirs = [formatter().format(text) for text in texts]
        found[name] = sum(a != b for a, b in zip(theirs, texts, strict=True))
        found[f"{name} in another way"] = sum(a != function(b) for a, b in zip(theirs, texts, strict=True))
    return found


def table(texts: list[str]) -> list[dict[str, Any]]:
    """Decisions, words and numbers of sentences (in the order in which C4 asks) of datatrove by text."""
    decide, splitter = theirs()
    rows = []
    for text in texts:
        sentences: list[int] = []

        def counted(line: str, found: list[int] = sentences) -> int:
            found.append(splitter.sentences(line))
            return found[-1]

        ours(Splitter(splitter.words, counted))(text)
        words = [*splitter.words(text)]
        if " ".join(words).split() != words:
            raise ValueError(f"words with blanks: {text!r}")
        row = {"text": text, "words": " ".join(words), "sentences": sentences, "reasons": decide(text)}
        rows.append(row)
    return rows


def asked_peer(peer: str, texts: list[str], *arguments: str) -> Any:
    """The answer of this script in the peer's environment."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "documents.json"
        file.write_text(json.dumps(texts))
        command = [peer, __file__, "--of", str(file), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", default="")
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--of", default="", help="used by itself: the file with the documents")
    asked = parser.parse_args()
    if asked.of:
        texts = json.loads(Path(asked.of).read_text())
        print(json.dumps(table(texts) if asked.table else compared(texts, asked.rounds)))
        return
    named = documents(asked.documents)
    texts = [text for _, text in named]
    found = asked_peer(asked.peer, texts, "--rounds", str(asked.rounds))
    if asked.table:
        some = chosen(texts, found["decisions"]["datatrove"])
        rows = asked_peer(asked.peer, some, "--table")
        TABLE.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    keep("filters", report(named, found))


def documents(number: int) -> list[tuple[str, str]]:
    """(kind, text) of about half written and half drawn documents, in a fixed random order."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    rng = random.Random(0)
    mine = written(sources, rng, number // 2)
    found = mine + drawn([text for _, text in mine], rng, number - len(mine))
    rng.shuffle(found)
    return found


def chosen(texts: list[str], decisions: list[list[str]]) -> list[str]:
    """Some short texts of each reason of each filter, in order of length."""
    found: dict[tuple[int, str], list[str]] = {}
    for text, reasons in sorted(zip(texts, decisions, strict=True), key=lambda pair: len(pair[0])):
        for place in enumerate(reasons):
            if len(text) <= LONGEST_IN_TABLE and len(found.setdefault(place, [])) < OF_A_REASON:
                found[place].append(text)
    return sorted({text for some in found.values() for text in some}, key=lambda text: (len(text), text))


def report(named: list[tuple[str, str]], found: dict[str, Any]) -> dict[str, Any]:
    size = sum(len(text.encode(errors="surrogatepass")) for _, text in named) / 1e6
    decisions, kinds = found["decisions"], [*SPECS]
    peer = decisions["datatrove"]
    medians = {name: statistics.median(times) for name, times in found["seconds"].items()}
    numbers: dict[str, Any] = {
        "datatrove": "0.10.1",
        "documents": len(named),
        "megabytes": round(size, 2),
        "documents by kind": dict(sorted(Counter(kind for kind, _ in named).items())),
        "refused by datatrove": {
            kind: dict(sorted(Counter(row[n] for row in peer if row[n]).items()))
            for n, kind in enumerate(kinds)
        },
    }
    for side in ("with its words", "own words"):
        pairs = [*zip(peer, decisions[side], strict=True)]
        numbers[f"other decisions, {side}"] = {
            kind: sum(bool(a[n]) != bool(b[n]) for a, b in pairs) for n, kind in enumerate(kinds)
        }
        numbers[f"other reasons, {side}"] = {
            kind: sum(a[n] != b[n] for a, b in pairs) for n, kind in enumerate(kinds)
        }
    shares = {kind: count / len(named) for kind, count in numbers["other decisions, own words"].items()}
    numbers["share of other decisions, own words"] = {kind: round(each, 4) for kind, each in shares.items()}
    numbers["texts that formatters change"] = found["changed"]
    numbers["CPU-seconds per MB"] = {name: round(each / size, 4) for name, each in medians.items()}
    numbers["rate over datatrove's"] = {
        name: round(medians["datatrove"] / medians[name], 2) for name in ("with its words", "own words")
    }
    return numbers


if __name__ == "__main__":
    main()
