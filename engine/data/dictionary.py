"""Learn a dictionary of words from translated sentences: IBM model 1 (Brown et al., 1993, section 4.1)."""

from collections import defaultdict
from collections.abc import Sequence

ROUNDS = 8  # of expectation and maximisation
NOTHING = ""  # a word without counterpart
Pair = tuple[Sequence[str], Sequence[str]]


def learned_dictionary(pairs: Sequence[Pair]) -> dict[str, str]:
    """The most likely counterpart of each word of the first sentences; NOTHING if a missing one explains the
    others' words better. Of equally likely ones the first by spelling. Pairs of sentences as words.
    """
    likely: dict[tuple[str, str], float] = defaultdict(lambda: 1.0)  # (word, counterpart), not normed
    for _ in range(ROUNDS):
        counts: dict[tuple[str, str], float] = defaultdict(float)
        totals: dict[str, float] = defaultdict(float)
        for ours, theirs in pairs:
            for word in theirs:
                own = [(each, likely[each, word]) for each in (NOTHING, *ours)]
                whole = sum(weight for _, weight in own)
                for each, weight in own:
                    share = weight / whole if whole else 0.0
                    counts[each, word] += share
                    totals[each] += share
        likely = defaultdict(float, {key: count / totals[key[0]] for key, count in counts.items() if count})
    best: dict[str, tuple[float, str]] = {}
    occurs: dict[str, int] = defaultdict(int)
    for ours, _ in pairs:
        for word in ours:
            occurs[word] += 1
    for (ours, theirs), share in sorted(likely.items()):
        if ours != NOTHING and share > best.get(ours, (0.0, ""))[0]:
            best[ours] = (share, theirs)
    explained = {word: count for word, count in totals.items() if word != NOTHING} if pairs else {}
    return {
        word: theirs if explained.get(word, 0.0) >= occurs[word] / 4 else NOTHING
        for word, (_, theirs) in best.items()
    }
