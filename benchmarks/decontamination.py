"""Decontamination: planted questions found and cut, margins, common quotations, and CPU-seconds per MB.

python benchmarks/decontamination.py [--megabytes 8] [--repeats 5] [--trial]      a minute

- Planted: 300 questions, one in four in Chinese, each in four documents: verbatim, as an own paragraph,
  re-wrapped to lines of 8 words, and inside another paragraph. Goal: all are found and no character of them
  stays. The pieces are those of the rule, applied character by character. Goal: all.
- Common: 10,000 documents with quotations from a pool of 50. Questions contain the quotations as well. Goal:
  none of the documents is cut. Another question is quoted in 30 documents. Goal: it is reported as common,
  not cut.
- Bytes: those kept and those removed for each reason, and the documents' bytes. Goal: equal.
- Speed: processor time to search, per MB of pages and source files, for the planted questions and for 100,000
  n-grams; the least, median and most of the repeats.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from machine import keep
from near_duplicates import files_of

from atelier.engine.data.curation.cut import MARGIN, SHORTEST, Cut, cut
from atelier.engine.data.curation.overlap import COMMON, Matches, Question, QuestionOverlap
from tests.engine.data.curation.texts import han, text, words

FORMS = ("verbatim", "paragraph", "lines", "inside")


def asked(rng: np.random.Generator, n: int) -> str:
    """A question of 13 to 60 words or Chinese characters."""
    size = int(rng.integers(13, 61))
    return "".join(han(rng, size)) + "？" if n % 4 == 0 else " ".join(words(rng, size)).capitalize() + "?"


def planted(rng: np.random.Generator, question: str, form: str) -> tuple[str, int, int]:
    """A document with a question, and the question's begin and end."""
    before, after = text(rng, 60), text(rng, 60)
    if form == "lines":
        tokens = question.split() if " " in question else [question]
        question = "\n".join(" ".join(tokens[n : n + 8]) for n in range(0, len(tokens), 8))
    left, right = {"paragraph": ("\n\n", "\n\n"), "lines": ("\n", "\n")}.get(form, (" ", " "))
    if form == "inside":
        own = [" ".join(words(rng, 12)) for _ in range(2)]
        left, right = f" {own[0]} ", f" {own[1]}. "
    begin = len(before) + len(left)
    return before + left + question + right + after, begin, begin + len(question)


def pieces_by_hand(of: str, begin: int, end: int) -> list[tuple[int, int]]:
    """The pieces around one found text, by a walk over characters."""

    def starts_sentence(place: int) -> bool:
        if place == 0 or of[place].isspace():
            return place == 0
        blanks = place
        while blanks and of[blanks - 1].isspace():
            blanks -= 1
        ends = of[blanks - 1] in ".!?" and blanks < place
        return ends or of[blanks - 1] == "？" or of[blanks:place].count("\n") > 1

    first, last = max(begin - MARGIN, 0), min(end + MARGIN, len(of)) - 1
    while not starts_sentence(first):
        first -= 1
    last += 1
    while last < len(of) and not starts_sentence(last):
        last += 1
    return [(b, e) for b, e in ((0, first), (last, len(of))) if e - b >= SHORTEST]


def run(documents: list[str], overlap: QuestionOverlap) -> tuple[list[Matches], np.ndarray, list[Cut]]:
    """Both passes: count, then cut."""
    counts = np.zeros(len(overlap), dtype=np.int64)
    found = [overlap.found(document) for document in documents]
    for matches in found:
        overlap.add_counts(counts, matches)
    cuts = [
        cut(document, overlap.spans(matches, counts))
        for document, matches in zip(documents, found, strict=True)
    ]
    return found, counts, cuts


def correctness(num_questions: int, num_clean: int) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    questions = [asked(rng, n) for n in range(num_questions)]
    pool = [" ".join(words(rng, int(rng.integers(15, 30)))) for _ in range(50)]
    # own words that no document has: one of them before 12 words of a quotation is an n-gram, too
    quoting = [f"asked{n} about {quotation} answered{n}" for n, quotation in enumerate(pool)]
    often = " ".join(words(rng, 25))
    overlap = QuestionOverlap(
        [
            *(Question("planted", str(n), (one, "Yes")) for n, one in enumerate(questions)),
            *(Question("quoting", str(n), (one,)) for n, one in enumerate(quoting)),
            Question("often", "0", (often,)),
        ]
    )
    rows = [(form, n, *planted(rng, one, form)) for n, one in enumerate(questions) for form in FORMS]
    documents = [row[2] for row in rows]
    for n in range(num_clean):
        documents.append(f"{text(rng, 8)} {pool[n % len(pool)]}. {text(rng, 8)}")
    documents += [f"{text(rng, 8)} {often}. {text(rng, 8)}" for _ in range(30)]
    found, counts, cuts = run(documents, overlap)
    totals = {name: sum(getattr(one, f"{name}_bytes") for one in cuts) for name in KINDS}
    size = sum(len(document.encode()) for document in documents)
    common = overlap.common(counts)
    clean = cuts[len(rows) : len(rows) + num_clean]
    return {
        "questions": num_questions,
        "ngrams": len(overlap),
        "forms": {form: forms_of(form, rows, found, cuts, overlap) for form in FORMS},
        "clean_documents": num_clean,
        "clean_documents_with_matches": sum(
            len(one.ngram_M) > 0 for one in found[len(rows) : len(rows) + num_clean]
        ),
        "clean_documents_cut": sum(one.overlap_bytes > 0 for one in clean),
        "common_ngrams": len(common),
        "least_count_of_common": min(one.documents for one in common),
        "quoted_30_times": {
            "ngrams": len(often.split()) - 12,
            "reported_with_count_30": sum(
                one.documents == 30 and one.questions == [("often", "0")] for one in common
            ),
            "documents_cut": sum(one.overlap_bytes > 0 for one in cuts[-30:]),
        },
        "uncheckable_parts": len(overlap.uncheckable),
        "bytes": {**totals, "sum": sum(totals.values()), "documents": size},
        "is_exact": sum(totals.values()) == size,
        "common_from": COMMON,
    }


KINDS = ("kept", "overlap", "short", "pieces")


def forms_of(
    form: str,
    rows: list[tuple[str, int, str, int, int]],
    found: list[Matches],
    cuts: list[Cut],
    overlap: QuestionOverlap,
) -> dict[str, int]:
    """Of the documents of one form: found with the right question, cut as a whole, and cut as stated."""
    counts = {"documents": 0, "found": 0, "cut": 0, "exact_margins": 0}
    for place, (own, number, document, begin, end) in enumerate(rows):
        if own != form:
            continue
        names = {name for n in np.unique(found[place].ngram_M).tolist() for name in overlap.questions(n)}
        pieces = cuts[place].pieces
        counts["documents"] += 1
        counts["found"] += names == {("planted", str(number))}
        counts["cut"] += bool(pieces) and all(e <= begin or b >= end for b, e in pieces)
        last = end - document[begin:end].endswith(("?", "？"))  # the last word's end
        counts["exact_margins"] += pieces == pieces_by_hand(document, begin, last)
    return counts


def speed(megabytes: float, repeats: int) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files_of(megabytes)]
    size = sum(len(each.encode()) for each in texts) / 1e6
    result: dict[str, Any] = {"megabytes": round(size, 2)}
    for name, number in (("300 questions", 300), ("100,000 n-grams", 4200)):
        begin = time.process_time()
        overlap = QuestionOverlap([Question("s", str(n), (asked(rng, n + 1),)) for n in range(number)])
        built = time.process_time() - begin
        seconds = []
        for _ in range(repeats):
            begin = time.process_time()
            for each in texts:
                overlap.found(each)
            seconds.append((time.process_time() - begin) / size)
        result[name] = {
            "ngrams": len(overlap),
            "cpu_s_to_build": round(built, 2),
            "cpu_s_per_mb": [
                round(one, 4) for one in (min(seconds), statistics.median(seconds), max(seconds))
            ],
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--trial", action="store_true", help="a tenth of the texts; writes no result")
    given = parser.parse_args()
    share = 10 if given.trial else 1
    numbers = {
        "planted": correctness(300 // share, 10_000 // share),
        "speed": speed(given.megabytes / share, given.repeats),
    }
    keep("decontamination", numbers, is_trial=given.trial)


if __name__ == "__main__":
    main()
