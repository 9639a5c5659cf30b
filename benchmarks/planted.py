"""A corpus with planted junk and near-copies, for benchmarks/worth.py.

Four kinds of junk are those of benchmarks/filter_documents.py, which existed while the filters were written.
Nothing was tuned on the two others, `log` and `babble`, which were written before the first run.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from filter_documents import JUNK

KNOWN = ("repeated lines", "notices", "symbols", "table")
ORDER = 3  # characters that decide the next one in `babble`
JUNK_SHARE, COPY_SHARE = 0.3, 0.2  # of the bytes of the whole
COPIED = 40  # documents that have near-copies
CHANGED = 0.01  # share of the words of a near-copy that differ


class Planted(NamedTuple):
    """A document, and what it is: clean, copy, or a kind of junk."""

    kind: str
    text: str


def log(rng: random.Random) -> str:
    """Lines of a server's log."""
    parts = [
        "GET /static/%x.js 200",
        "worker %x accepted",
        "retry %x in 5 s",
        "cache miss key=%x",
        "user %x login",
    ]
    second = rng.randrange(86_000)
    lines = []
    for _ in range(rng.randint(20, 200)):
        second += rng.randint(0, 9)
        time = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}.{rng.randrange(1000):03d}"
        lines.append(
            f"2026-03-{rng.randint(1, 28):02d} {time} INFO {rng.choice(parts) % rng.getrandbits(48)}"
        )
    return "\n".join(lines)


class Babble:
    """Text that has the statistics of a few characters of real text, and no sense."""

    def __init__(self, texts: Sequence[str]) -> None:
        following: dict[str, Counter[str]] = defaultdict(Counter)
        for text in texts:
            for place in range(len(text) - ORDER):
                following[text[place : place + ORDER]][text[place + ORDER]] += 1
        self._following = {key: ([*found], [*found.values()]) for key, found in following.items()}
        self._begins = sorted(self._following)

    def __call__(self, rng: random.Random) -> str:
        text = rng.choice(self._begins)
        for _ in range(rng.randint(500, 6000)):
            found = self._following.get(text[-ORDER:])
            text += rng.choices(*found)[0] if found else rng.choice(self._begins)
        return text


def nearly(text: str, rng: random.Random) -> str:
    """A copy with some words changed, in a run, as a date or a name would."""
    words = text.split(" ")
    run = max(1, int(len(words) * CHANGED))
    begin = rng.randrange(max(1, len(words) - run))
    words[begin : begin + run] = [f"changed{rng.randrange(1000)}" for _ in range(run)]
    return " ".join(words)


def planted(clean: Sequence[str], seed: int) -> list[Planted]:
    """The clean documents with junk (JUNK_SHARE of all bytes, equal bytes of each kind) and near-copies
    (COPY_SHARE), in drawn order.
    """
    rng = random.Random(seed)
    own = sum(len(text.encode()) for text in clean)
    whole = own / (1 - JUNK_SHARE - COPY_SHARE)
    words = [word for text in rng.sample(list(clean), min(300, len(clean))) for word in text.split()]
    babble = Babble(rng.sample(list(clean), min(60, len(clean))))
    makers = {name: lambda name=name: JUNK[name](words, rng) for name in KNOWN}
    makers |= {"log": lambda: log(rng), "babble": lambda: babble(rng)}
    found = [Planted("clean", text) for text in clean]
    for kind, make in makers.items():
        size = 0
        while size < whole * JUNK_SHARE / len(makers):
            found.append(Planted(kind, make()))
            size += len(found[-1].text.encode())
    long_enough = [text for text in clean if 1000 < len(text) < 20_000]
    copied = rng.sample(long_enough, min(COPIED, len(long_enough)))
    size = 0
    while size < whole * COPY_SHARE:
        found.append(Planted("copy", nearly(rng.choice(copied), rng)))
        size += len(found[-1].text.encode())
    rng.shuffle(found)
    return found
