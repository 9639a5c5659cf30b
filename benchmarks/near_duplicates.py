"""Near-duplicate removal: recall by similarity, precision, comparisons, and CPU-seconds per MB beside
datatrove and text-dedup.

python benchmarks/near_duplicates.py [--others PYTHON] [--megabytes 4] [--repeats 5] [--trial]      minutes

- Recall: 2,000 planted pairs of ten similarities, one in four in Chinese. The pairs that share a band are
  compared with the formula 1 - (1 - J^r)^b by a chi-square over levels, with the measured similarity J of
  each pair: the sum of (found - expected)^2 / variance. Levels with fewer than 5 expected finds or misses are
  joined with their neighbour. Goal: below the 99 % quantile.
- Precision: of the same texts, the removed ones whose similarity to the kept one, from sets of words, is at
  least 0.8. Goal: 1.
- Boilerplate: 10,000 unrelated texts behind one of 20 licences, with similarities below 0.8. Goal: all are
  kept.
- Copies: 10,000 copies of one text, each with another word, in both ways to keep.
- Hostile texts: CPU-seconds of one n-gram repeated and of one long word, at twice the length each.
- Speed: signatures of the same files, 14 bands of 8 rows, shingles of 5 words. Counted is the processor time
  of the functions alone, without reading and writing. The order rotates; medians. Goal: 5 times datatrove.
  PYTHON is an interpreter that has datatrove (with spacy, tokenizers, xxhash < 4) and text-dedup.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from machine import keep

from atelier.engine.data.curation.duplicates import Duplicates, Keep, decide
from atelier.engine.data.curation.minhash import MinHash, bands, jaccard, share_found, shingles
from tests.engine.data.curation.texts import pair, text, words

SPEC = MinHash()
LEVELS = [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95]
FEWEST = 5  # expected finds and misses of a level of the chi-square

OTHER = """
import json, sys, time
from importlib import metadata
name, paths = sys.argv[1], json.load(open(sys.argv[2]))
texts = [open(path, encoding="utf-8", errors="replace").read() for path in paths]
if name == "datatrove":
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
    config = MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8)
    step = MinhashDedupSignature(sys.argv[3], config)
    def sign(text):
        shingles = step.get_shingles(text)
        return step.get_signature(shingles) if shingles.size else None
else:
    import numpy as np
    from text_dedup.minhash import RNG, embed_func, xxh3_32hash
    prime = np.uint64((1 << 61) - 1)
    functions = [RNG.randint(low, prime, size=(112,), dtype=np.uint64) for low in (1, 0)]
    ranges = [(n * 8, n * 8 + 8) for n in range(14)]
    def sign(text):
        return embed_func(text, 0, num_perm=112, ngram_size=5, min_length=5, hashranges=ranges,
                          permutations=functions, hash_func=xxh3_32hash, dtype=np.uint64,
                          max_hash=np.uint32((1 << 32) - 1), modulo_prime=prime)
sys.stdout, told = sys.stderr, sys.stdout
print(metadata.version(name), file=told, flush=True)
for _ in sys.stdin:
    begin = time.process_time()
    for text in texts:
        sign(text)
    print(time.process_time() - begin, file=told, flush=True)
"""


def decided(texts: list[str], how: Keep = "verified") -> tuple[Duplicates, dict[str, Any]]:
    """The decision, and its counts and CPU-seconds."""
    begin = time.process_time()
    found = [shingles(each) for each in texts]
    rows = np.array([bands(each, SPEC) for each in found])
    signed = time.process_time()
    keys = np.array([hashlib.sha256(each.encode()).digest()[:16] for each in texts], dtype="S16")
    decision = decide(rows, keys, np.arange(len(texts)), lambda n: found[n], keep=how)
    return decision, {
        "documents": len(texts),
        "removed": decision.exact + decision.near,
        "comparisons": decision.comparisons,
        "not_compared": decision.not_compared,
        "not_listed": decision.not_listed,
        "clusters": len(decision.sizes_C),
        "cpu_s_signatures": round(signed - begin, 3),
        "cpu_s_decision": round(time.process_time() - signed, 3),
    }


def recall(pairs: int) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    rows, texts = [], []
    for n in range(pairs):
        level = LEVELS[n % len(LEVELS)]
        count = int(rng.integers(100, 500))
        one, other = pair(rng, level, count, is_han=n // len(LEVELS) % 4 == 0)
        texts += [one, other]
        own, its = shingles(one), shingles(other)
        similar = jaccard(own, its)
        is_found = bool((bands(own, SPEC) == bands(its, SPEC)).any())
        rows.append((level, similar, is_found, share_found(similar, SPEC.bands, SPEC.rows)))
    joined: list[np.ndarray] = []  # found, misses, expected, expected misses, variance
    table = []
    for level in LEVELS:
        mine = np.array([row[1:] for row in rows if row[0] == level])
        found, share = mine[:, 1].sum(), mine[:, 2]
        sums = np.array([found, share.sum(), (1 - share).sum(), (share * (1 - share)).sum()])
        table.append({
            "level": level,
            "mean_jaccard": round(float(mine[:, 0].mean()), 4),
            "pairs": len(mine),
            "found": int(found),
            "expected": round(float(sums[1]), 2),
        })  # fmt: skip
        joined.append(sums)
        if len(joined) > 1 and min(joined[-2][1], joined[-2][2], sums[2]) < FEWEST:
            joined[-2:] = [joined[-2] + sums]
    chi_square = sum(float((found - mean) ** 2 / variance) for found, mean, _, variance in joined)
    limit = float(stats.chi2.ppf(0.99, len(joined)))
    decision, counts = decided(texts)
    removed = np.flatnonzero(decision.kept_N != np.arange(len(texts))).tolist()
    similar = [by_sets(texts[n], texts[int(decision.kept_N[n])]) for n in removed]
    above = sum(row[1] >= 0.8 for row in rows)
    return {
        "levels": table,
        "chi_square": round(chi_square, 2),
        "degrees": len(joined),
        "limit_99": round(limit, 2),
        "p": round(float(stats.chi2.sf(chi_square, len(joined))), 3),
        "is_consistent": chi_square < limit,
        "pairs_of_0.8_or_more": above,
        "precision": sum(one >= 0.8 for one in similar) / len(similar),
        "recall_of_0.8_or_more": round(len(removed) / above, 4),
        **counts,
    }


def by_sets(one: str, other: str) -> float:
    """The Jaccard similarity of sets of five words or Chinese characters, without hashes."""

    def grams(of: str) -> set[tuple[str, ...]]:
        tokens = of.split() if " " in of else list(of)
        return {tuple(tokens[n : n + 5]) for n in range(len(tokens) - 4)}

    return len(grams(one) & grams(other)) / len(grams(one) | grams(other))


def boilerplate(documents: int) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    licences = [text(rng, 24) for _ in range(20)]
    texts = []
    for n in range(documents):
        licence = licences[n % len(licences)]
        # with a share s of own words in each text, J is about (1 - s) / (1 + s): 0.79 at most
        size = round(len(licence.split()) * rng.uniform(0.135, 1.0))
        texts.append(f"{licence}\n\n{' '.join(words(rng, size))}")
    sample = [jaccard(shingles(texts[n]), shingles(texts[n + len(licences)])) for n in range(500)]
    _, counts = decided(texts)
    return {
        "jaccard_of_pairs": {
            "median": round(statistics.median(sample), 3),
            "largest": round(max(sample), 3),
        },
        **counts,
    }


def copies(documents: int, how: Keep) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    tokens = words(rng, 300)
    texts = []
    for n in range(documents):
        own = list(tokens)
        own[int(rng.integers(0, len(own)))] = f"word{n}"
        texts.append(" ".join(own))
    return decided(texts, how)[1]


def linear() -> dict[str, Any]:
    """CPU-seconds of texts and their doubles, the least of three."""
    found = {}
    for name, piece in (("one n-gram", "one two three four five "), ("one word", "w" * 24)):
        seconds = []
        for size in (1.5, 3, 6):
            of = piece * int(size * 1e6 / len(piece))
            tries = []
            for _ in range(3):
                begin = time.process_time()
                bands(shingles(of), SPEC)
                tries.append(time.process_time() - begin)
            seconds.append(round(min(tries), 4))
        found[name] = dict(zip(("1.5 MB", "3 MB", "6 MB"), seconds, strict=True))
    return found


def files_of(megabytes: float) -> list[Path]:
    """Pages of this project and modules of the standard library, in a fixed order."""
    library = Path(sysconfig.get_path("stdlib"))
    modules = sorted(path for path in library.rglob("*.py") if "site-packages" not in path.parts)
    found, size = [], 0.0
    for path in [*sorted((PROJECT / "docs").rglob("*.md")), *modules[::7]]:
        if size < megabytes * 1e6:
            found.append(path)
            size += path.stat().st_size
    return found


class Other:
    """Another library's signatures, in a process with its interpreter."""

    def __init__(self, name: str, python: str, files: Path, folder: Path) -> None:
        self._process = subprocess.Popen(
            [python, "-c", OTHER, name, str(files), str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.version = self._line()

    def __call__(self) -> float:
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._line())

    def _line(self) -> str:
        assert self._process.stdout
        if not (line := self._process.stdout.readline()):
            raise SystemExit("the other library ended; is it installed there?")
        return line.strip()

    def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def speed(megabytes: float, repeats: int, python: str | None) -> dict[str, Any]:
    paths = files_of(megabytes)
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in paths]
    size = sum(len(each.encode()) for each in texts) / 1e6

    def own() -> float:
        begin = time.process_time()
        for each in texts:
            bands(shingles(each), SPEC)
        return time.process_time() - begin

    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "files.json"
        files.write_text(json.dumps([str(path) for path in paths]))
        others = {name: Other(name, python, files, Path(folder)) for name in NAMES} if python else {}
        runs: dict[str, Callable[[], float]] = {"atelier": own, **others}
        times: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(repeats + 1):  # the first is not counted
            for name in [*runs][turn % len(runs) :] + [*runs][: turn % len(runs)]:
                seconds = runs[name]()
                if turn:
                    times[name].append(seconds / size)
        for other in others.values():
            other.end()
    medians = {name: statistics.median(each) for name, each in times.items()}
    return {
        "files": len(paths),
        "megabytes": round(size, 2),
        "versions": {name: other.version for name, other in others.items()},
        "cpu_s_per_mb": {name: [round(one, 4) for one in each] for name, each in times.items()},
        "median": {name: round(one, 4) for name, one in medians.items()},
        "times_faster": {name: round(medians[name] / medians["atelier"], 1) for name in others},
    }


NAMES = ("datatrove", "text-dedup")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--others", metavar="PYTHON")
    parser.add_argument("--megabytes", type=float, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--trial", action="store_true", help="a tenth of the texts; writes no result")
    given = parser.parse_args()
    share = 10 if given.trial else 1
    numbers = {
        "recall": recall(2000 // share),
        "boilerplate": boilerplate(10_000 // share),
        "copies verified": copies(10_000 // share, "verified"),
        "copies component": copies(10_000 // share, "component"),
        "linear": linear(),
        "speed": speed(given.megabytes / share, given.repeats, given.others),
    }
    keep("near_duplicates", numbers, is_trial=given.trial)


if __name__ == "__main__":
    main()
