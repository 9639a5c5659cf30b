"""Do solved examples help? A task whose rule is drawn anew for each question: four made-up words, each mapped
to one of two others. Without examples nothing tells the rule; among five is the word that is asked.

python benchmarks/shots.py [--seeds 1 2 3] [--store DIR] [--steps 1200]   ten minutes on 2 cores

The model is trained on documents with such rules in ten other templates, of words that no question has. Seeds
draw words, text, questions and the model anew. Goals: five examples beat none beyond the 95 % interval, for
each seed; examples with drawn labels do not.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "src"), str(TOP), str(Path(__file__).parent)]

from machine import keep

from atelier.engine.config.exam import ANSWERS, EXAM, AnswerLine, ExamResult
from atelier.engine.config.exam_metrics import difference
from atelier.engine.io.artifact import open_input
from atelier.infra.store.store import Store

TEMPLATES = (
    "{k} = {v}\n", "{k}: {v}\n", "{k} -> {v}\n", "{k} becomes {v}. ", "the {k} is {v}; ", "({k}, {v}) ",
    "from {k} to {v}\n", "{k} | {v}\n", "say {v} for {k}? no: {k} / {v}\n", "{k} gives {v}, ",
)  # fmt: skip
ASKED = "Input: {k}\nOutput: {v}\n\n"
VOWELS, CONSONANTS = "aeiou", "bdfgklmnprstvz"
WORDS, TRAINED, DOCUMENTS, QUESTIONS = 1600, 1200, 6000, 1000
SETS = ("none", "five", "drawn labels")


def words(rng: random.Random) -> list[str]:
    """Made-up words, each once."""
    found: dict[str, None] = {}
    while len(found) < WORDS:
        syllables = rng.choice((2, 2, 3))
        found["".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(syllables))] = None
    return list(found)


def document(rng: random.Random, known: list[str]) -> str:
    """Keys with their values in one template, repeated in drawn order."""
    template, keys = rng.choice(TEMPLATES), rng.sample(known, rng.randint(2, 5))
    values = known if rng.random() < 0.5 else rng.sample(known, 2)
    rule = {key: rng.choice(values) for key in keys}
    asked = [rng.choice(keys) for _ in range(rng.randint(8, 24))]
    return "".join(template.format(k=key, v=rule[key]) for key in asked)


def question(number: int, rng: random.Random, unknown: list[str]) -> dict[str, dict[str, Any]]:
    """One question with each set's examples."""
    *keys, one, other = rng.sample(unknown, 6)
    rule = {key: rng.choice((one, other)) for key in keys}
    if len({*rule.values()}) == 1:
        rule[keys[0]] = other if rule[keys[0]] == one else one
    asked = rng.choice(keys)
    shown = [asked, *(rng.choice(keys) for _ in range(4))]
    rng.shuffle(shown)
    options = [one, other]
    rng.shuffle(options)
    solved = {
        "none": "",
        "five": "".join(ASKED.format(k=key, v=rule[key]) for key in shown),
        "drawn labels": "".join(ASKED.format(k=key, v=rng.choice((one, other))) for key in shown),
    }
    end = f"Input: {asked}\nOutput:"
    same = {"id": str(number), "options": options, "answer": options.index(rule[asked])}
    return {name: {**same, "prompt": text + end} for name, text in solved.items()}


def atelier(folder: Path, store: Path, *given: str, is_checked: bool = True) -> None:
    env = os.environ | {"ATELIER_ROOT": str(store)}
    subprocess.run([sys.executable, "-m", "atelier", *given], cwd=folder, env=env, check=is_checked)


def lines_of(store: Path, name: str) -> tuple[float, list[AnswerLine]]:
    """Accuracy and answers of the newest exam, `<model> on <set>`."""
    found = [record for record in Store(str(store)).records("exam") if record.name == name]
    record = max(found, key=lambda each: each.provenance.get("ended", 0))
    source = open_input(Store(str(store)).address("exam", record.fingerprint))
    exam = cast(ExamResult, source.json(EXAM, store / "scratch"))
    lines = cast(list[AnswerLine], source.lines(ANSWERS, store / "scratch"))
    return exam["metrics"]["accuracy"]["value"], lines


def of_seed(seed: int, folder: Path, steps: int) -> dict[str, Any]:
    """Accuracy of each set, and paired differences to no examples, of one seed."""
    rng = random.Random(seed)
    every = words(rng)
    known, unknown = every[:TRAINED], every[TRAINED:]
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps({"text": document(rng, known)}) + "\n" for _ in range(DOCUMENTS))
    (folder / "rules.jsonl").write_text(text)
    asked = [question(number, rng, unknown) for number in range(QUESTIONS)]
    files = [f"{name.replace(' ', '_')}.jsonl" for name in SETS]
    for name, file in zip(SETS, files, strict=True):
        (folder / file).write_text("".join(json.dumps(each[name]) + "\n" for each in asked))
    store = folder / "store"
    atelier(
        folder, store, "pretrain", "model=gpt_nano", "tokenizer=bpe512", f"data.source={folder}/rules.jsonl",
        "data.field=text", f"train.steps={steps}", "train.global_batch=32", "train.sequence=128",
        f"train.checkpoint_every={steps}", f"train.seed={seed}", "score.baselines=false", "tracker=none",
    )  # fmt: skip
    atelier(folder, store, "examine", "model", f"evals=[{','.join(files)}]", "tracker=none")
    found = {
        name: lines_of(store, f"model on {file.partition('.')[0]}")
        for name, file in zip(SETS, files, strict=True)
    }
    result: dict[str, Any] = {name: round(accuracy, 4) for name, (accuracy, _) in found.items()}
    for name in SETS[1:]:
        gap = difference(found[name][1], found["none"][1], "accuracy")
        result[f"{name} - none"] = [round(each, 4) for each in gap or () if each is not None]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--store", type=Path, default=None)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = (chosen.store or Path(made)).absolute()
        found = {seed: of_seed(seed, folder / str(seed), chosen.steps) for seed in chosen.seeds}
    keep("shots", {"questions": QUESTIONS, "steps": chosen.steps, "seeds": found})


if __name__ == "__main__":
    main()
