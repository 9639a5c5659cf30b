"""Long commands, for tests: `python small.py <atelier> <words>` executes `<atelier>` with a flow's words made
small: at the size of `experiment=tiny`, in fewer steps, once. `up` gets free ports, others stay as they are.
"""

import os
import sys

from atelier.flows.run.catalog import flow_names

PORTS = "ATELIER_TESTS_PORTS"  # words for `up`: ports that nobody has
SHORTER = 16  # by so much than a page's number of steps
OPEN = ("experiment=tiny", "train.steps=8", "tracker=none")  # what a page's words leave open
WITHOUT_TRAINING = ("score", "convert", "corpus", "adopt", "finetune", "examine")  # that take no train.steps


def swept(text: str) -> list[str]:
    """The values of a sweep: what stands between commas that are in no brackets."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter in "[({") - (letter in "])}")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return found


def smaller(word: str) -> str:
    """Of several values the first two; fewer steps; tiny behind another experiment."""
    key, equals, text = word.partition("=")
    values = swept(text)[:2]
    if key == "train.steps":
        values = [str(int(value) // SHORTER) for value in values]
    if key == "finetune.num_labels":
        values = [str(max(32, int(value) // SHORTER)) for value in values]
    if key in ("finetune.draws", "finetune.epochs"):
        values = ["1"]
    if key == "experiment" and text != "tiny":
        values = [f"[{text},tiny]"]
    return key + equals + ",".join(values)


def small(words: list[str]) -> list[str]:
    if words[:1] == ["up"]:
        return [*words, *os.environ[PORTS].split()]
    if not words or words[0] not in flow_names():
        return words
    given = [smaller(word) for word in words[1:]]
    named = {word.split("=")[0] for word in given}
    has_rounds = words[0] == "nebula" or any(key.startswith("train.link.") for key in named)
    if words[0] in WITHOUT_TRAINING or has_rounds:  # rounds divide the steps
        named.add("train.steps")
    return [words[0], *given, *(word for word in OPEN if word.split("=")[0] not in named)]


if __name__ == "__main__":
    os.execv(sys.argv[1], [sys.argv[1], *small(sys.argv[2:])])
