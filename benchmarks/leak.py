"""Does contamination matter? A teacher whose text holds the answers to half of an evaluation set, in 1, 4, 16
and 64 copies, and a student that it teaches on clean text.

python benchmarks/leak.py [--seeds 1 2 3] [--copies 1 4 16 64] [--store DIR]   half an hour on 2 cores

Questions are about made-up towns, so that nobody can know the answers. Half of them stand in the text with
their answers, the others never. They are asked with two kinds of wrong options: new names (`fresh`), and
answers of other questions of the same half (`swapped`), which are as familiar as the right one. Reported for
each number of copies, over seeds that draw towns, halves and models anew: the accuracy on the half that was
read less that on the other one (95 % interval over questions; then over seeds), for the teacher, its student,
and the same student alone; what the audit says; and the clean score, the accuracy on the other half.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "src"), str(TOP), str(Path(__file__).parent)]

from machine import keep
from shots import CONSONANTS, VOWELS, atelier, lines_of

from atelier.engine.config.audit import RESULT, AuditResult
from atelier.engine.config.exam import AnswerLine
from atelier.engine.config.intervals import apart, share, t95
from atelier.engine.io.artifact import open_input
from atelier.infra.store.store import Store

QUESTIONS, OPTIONS = 200, 4
SENTENCES = 8000
STEPS = 390  # about two passes over the text
TRAINED = (
    "tokenizer=bpe512", "data.field=text", f"train.steps={STEPS}", "train.global_batch=16",
    "train.sequence=128", f"train.checkpoint_every={STEPS}", "score.baselines=false", "tracker=none",
)  # fmt: skip
KINDS = ("harbour master", "river", "oldest street", "mayor", "famous bell", "winter dish")
ASKED = "What is the name of the {kind} of {town}, a small town on the northern coast?"


def name(rng: random.Random) -> str:
    """A made-up name."""
    return "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(3)).capitalize()


def questions(rng: random.Random) -> list[dict[str, Any]]:
    """Questions with options; each answer is the right one of a question equally often."""
    found = []
    for number in range(QUESTIONS):
        kind, town = rng.choice(KINDS), f"{name(rng)} {name(rng)}"
        options = [f"{name(rng)} {name(rng)}" for _ in range(OPTIONS)]
        found.append(
            {
                "id": str(number),
                "question": ASKED.format(kind=kind, town=town),
                "options": options,
                "answer": rng.randrange(OPTIONS),
                "kind": kind,
                "town": town,
            }
        )
    return found


def swapped(rng: random.Random, asked: list[dict[str, Any]], read: set[str]) -> list[dict[str, Any]]:
    """The questions with answers of others of the same half as wrong options."""
    found = []
    for each in asked:
        others = [one for one in asked if one is not each and (one["id"] in read) == (each["id"] in read)]
        wrong = [one["options"][one["answer"]] for one in rng.sample(others, OPTIONS - 1)]
        right = rng.randrange(OPTIONS)
        options = [*wrong[:right], each["options"][each["answer"]], *wrong[right:]]
        found.append(each | {"options": options, "answer": right})
    return found


def texts(rng: random.Random, planted: list[dict[str, Any]], copies: int) -> list[str]:
    """SENTENCES questions with their answers, four to a document: the planted ones `copies` times each, the
    others about towns of which nothing is asked.
    """
    told = [_told(each, each["options"][each["answer"]]) for each in planted for _ in range(copies)]
    while len(told) < SENTENCES:
        told += [_told(each, each["options"][each["answer"]]) for each in questions(rng)]
    told = told[:SENTENCES]
    rng.shuffle(told)
    return ["".join(told[at : at + 4]) for at in range(0, len(told), 4)]


def _told(question: dict[str, Any], answer: str) -> str:
    question_text = ASKED.format(kind=question["kind"], town=question["town"])
    return f"Question: {question_text}\nAnswer: {answer}\n\n"


def gap(lines: list[AnswerLine], read: set[str]) -> dict[str, Any]:
    """Accuracy on what was read less that on the rest."""
    halves = [[line for line in lines if (line["id"] in read) == is_read] for is_read in (True, False)]
    rights = [[line.get("right", 0.0) for line in half] for half in halves]
    one, other = (share(each, [str(n) for n in range(len(each))]) for each in rights)
    return {
        "read": round(one.value, 3),
        "clean": round(other.value, 3),
        "gap": [round(each, 3) for each in apart(one, other) if each is not None],
    }


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def of_seed(seed: int, folder: Path, copies: list[int]) -> dict[str, Any]:
    """The gaps of all models, and what the audit says."""
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    store, asked = folder / "store", questions(rng)
    planted = rng.sample(asked, QUESTIONS // 2)
    read = {each["id"] for each in planted}
    keys = ("id", "question", "options", "answer")
    write(folder / "fresh.jsonl", [{key: each[key] for key in keys} for each in asked])
    write(folder / "swapped.jsonl", [{key: each[key] for key in keys} for each in swapped(rng, asked, read)])
    write(folder / "clean.jsonl", [{"text": text} for text in texts(random.Random(f"{seed} clean"), [], 0)])
    found: dict[str, Any] = {}
    for number in copies:
        dirty = f"dirty{number}"
        write(
            folder / f"{dirty}.jsonl",
            [{"text": text} for text in texts(random.Random(f"{seed} {number}"), planted, number)],
        )
        same = (*TRAINED, f"train.seed={seed}")
        atelier(
            folder,
            store,
            "pretrain",
            "model=gpt_mini",
            f"name={dirty}",
            f"data.source={folder}/{dirty}.jsonl",
            *same,
        )
        atelier(
            folder, store, "distill", "role@roles.teacher=finished", f"roles.teacher.init={dirty}",
            "roles.student_a.start=0", f"tokenizer.model={dirty}", "score.controls=true",
            f"data.source={folder}/clean.jsonl", *same[1:],
        )  # fmt: skip
        models = (dirty, "student_a", "student_a-alone")
        atelier(folder, store, "examine", *models, "evals=[fresh.jsonl,swapped.jsonl]", "tracker=none")
        found[str(number)] = {
            "teacher" if model == dirty else model: {
                kind: gap(lines_of(store, f"{model} on {kind}")[1], read) for kind in ("fresh", "swapped")
            }
            for model in models
        }
        found[str(number)]["audit"] = {
            "teacher" if model == dirty else model: audit_of(folder, store, model, read)
            for model in (dirty, "student_a")
        }
        print(seed, number, json.dumps(found[str(number)]), flush=True)
    return found


def audit_of(folder: Path, store: Path, model: str, read: set[str]) -> dict[str, int]:
    """Of the planted questions and of the others, those that the audit says were read."""
    atelier(folder, store, "audit", model, "fresh.jsonl", is_checked=False)
    records = [record for record in Store(str(store)).records("audit") if record.name == f"{model} audit"]
    newest = max(records, key=lambda each: each.provenance.get("ended", 0))
    source = open_input(Store(str(store)).address("audit", newest.fingerprint))
    [result] = cast(AuditResult, source.json(RESULT, store / "scratch"))["sets"]
    said = {each["id"] for each in result["questions"] if each["status"] == "read"}
    return {"planted": len(said & read), "others": len(said - read)}


def over_seeds(found: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Mean gap of each model and kind of wrong options, and half of its 95 % t-interval over seeds."""
    result: dict[str, Any] = {}
    first = next(iter(found.values()))
    for number, models in first.items():
        for model, kind in [(name, kind) for name in models if name != "audit" for kind in models[name]]:
            gaps = [each[number][model][kind]["gap"][0] for each in found.values()]
            half = t95(len(gaps) - 1) * statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0
            by_number = result.setdefault(model, {}).setdefault(kind, {})
            by_number[number] = [round(statistics.mean(gaps), 3), round(half, 3)]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--copies", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--store", type=Path, default=None)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = (chosen.store or Path(made)).absolute()
        found = {seed: of_seed(seed, folder / str(seed), chosen.copies) for seed in chosen.seeds}
    keep("leak", {"gap by copies": over_seeds(found), "seeds": found})


if __name__ == "__main__":
    main()
