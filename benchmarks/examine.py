"""`atelier examine` beside lm-evaluation-harness 0.4.13: the same tasks and model, the same answers; and what
a question costs.

python benchmarks/examine.py [--python PATH] [--folder DIR] [--rows 200] [--trial]      half an hour on a core
python benchmarks/examine.py --store DIR --model NAME ...          a finished model of that store instead

--python: of an environment with lm-eval, transformers and Atelier's dependencies, if this one has no lm-eval.

Equality: tasks as local YAMLs, read by both. Of each question the log-likelihoods differ by at most 1e-4 a
token, decisions and written texts are equal; also for other batches and for two ranks. bf16 has its own
bound; lm-eval rounds log-likelihoods to bf16 unless it is told not to, as here.
Speed: requests per CPU-second in one process, without loading; benchmarks/examine_peer.py. Goals: 2 where
options share prompts, else 1.2 times lm-eval at its best batch. The weights are hardly trained.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from machine import keep, use_own_code

SEQUENCE, SHOTS = 512, 5
CLOSE, CLOSE_BF16 = 1e-4, 0.05  # nats a token
MODELS = {  # both 4 M parameters with a vocabulary of 4096
    "rotary": ["model=gpt_teacher"],
    "learned": [
        "model=gpt_teacher", "model.positions=learned", f"model.max_positions={SEQUENCE}", "model.norm=layer",
        "model.mlp=gelu", "model.num_kv_heads=4", "model.bias=[qkv,out,mlp]",
    ],
}  # fmt: skip
TRAINED = [
    "train.steps=24", "train.sequence=256", "train.global_batch=8", "score.max_tokens=1000",
    "score.baselines=false", "parallel.threads=1",
]  # fmt: skip
LAYOUTS = (
    ["examine.batch=1"], ["examine.batch=7"], ["examine.batch=64"], ["examine.replicate=2"],
    ["examine.tensor=2"],
)  # fmt: skip
COMMON: dict[str, Any] = {
    "dataset_path": "json",
    "training_split": "train",
    "test_split": "test",
    "num_fewshot": 0,
}
CHOICE: dict[str, Any] = {
    "output_type": "multiple_choice",
    "doc_to_text": "{{passage}}\nQuestion: {{question}}\nAnswer:",
    "doc_to_target": "label",
    "doc_to_choice": "options",
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}
TASKS: dict[str, dict[str, Any]] = {
    "choice": CHOICE,
    "letters": CHOICE | {"doc_to_choice": ["A", "B", "C", "D"]},  # lm-eval reads a context once for these
    "shots": CHOICE | {
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "num_fewshot": SHOTS,
        "fewshot_config": {"sampler": "first_n"},
    },
    "partial": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{label % 2}}",
        "doc_to_target": "{{question}}",
        "doc_to_choice": "{{[passage + ' ' + options[0], passage + ' ' + options[1]]}}",
        "metric_list": [{"metric": "acc"}],
    },
    "cloze": {
        "output_type": "loglikelihood",
        "doc_to_text": "{{before}}",
        "doc_to_target": "{{' ' + next}}",
        "metric_list": [{"metric": "acc"}],
    },
    "text": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    },
    "free": {
        "output_type": "generate_until",
        "doc_to_text": "{{passage}}",
        "doc_to_target": "{{options[0]}}",
        "generation_kwargs": {"until": ["\n", "."], "max_gen_toks": 16, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
}  # fmt: skip


def write_tasks(folder: Path, rows: int) -> dict[str, str]:
    """Rows of the standard library's text, and the tasks' YAMLs: their paths."""
    rng, words = random.Random(0), []
    for path in sorted(Path(sysconfig.get_path("stdlib"), "email").glob("*.py")):
        words += path.read_text().split()

    def some(least: int, most: int) -> str:
        size = rng.randint(least, most)
        begin = rng.randrange(len(words) - size)
        return " ".join(words[begin : begin + size]).replace("{", "(").replace("}", ")")

    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for split, number in (("train", 20), ("test", rows)):
        made: list[dict[str, Any]] = [
            {
                "passage": f"{n}. {some(8, 60)}", "question": some(4, 12), "label": rng.randrange(4),
                "options": [f"{some(1, 6)} {n}{mark}" for mark in "abcd"], "text": f"{n}. {some(30, 300)}",
            }
            for n in range(number)
        ]  # fmt: skip
        for n, row in enumerate(made):  # a model that is hardly trained knows how repetitions go on
            row["before"] = row["passage"] + (" the" * 4 if n % 2 else "")
            row["next"] = "the" if n % 2 else row["options"][0]
        files[split] = str(folder / f"{split}.jsonl")
        Path(files[split]).write_text("".join(json.dumps(row) + "\n" for row in made))
    paths = {}
    for kind, task in TASKS.items():
        said = {"task": f"peer_{kind}", **COMMON, **task, "dataset_kwargs": {"data_files": files}}
        paths[kind] = str(folder / f"peer_{kind}.yaml")
        Path(paths[kind]).write_text(yaml.safe_dump(said, sort_keys=False))
    return paths


class Bench:
    def __init__(self, folder: Path, store: Path, python: str, paths: dict[str, str]) -> None:
        self.folder, self.store, self.python, self.paths = folder, store, python, paths
        self._runs = 0

    def atelier(self, *words: str) -> None:
        env = os.environ | {"ATELIER_ROOT": str(self.store)}
        command = [sys.executable, "-m", "atelier", *words]
        told = subprocess.run(command, env=env, cwd=self.folder, capture_output=True, text=True)
        if told.returncode:
            raise SystemExit(f"{' '.join(words)}:\n{told.stdout[-2000:]}{told.stderr[-2000:]}")

    def folders(self, kind: str, name: str) -> list[Path]:
        """The artifacts of a kind with a name, the newest first."""
        found = []
        for path in (self.store / kind).glob("*/record.json"):
            record = json.loads(path.read_text())
            if record["name"] == name:
                found.append((record["provenance"]["ended"], path.parent))
        return [path for _, path in sorted(found, reverse=True)]

    def exported(self, model: str) -> str:
        """The model in transformers' format, trained if there is none."""
        if not self.folders("model", model):
            self.atelier("pretrain", f"name={model}", *MODELS[model], *TRAINED, "tracker=none")
        target = self.folder / f"export-{model}"
        if not target.exists():
            self.atelier("export", model, str(target))
        return str(target)

    def ours(self, model: str, kinds: list[str], *words: str) -> dict[str, list[dict[str, Any]]]:
        """The answers of a fresh exam: a finished one of another layout would be taken otherwise."""
        names = {kind: f"{model} on peer_{kind}" for kind in kinds}
        for name in names.values():
            for old in self.folders("exam", name):
                shutil.rmtree(old)
        evals = f"evals=[{','.join(self.paths[kind] for kind in kinds)}]"
        settings = [f"examine.sequence={SEQUENCE}", "examine.overlap=0", "tracker=none"]
        self.atelier("examine", model, evals, *settings, *words)
        found = {}
        for kind, name in names.items():
            [place] = self.folders("exam", name)
            [file] = place.rglob("answers.jsonl")
            found[kind] = [json.loads(line) for line in file.read_text().splitlines()]
        return found

    def peer(self, verb: str, **order: Any) -> Any:
        self._runs += 1
        asked, result = (self.folder / f"{name}-{self._runs}.json" for name in ("order", "result"))
        asked.write_text(json.dumps({"verb": verb, "result": str(result), "sequence": SEQUENCE, **order}))
        path = f"{PROJECT / 'src'}{os.pathsep}{PROJECT}"
        env = os.environ | {"PYTHONPATH": path, "HF_HOME": str(self.folder / "hf"), "HF_HUB_OFFLINE": "1"}
        command = [self.python, str(Path(__file__).with_name("examine_peer.py")), str(asked)]
        told = subprocess.run(command, env=env, cwd=self.folder, capture_output=True, text=True)
        if told.returncode:
            raise SystemExit(f"lm-eval cannot be run with {self.python}:\n{told.stderr[-3000:]}")
        return json.loads(result.read_text())


def decision(kind: str, values: list[float], best: list[bool]) -> Any:
    return best[0] if kind == "cloze" else min(range(len(values)), key=values.__getitem__)


def beside(kind: str, ours: list[dict[str, Any]], theirs: list[Any]) -> dict[str, Any]:
    """Our answers beside lm-eval's: the largest difference a token, and the share of equal decisions."""
    if kind == "free":
        texts = [one[0] if isinstance(one, list) else one for one in theirs]
        equal = sum(line["said"] == text for line, text in zip(ours, texts, strict=True))
        return {"questions": len(ours), "equal texts": equal}
    apart, equal, flags, true = 0.0, 0, 0, 0
    for line, answers in zip(ours, theirs, strict=True):
        if kind == "text":
            nats, best = [-float(answers[0])], [False]
        else:
            nats, best = [-float(one[0]) for one in answers], [bool(one[1]) for one in answers]
            flags, true = flags + (best == line["best"]), true + sum(line["best"])
        parts = zip(nats, line["nats"], line["tokens"], strict=True)
        apart = max(apart, *(abs(a - b) / size for a, b, size in parts))
        equal += decision(kind, nats, best) == decision(kind, line["nats"], line.get("best", [False]))
    found = {"questions": len(ours), "largest difference a token": float(f"{apart:.2g}")}
    if kind == "text":
        return found
    return found | {"equal decisions": equal, "equal greedy": flags, "options that are greedy": true}


def as_theirs(kind: str, lines: list[dict[str, Any]]) -> list[Any]:
    """Our answers in the form of lm-eval's."""
    if kind == "free":
        return [line["said"] for line in lines]
    if kind == "text":
        return [[-line["nats"][0]] for line in lines]
    return [[[-n, b] for n, b in zip(line["nats"], line["best"], strict=True)] for line in lines]


def is_equal(found: dict[str, Any]) -> bool:
    """All decisions and texts are equal, and likelihoods within CLOSE."""
    counts = [value for name, value in found.items() if name.startswith("equal")]
    close = found.get("largest difference a token", 0.0) <= CLOSE
    return close and all(count == found["questions"] for count in counts)


def equality(bench: Bench, model: str, *, is_first: bool) -> dict[str, Any]:
    export, kinds = bench.exported(model), [*TASKS]
    names, found = [f"peer_{kind}" for kind in kinds], {}
    first: dict[str, list[dict[str, Any]]] = {}
    for precision, dtype in (("float32", "float32"), ("bf16", "bfloat16"))[: 1 + is_first]:
        ours = bench.ours(model, kinds, f"examine.precision={precision}")
        first = first or ours
        folder = str(Path(bench.paths["choice"]).parent)
        said = bench.peer("theirs", export=export, dtype=dtype, tasks=names, folder=folder)["answers"]
        found[precision] = {kind: beside(kind, ours[kind], said[f"peer_{kind}"]) for kind in kinds}
        print(model, precision, json.dumps(found[precision], indent=1), flush=True)
    for words in LAYOUTS if is_first else ():
        some = [kind for kind in kinds if kind != "free" or "tensor" not in words[0]]
        ours = bench.ours(model, some, *words)
        found[words[0]] = {kind: beside(kind, ours[kind], as_theirs(kind, first[kind])) for kind in some}
        print(model, words[0], json.dumps(found[words[0]]), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--folder", type=Path, default=Path("examine"), help="work is done and kept here")
    parser.add_argument("--store", type=Path, help="with a finished --model; default: trained here")
    parser.add_argument("--model", default="rotary")
    parser.add_argument("--rows", type=int, default=200, help="questions of a task")
    parser.add_argument("--rounds", type=int, default=3, help="of speed")
    parser.add_argument("--only", choices=("equality", "speed"), help="one half, which is not kept")
    parser.add_argument("--trial", action="store_true")
    given = parser.parse_args()
    use_own_code()
    folder = given.folder.resolve()
    paths = write_tasks(folder / "tasks", given.rows)
    bench = Bench(folder, (given.store or folder / "store").resolve(), given.python, paths)
    models = [given.model] if given.store else [*MODELS]
    numbers: dict[str, Any] = {"rows": given.rows, "sequence": SEQUENCE, "equality": {}}
    for model in models if given.only != "speed" else ():
        numbers["equality"][model] = equality(bench, model, is_first=model == models[0])
    exact = [
        each
        for found in numbers["equality"].values()
        for setting, kinds in found.items()
        for each in kinds.values()
        if setting != "bf16"
    ]
    if given.only != "speed":
        numbers["float32 equal in every setting"] = all(map(is_equal, exact))
        rough = [
            each.get("largest difference a token", 0.0)
            for found in numbers["equality"].values()
            for each in found.get("bf16", {}).values()
        ]
        numbers[f"bf16 within {CLOSE_BF16} a token"] = max(rough) <= CLOSE_BF16
    if given.only != "equality":
        model = models[0]
        export = bench.exported(model)
        if given.only:
            bench.ours(model, [*TASKS])
        sets = {kind: str(bench.folders("evaluation", f"peer_{kind}")[0]) for kind in TASKS}
        numbers["speed"] = bench.peer(
            "speed", export=export, dtype="float32", sets=sets, model=str(bench.folders("model", model)[0]),
            scratch=str(folder / "scratch"), rows=max(1, given.rows // 2), rounds=given.rounds,
        )  # fmt: skip
        for kind, one in numbers["speed"].items():
            print(f"{kind:8} {one['requests per CPU-second']}  {one['times lm-eval']} times", flush=True)
    keep("examine", numbers, is_trial=given.trial or given.only is not None)


if __name__ == "__main__":
    main()
