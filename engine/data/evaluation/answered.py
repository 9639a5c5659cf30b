"""An evaluation set of rendered pairs: the held-out prompts, which a model answers freely; beside them two
answers without a model: a copy of the prompt, and its words one by one through a dictionary.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from atelier.engine.config.base import Json, canonical
from atelier.engine.config.error import DataError
from atelier.engine.config.evaluation_set import QUESTIONS, SET, SHOTS, EvaluationSet, Metric, QuestionLine
from atelier.engine.config.task.prepare import PoseConfig
from atelier.engine.data.corpus import HELD_OUT, TRAIN
from atelier.engine.data.render import PAIRS, PairLine
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput
from atelier.engine.io.process import Progress

COPY, WORDS = "copy of the prompt", "word-by-word dictionary"
METRICS = ("chrf", "bleu", "exact_match")
ROUNDS = 8  # of expectation and maximisation
NOTHING = ""  # a word without counterpart
Pair = tuple[Sequence[str], Sequence[str]]


def pose_answered(
    config: PoseConfig, chats: ArtifactInput, output: ArtifactOutput, scratch: Path, progress: Progress
) -> dict[str, Json]:
    """Write set.json, questions.jsonl and an empty shots.jsonl. Returns the summary. The dictionary is
    learned from the training pairs. Of equal prompts the first is asked, with all their answers as targets.
    Raises DataError if no pair is held out.
    """
    pairs = cast(list[PairLine], chats.lines(PAIRS, scratch))
    progress.start(len(pairs), "pairs")
    training = [(each["prompt"], each["answer"]) for each in pairs if each["split"] == TRAIN]
    dictionary = learned_dictionary([(prompt.split(), answer.split()) for prompt, answer in training])
    asked: dict[str, QuestionLine] = {}
    left_out = 0
    for each in pairs:
        progress.advance(1)
        if each["split"] != HELD_OUT:
            continue
        if known := asked.get(each["prompt"]):
            known["targets"] = list(dict.fromkeys([*known["targets"], each["answer"]]))
            continue
        if config.max_questions and len(asked) == config.max_questions:
            left_out += 1
            continue
        words = [dictionary.get(word, word) for word in each["prompt"].split()]
        asked[each["prompt"]] = {
            "id": str(len(asked) + 1),
            "context": each["asked"],
            "options": [],
            "answer": 0,
            "targets": [each["answer"]],
            "shots": [],
            "group": each["group"],
            "parts": [each["prompt"]],
            "answer_text": each["answer"],
            "rivals": {COPY: each["prompt"], WORDS: " ".join(word for word in words if word)},
        }
    if not asked:
        raise DataError(
            f"{chats.url}: none of {len(pairs)} prompts with one answer is held out; give more of them, or a"
            " larger tune.chats.held_out"
        )
    if left_out:
        progress.warn(f"{config.name}: {left_out} prompts after the first {len(asked)} are left out")
    targets = [target for line in asked.values() for target in line["targets"]]
    made = EvaluationSet(
        name=config.name,
        kind="free",
        until=() if any("\n" in target for target in targets) else ("\n",),
        max_tokens=config.max_tokens,
        metrics=tuple(Metric(name=name, direction="maximize") for name in METRICS),
        template={"chats": chats.record.fingerprint},
    )
    output.add_json(SET, made.model_dump(mode="json"))
    output.add_bytes(QUESTIONS, b"".join(canonical(cast(Json, line)) + b"\n" for line in asked.values()))
    output.add_bytes(SHOTS, b"")
    groups = len({line["group"] for line in asked.values()})
    return {
        "questions": len(asked),
        "kind": "free",
        "groups": groups,
        "training_pairs": len(training),
        "left_out": left_out,
    }


def learned_dictionary(pairs: Sequence[Pair]) -> dict[str, str]:
    """Learn a dictionary of words: IBM model 1 (Brown et al., 1993, section 4.1).

    The most likely counterpart of each word of the first sentences; NOTHING if a missing one explains the
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
