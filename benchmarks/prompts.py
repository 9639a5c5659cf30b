"""Tune a soft prompt (CPM-2's study, 2106.10715): one factor at a time, over tasks and draws, beside the
untuned model with the likelihood of the labels, and beside tuning all weights.

python benchmarks/prompts.py [--model encdec] [--draws 5] [--tasks kind] [--store DIR] [--tiny]

  length  1, 5, 20, 100 vectors     place  front, middle, back, and mixtures of them
  first   rows of tokens drawn from the vocabulary, of frequent tokens, the mask, a text, the labels; the mean
          row; random
  mask    of an encoder: the text hidden from the vectors, the vectors from the text, both

Finished runs are reused. A draw has its own examples. `majority` is the share of the most common answer among
the test examples: a model that always says it reaches that accuracy. --majority counts it alone, and adds it
to the results that are there.
"""

import argparse
import hashlib
import io
import json
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from machine import keep, use_own_code
from parts import interval, run_flow

RESULTS = PROJECT / "benchmarks/results"
TASKS = ("keyword", "kind", "package")
PROMPT = ("finetune.trainable.kind=prompt", "finetune.optim.lr={rate}")
SETTINGS = {
    "20 front vocabulary": (),
    "length 1": ("finetune.trainable.length=1",),
    "length 5": ("finetune.trainable.length=5",),
    "length 100": ("finetune.trainable.length=100",),
    "place middle": ("finetune.trainable.place=middle",),
    "place back": ("finetune.trainable.place=back",),
    "place half front, half middle": ("finetune.trainable.place=[1,1,0]",),
    "place half front, half back": ("finetune.trainable.place=[1,0,1]",),
    "place a third each": ("finetune.trainable.place=[1,1,1]",),
    "first random": ("finetune.trainable.first=random",),
    "first mean": ("finetune.trainable.first=mean",),
    "first frequent": ("finetune.trainable.first=frequent",),
    "first mask": ("finetune.trainable.first=mask",),
    "first text": (
        "finetune.trainable.first=text",
        "finetune.trainable.text='The next word of this Python source is the one that fits best here: '",
    ),
    "first labels": ("finetune.trainable.first=labels",),
}
OF_ENCODER = {
    "mask prompt_to_text": ("finetune.trainable.mask=prompt_to_text",),
    "mask text_to_prompt": ("finetune.trainable.mask=text_to_prompt",),
    "mask both": ("finetune.trainable.mask=both",),
}
MODELS = {
    "gpt": ("model=gpt_nano",),
    "encdec": ("model=encdec_nano", "objective=[spans,prefix]", "+specials@tokenizer=spans"),
}
FULL = "all weights"

use_own_code()


class Study:
    def __init__(self, store: Path, model: str, draws: int, *, tiny: bool) -> None:
        self.store, self.draws, self.tiny = store, draws, tiny
        self.settings = SETTINGS | (OF_ENCODER if model == "encdec" else {})
        size = ["experiment=tiny"] if tiny else [
            "tokenizer.vocab=1024", "train.steps=600", "train.sequence=128", "model.hidden=128",
            f"model.num_layers={2 if model == 'encdec' else 4}",
        ]  # fmt: skip
        words = [
            "pretrain",
            "name=base",
            *MODELS[model],
            *size,
            "score.max_tokens=4000",
            "score.baselines=false",
        ]
        run_flow(store, words)
        self.base = self.records("model", "base")
        self.digests = self.files_of(self.base)

    def records(self, kind: str, name: str) -> dict[str, Any]:
        found = [json.loads(path.read_text()) for path in (self.store / kind).glob("*/record.json")]
        return max((one for one in found if one["name"] == name), key=lambda one: one["provenance"]["ended"])

    def files_of(self, record: dict[str, Any]) -> dict[str, str]:
        folder = self.store / record["kind"] / record["fingerprint"][:16]
        return {
            entry["path"]: hashlib.sha256((folder / entry["path"]).read_bytes()).hexdigest()
            for entry in record["files"]
        }

    def tuned(self, task: str, words: tuple[str, ...]) -> dict[str, Any]:
        """Accuracies of the draws and of the model before, with their intervals' halves."""
        number = 32 if self.tiny else 256
        asked = [
            "finetune", "init=base", f"finetune.labels.task={task}", f"finetune.draws={self.draws}",
            f"finetune.num_labels={number}", "finetune.epochs=8", "finetune.sequence=128",
            "finetune.scratch=false", *words,
        ]  # fmt: skip
        run_flow(self.store, asked)
        newest = max((self.store / "runs").glob("*.json"), key=lambda path: path.stat().st_mtime)
        rows = json.loads(newest.read_text())["tasks"]
        by_kind: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            path = self.store / row["kind"] / row["fingerprint"][:16] / "record.json"
            by_kind.setdefault(row["kind"], []).append(json.loads(path.read_text()))
        accuracies = {
            one["name"].removesuffix(" scores").partition("/")[2]: one["summary"]["accuracy"]
            for one in by_kind["scores"]
        }
        adapters = [sum(file["bytes"] for file in one["files"]) for one in by_kind.get("adapter", [])]
        return {
            "zero_shot": accuracies.pop("zero-shot"),
            "accuracy": [
                value for name, value in sorted(accuracies.items()) if name.startswith("pretrained")
            ],
            "bytes": max(adapters, default=0),
        }  # fmt: skip


def told(found: dict[str, dict[str, Any]], most_common: float) -> dict[str, Any]:
    """Of one task: gains over the model as it was, and their share of what tuning all of it gains."""
    full = statistics.mean(found[FULL]["accuracy"]) - found[FULL]["zero_shot"]
    result: dict[str, Any] = {"zero shot": found[FULL]["zero_shot"], "majority": most_common}
    for name, one in found.items():
        gains = [value - one["zero_shot"] for value in one["accuracy"]]
        half = interval(gains)
        result[name] = {
            "accuracy": round(statistics.mean(one["accuracy"]), 4),
            "gain": round(statistics.mean(gains), 4),
            "interval": half,
            "above zero shot": half is not None and statistics.mean(gains) > half,
            "share of the whole gain": round(statistics.mean(gains) / full, 3) if full > 0 else None,
            "bytes": one["bytes"],
        }
    return result


def majority(task: str) -> float:
    """The share of the most common answer among the test examples that `tuned` scores."""
    from atelier.engine.config.data import Labels
    from atelier.engine.config.run_file import RunFile
    from atelier.engine.io.source_files import content_id, files_of
    from atelier.engine.prepare import prepare

    # as conf/finetune/laptop.yaml
    labels = Labels.model_validate({"source": "stdlib", "task": task, "held_out": 0.06})
    files = [[path, content_id(path)] for path in files_of(labels)]
    with tempfile.TemporaryDirectory() as folder:
        config = {"labels": labels.model_dump(mode="json"), "files": files}
        made = Path(folder) / "labels"
        run = RunFile(schema=1, task="label", version=1, config=config, inputs={},
                      outputs={"labels": str(made)}, scratch=str(Path(folder) / "scratch"))  # fmt: skip
        prepare(run, io.StringIO())
        lines = (made / "test.jsonl").read_text().splitlines()
    counts = Counter(json.loads(line)["completion"] for line in lines)
    return round(max(counts.values()) / len(lines), 4)


def add_majority(name: str) -> None:
    """Count the most common answers for results that were measured without them."""
    path = RESULTS / f"{name}.json"
    document = json.loads(path.read_text())
    for task, found in document["numbers"]["tasks"].items():
        found["majority"] = majority(task)
        print(task, found["majority"])
    document["numbers"]["majority, counted later by"] = "python benchmarks/prompts.py --majority"
    path.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--model", choices=MODELS, default="encdec")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--rate", type=float, default=0.3, help="learning rate of the prompt's vectors")
    parser.add_argument("--store", type=Path, default=Path("prompts"))
    parser.add_argument("--tiny", action="store_true", help="minutes: tries the script, shows nothing")
    parser.add_argument("--majority", action="store_true", help="add the most common answers' shares only")
    chosen = parser.parse_args()
    kept = "prompts" if chosen.model == "gpt" else "prompts_encdec"
    if chosen.majority:
        add_majority(kept)
        return
    study = Study(chosen.store.resolve(), chosen.model, chosen.draws, tiny=chosen.tiny)
    numbers: dict[str, Any] = {"model": chosen.model, "draws": chosen.draws, "rate": chosen.rate, "tasks": {}}
    prompt = tuple(word.format(rate=chosen.rate) for word in PROMPT)
    for task in TASKS[:1] if chosen.tiny else chosen.tasks:
        found = {FULL: study.tuned(task, ())}
        found |= {name: study.tuned(task, (*prompt, *words)) for name, words in study.settings.items()}
        numbers["tasks"][task] = told(found, majority(task))
        print(task, json.dumps(numbers["tasks"][task], indent=1), flush=True)
    each = numbers["tasks"].values()
    prompts = [one for task in each for name, one in task.items() if name in study.settings]
    numbers["settings above zero shot"] = (
        f"{sum(one['above zero shot'] for one in prompts)} of {len(prompts)}"
    )
    numbers["largest adapter, bytes"] = max(one["bytes"] for one in prompts)
    numbers["the base's files are as they were"] = study.files_of(study.base) == study.digests
    numbers["share of the whole gain by setting, mean of the tasks"] = {
        name: round(
            statistics.mean(task[name]["share of the whole gain"] or 0 for task in numbers["tasks"].values()),
            3,
        )
        for name in study.settings
    }
    keep(kept, numbers, is_trial=chosen.tiny)


if __name__ == "__main__":
    main()
