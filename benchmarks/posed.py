"""Evaluation sets ask what lm-evaluation-harness 0.4.13 asks: every request of the same YAML, character by
character.

python benchmarks/posed.py [--python PATH] [--rows 200] [--trial]      a minute

--python: of an environment with lm-eval, if this one has none (pip install lm-eval==0.4.13).

- Tasks: six YAMLs, one of each kind, read by both, with solved examples of the sampler first_n.
- conf/questions: Atelier's tasks of MT-NLG 530B against lm-eval's own YAMLs, whose Python functions they
  write as Jinja, on the same rows. HANS is not among them: lm-eval has no such task. Of LAMBADA both have the
  target_delimiter "".

Compared: contexts with their shots, options, the right option, targets. Goal: all are equal. The rows are
made up, with brackets, blanks, quotes, braces and Chinese in them.
"""

import argparse
import io
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from machine import keep, use_own_code

from atelier.engine.config.task.prepare import PoseConfig
from atelier.engine.data.evaluation.pose import pose
from atelier.engine.io.artifact import ArtifactOutput
from atelier.engine.io.evaluation_files import OWN, find
from atelier.engine.io.process import Progress
from atelier.engine.io.source_files import content_id

SHOTS = 3
WORDS = [
    "boat", "[title]", "tide", "it's", '"sail"', "{{x}}", "风帆", "knots", "", "harbour;", "[ref]", "rope,",
    "_anchor_", "%}", "ebb", "7", "Ünit",
]  # fmt: skip

THEIRS = """
import importlib.metadata, json, os, sys
from pathlib import Path
import lm_eval
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

def gold(task, doc):
    target = task.doc_to_target(doc)
    if task.OUTPUT_TYPE != "multiple_choice":
        return [str(one) for one in (target if isinstance(target, list) else [target])]
    value = task.doc_to_text(doc) if task.multiple_input else target
    return task.doc_to_choice(doc).index(value) if isinstance(value, str) else int(value)

found = {}
for name, (path, changes) in json.loads(Path(sys.argv[1]).read_text()).items():
    path = Path(lm_eval.__file__).parent / "tasks" / path
    task = ConfigurableTask(config={**load_yaml(path), **changes})
    task.build_all_requests()
    docs = {}
    for one in task.instances:
        docs.setdefault(one.doc_id, [one.doc, []])[1].append(list(one.args))
    found[name] = [{"requests": asked, "gold": gold(task, doc)} for doc, asked in docs.values()]
version = importlib.metadata.version("lm-eval")
Path(sys.argv[2]).write_text(json.dumps({"version": version, "tasks": found}))
"""

FIRST = {"fewshot_config": {"sampler": "first_n"}, "num_fewshot": SHOTS}
COMMON: dict[str, Any] = {"dataset_path": "json", "training_split": "train", "test_split": "test", **FIRST}
TASKS: dict[str, dict[str, Any]] = {
    "choice": {
        "output_type": "multiple_choice",
        "description": "Answer with one of the texts.\n\n",
        "doc_to_text": "{{passage}}\nQ: {{question | trim}}{% if label %} (yes){% endif %}\nA:",
        "doc_to_target": "label",
        "doc_to_choice": "{{[first, second]}}",
        "fewshot_delimiter": "\n###\n",
    },
    "choice of fields": {
        "output_type": "multiple_choice",
        "doc_to_text": "question",
        "doc_to_target": "{{options[label]}}",
        "doc_to_choice": "options",
        "target_delimiter": "\n",
    },
    "partial": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{label}}",
        "doc_to_target": "{{second}}",
        "doc_to_choice": {"a": "Because of this:", "b": "In spite of this:"},
    },
    "cloze": {
        "output_type": "loglikelihood",
        "doc_to_text": "{{text.split(' ')[:-1] | join(' ')}}",
        "doc_to_target": "{{' ' + text.split(' ')[-1]}}",
    },
    "free": {
        "output_type": "generate_until",
        "doc_to_text": "Q: {{question | regex_replace('[aeiou]+', '*')}}\nA:",
        "doc_to_target": "{{options}}",
        "generation_kwargs": {"until": ["\n", "."], "max_gen_toks": 20},
    },
    "text": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{passage}}"},
}
PAPER = {  # ours -> lm-eval's
    "lambada": "lambada/lambada_standard.yaml",
    "race_h": "race/race.yaml",
    "boolq": "super_glue/boolq/default.yaml",
    "piqa": "piqa/piqa.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "winogrande": "winogrande/default.yaml",
    "anli_r2": "anli/anli_r2.yaml",
    "wic": "super_glue/wic/default.yaml",
}


def made_up(rng: random.Random, number: int) -> dict[str, Any]:
    """A row with the fields of all tasks."""

    def words(least: int, most: int) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(least, most)))

    options = [f"{number} {words(1, 5)}" for _ in range(4)]
    marks = ["?", ".", "", " ", "  _  ."]
    problems = [
        {"question": words(2, 8) + rng.choice(marks), "options": options, "answer": rng.choice("ABCD")}
        for _ in range(rng.randint(1, 3))
    ]
    return {
        "passage": f"{number} {words(8, 40)}", "question": f"{words(3, 9)} {number}", "options": options,
        "first": f"a{number} {words(1, 4)}", "second": f"b{number} {words(1, 4)}", "label": rng.randint(0, 1),
        "text": f"{number} {words(5, 20)} end{number}",
        "goal": f"{number} {words(3, 9)}", "sol1": f"c{words(1, 6)}", "sol2": f"d{words(1, 6)}",
        "activity_label": words(1, 2), "ctx_a": f"{number} {words(3, 9)}", "ctx_b": words(1, 4),
        "endings": [f" {option} [substeps] x  y" for option in options],
        "sentence": f"{number} {words(2, 6)} _ {words(2, 6)} ", "option1": "Ann", "option2": "Bo's \"cat\"",
        "answer": rng.choice("12"), "premise": words(5, 20), "hypothesis": f"{words(3, 8)} {number}",
        "sentence1": f"{number} {words(3, 9)}", "sentence2": words(3, 9), "start1": 0, "end1": 3,
        "article": f"{number} {words(9, 40)}", "problems": problems,
    }  # fmt: skip


def write(folder: Path, rows: int) -> None:
    """Files of rows for both, at the paths that conf/questions names."""
    rng = random.Random(0)
    for path in OWN.glob("*.yaml"):
        for name in yaml.safe_load(path.read_text())["dataset_kwargs"]["data_files"].values():
            if not (file := folder / name).exists():
                file.parent.mkdir(exist_ok=True)
                made = [made_up(rng, number) for number in range(rows)]
                file.write_text("".join(json.dumps(row) + "\n" for row in made))
                as_text = [row | {"problems": str(row["problems"])} for row in made]
                theirs = "".join(json.dumps(row) + "\n" for row in as_text)
                file.with_suffix(".theirs.jsonl").write_text(theirs)


def ours(word: str, data: Path, output: Path, shots: int) -> list[dict[str, Any]]:
    """The requests of each question of a posed set, as lm-eval makes them."""
    found = find(word, str(data), (), "evals", shots)
    contents = {use: tuple((path, content_id(path)) for path in each) for use, each in found.files.items()}
    config = PoseConfig(
        name=found.name,
        form=found.form,
        source=found.document | FIRST,
        files=contents,
        shots=shots,
        place=word,
    )
    target = ArtifactOutput(str(output))
    pose(config, target, Progress(io.StringIO()))
    about = json.loads((output / "set.json").read_text())
    questions, shots_of = (
        [json.loads(line) for line in (output / name).read_text().splitlines()]
        for name in ("questions.jsonl", "shots.jsonl")
    )
    result: list[dict[str, Any]] = []
    for one in questions:
        before = about["description"] + "".join(shots_of[place]["text"] for place in one["shots"])
        contexts = one.get("contexts") or [one["context"]] * len(one["options"])
        asked: list[list[Any]] = [
            [before + context, option] for context, option in zip(contexts, one["options"], strict=True)
        ]
        gold: Any = one["answer"] if about["kind"] == "choice" else one["targets"] or one["options"]
        if about["kind"] == "free":
            asked = [
                [before + one["context"], {"until": about["until"], "max_gen_toks": about["max_tokens"]}]
            ]
        if about["kind"] == "text":
            asked = [one["targets"]]
        result.append({"requests": asked, "gold": gold})
    return result


def compared(python: str, rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, rows)
        asked: dict[str, Any] = {}
        words: dict[str, str] = {}
        files = {"train": "boolq/train.jsonl", "test": "boolq/validation.jsonl"}
        for kind, task in TASKS.items():
            path = folder / f"{kind.replace(' ', '_')}.yaml"
            shots = {"num_fewshot": 0} if kind == "text" else {}
            said = {"task": path.stem, **COMMON, **task, **shots, "dataset_kwargs": {"data_files": files}}
            path.write_text(yaml.safe_dump(said))
            asked[kind], words[kind] = (str(path), {}), str(path)
        for own, path in PAPER.items():
            said = yaml.safe_load((OWN / f"{own}.yaml").read_text())
            splits = {key: said.get(key) for key in said if key.endswith("_split")}
            files = said["dataset_kwargs"]["data_files"].items()
            theirs = {split: file.replace(".jsonl", ".theirs.jsonl") for split, file in files}
            changes = {
                "dataset_path": "json",
                "dataset_name": None,
                **FIRST,
                "validation_split": None,
                **splits,
            }
            changes |= {"test_split": said.get("test_split"), "dataset_kwargs": {"data_files": theirs}}
            changes |= {"target_delimiter": ""} if own == "lambada" else {}
            asked[f"conf/questions/{own}"], words[f"conf/questions/{own}"] = (path, changes), own
        order, result, script = folder / "order.json", folder / "theirs.json", folder / "theirs.py"
        order.write_text(json.dumps(asked))
        script.write_text(THEIRS)
        environment = {**os.environ, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
        run = [python, str(script), str(order), str(result)]
        told = subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True)
        if told.returncode:
            raise SystemExit(f"lm-eval cannot be run with {python}:\n{told.stderr[-2000:]}")
        found = json.loads(result.read_text())
        tasks: dict[str, dict[str, Any]] = {}
        for number, (kind, word) in enumerate(words.items()):
            shots, other = 0 if kind == "text" else SHOTS, found["tasks"][kind]
            mine = ours(word, folder, folder / f"set-{number}", shots)
            equal = sum(_plain(a) == _plain(b) for a, b in zip(mine, other, strict=True))
            tasks[kind] = {"questions": len(other), "equal": equal}
            if equal < len(other):
                a, b = next((a, b) for a, b in zip(mine, other, strict=True) if _plain(a) != _plain(b))
                print(f"{kind}:\n  ours   {_plain(a)}\n  theirs {_plain(b)}", file=sys.stderr)
    return {"lm-eval": found["version"], "shots": SHOTS, "rows": rows, "tasks": tasks}


def _plain(one: dict[str, Any]) -> dict[str, Any]:
    """Without settings of generation that say what is the default of both."""
    unsaid = ("do_sample", "temperature")
    asked = [
        [
            {k: v for k, v in part.items() if k not in unsaid} if isinstance(part, dict) else part
            for part in each
        ]
        for each in one["requests"]
    ]
    return {"requests": asked, "gold": one["gold"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--trial", action="store_true")
    given = parser.parse_args()
    use_own_code()
    numbers = compared(given.python, given.rows)
    numbers["all equal"] = all(one["equal"] == one["questions"] for one in numbers["tasks"].values())
    keep("posed", numbers, is_trial=given.trial)


if __name__ == "__main__":
    main()
