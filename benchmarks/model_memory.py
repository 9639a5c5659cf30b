"""Peak memory, beyond the weights, of publishing, scoring and generating, for a model of 256 MB and one of 2
GB (the same width, more layers); and of two ranks that publish it together, beyond their shares.

python benchmarks/model_memory.py [--layers 5 40] [--folder .]      goal: the rest grows to 1.3 times at most

Each number is VmHWM of a fresh process, which includes pages of mapped files. "weights" are those in the
computation, in float32; from a file in 16 bits too. Publishing starts as a frozen role does, without an
optimiser.
"""

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

import torch
from machine import keep, use_own_code

from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.record import FileEntry, Record, identify
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import FILE_BYTES, Member, RunFile, Training
from atelier.engine.config.schedule import Schedule
from atelier.engine.config.train import Train
from atelier.engine.evaluate import evaluate
from atelier.engine.generate import generate
from atelier.engine.io.artifact import ArtifactOutput, open_input
from atelier.engine.loop.build import BuildContext, build_member
from atelier.engine.loop.publish import publish
from atelier.engine.model.load import read_weights, write_model
from atelier.engine.model.placement import local
from atelier.engine.model.weights import Weight
from atelier.engine.parallel.gang import start_gang

MB = 1e6
HIDDEN = 1024
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

use_own_code()


def peak_mb() -> float:
    """The most memory that this process ever had, mapped files included."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / MB for line in lines if line.startswith("VmHWM"))


def write(folder: Path, spec: GPT, dtype: torch.dtype, tokenizer: Path) -> str:
    """A model artifact of random weights, drawn one at a time; its URL."""
    output = ArtifactOutput(str(folder / "payload"))
    draw = torch.Generator().manual_seed(1)

    def weight(shape: tuple[int, ...]) -> Weight:
        return Weight(shape, dtype, lambda: torch.randn(shape, generator=draw).mul_(0.02).to(dtype))

    weights = {name: weight(shape) for name, shape in spec.shapes().items()}
    write_model(weights, spec, output.add_parts, most=FILE_BYTES)
    output.add("tokenizer.json", tokenizer)
    output.close({})
    body = json.loads((folder / "payload" / "body.json").read_text())
    files = tuple(FileEntry(**entry | {"path": f"payload/{entry['path']}"}) for entry in body["files"])
    identity = {"files": [entry.sha256 for entry in files]}
    record = Record(
        kind="model", name="model", fingerprint=identify("model", 1, identity, {}), version=1,
        identity=identity, parents={}, files=files,
    ).sealed()  # fmt: skip
    (folder / "record.json").write_text(record.text())
    return str(folder)


def publishing(model: str, folder: Path, world: int) -> dict[str, float]:
    """One rank of a gang that publishes the model again."""
    layout = Parallel(shard=world, threads=1, compile="none", device="cpu")
    gang = start_gang(layout)
    source, scratch = open_input(model), folder / "scratch"
    _, spec = read_weights(source, scratch)
    optim = AdamW(lr=1e-3, schedule=Schedule(kind="constant"))
    member = Member(role=Role(model=spec, objective={"lm": LM()}, optim=optim), mode="frozen", init="base")
    train = Train(steps=1, global_batch=world, micro_batch=1, sequence=16, precision="fp32")
    training = Training(members={"model": member}, streams=(), train=train)
    context = BuildContext(gang=gang, layout=layout, inputs={"base": source}, scratch=scratch)
    state = build_member("model", member, training=training, build_context=context)
    loaded, began = peak_mb(), time.perf_counter()
    publish(state, str(folder / "published"), inputs={}, scratch=scratch, most=FILE_BYTES, rows={})
    seconds = time.perf_counter() - began
    gang.barrier()
    held = sum(local(weight).nbytes for weight in state.weights.parameters().values()) / MB
    if gang.is_first:
        assert same_weights(source.record.files, folder / "published"), "other bytes were published"
    return {"weights": held, "loaded": loaded, "seconds": seconds}


def same_weights(files: tuple[FileEntry, ...], published: Path) -> bool:
    """Whether a model in float32 was published with the digests that it had."""
    body = json.loads((published / "body.json").read_text())
    found = {entry["path"]: entry["sha256"] for entry in body["files"]}
    return all(found.get(entry.path.split("/", 1)[1], entry.sha256) == entry.sha256 for entry in files)


def worker(asked: dict[str, Any]) -> None:
    """Do one thing in this process and print its peak."""
    what, model, folder = asked["what"], asked["model"], Path(asked["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    if what == "publish":
        numbers = publishing(model, folder, asked["world"])
    else:
        run = RunFile.model_validate(asked["run"])
        began = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            evaluate(run, io.StringIO()) if what == "score" else generate(run, [], io.StringIO())
        numbers = {"weights": asked["weights"], "seconds": time.perf_counter() - began}
    print(json.dumps(numbers | {"peak": peak_mb()}), flush=True)
    os._exit(0)  # not by destructors: gloo now and then aborts a process that has finished


def measured(asked: dict[str, Any], world: int = 1) -> list[dict[str, float]]:
    """The numbers of every rank of a fresh gang."""
    folder = Path(asked["folder"])
    folder.mkdir(parents=True)
    gang = {
        "WORLD_SIZE": str(world),
        "ATELIER_RENDEZVOUS": f"file://{folder}/meeting",
        "OMP_NUM_THREADS": "2",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__)), "--worker", json.dumps(asked | {"world": world})],
            env=os.environ | gang | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(world)
    ]  # fmt: skip
    said = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"{asked['what']} ended with {[rank.returncode for rank in ranks]}")
    found = [json.loads(each.splitlines()[-1]) for each in said]
    return [{key: round(value, 1) for key, value in each.items()} | rest(each) for each in found]


def rest(numbers: dict[str, float]) -> dict[str, float]:
    return {"rest": round(numbers["peak"] - numbers["weights"], 1)}


def measure(root: Path, num_layers: int, study: Any) -> dict[str, Any]:
    """All numbers of one size, in MB and seconds."""
    spec = GPT(num_layers=num_layers, hidden=HIDDEN, num_heads=8, vocab=study.vocabulary.size)
    size = spec.num_params() * 4 / MB
    found: dict[str, Any] = {"weights": round(size, 1)}
    for name, dtype in DTYPES.items():
        place = root / f"{num_layers}-{name}"
        model = write(place / "model", spec, dtype, study.file(study.tokenizer, "tokenizer.json"))
        common = {"model": model, "weights": size}
        if name == "fp32":
            found["publish"], *_ = measured(common | {"what": "publish", "folder": str(place / "publish")})
            found["publish, 2 ranks"] = measured(
                common | {"what": "publish", "folder": str(place / "publish-2")}, world=2
            )
        target = {"one": {"text": True, "labels": False}}
        score = {"max_tokens": 256, "sequence": 64, "sample": "The"}
        runs = {
            "score": study.run_file(
                "score",
                {"score": score, "targets": target, "threads": 2},
                {"model.one": open_input(model), "tokens": study.tokens, "tokenizer": study.tokenizer},
                "one",
            ),
            "generate": study.run_file(
                "generate", {"prompts": ["The"], "max_tokens": 16}, {"model": open_input(model)}
            ),
        }
        for what, run in runs.items():
            asked = {
                "what": what,
                "folder": str(place / what),
                "run": run.model_dump(mode="json", by_alias=True),
            }
            found[f"{what}, {name} file"], *_ = measured(common | asked)
            print(num_layers, what, name, found[f"{what}, {name} file"], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--layers", type=int, nargs=2, default=[5, 40], help="of the small and the large model"
    )
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on a disk with 10 GB left")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        worker(json.loads(chosen.worker))
    from tests.engine.scored_models import Study  # here: a worker needs none of it

    with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
        study = Study(Path(name) / "study")
        sizes = [measure(Path(name), num_layers, study) for num_layers in chosen.layers]
    small, large = sizes
    growth = {
        what: round(large[what]["rest"] / small[what]["rest"], 2)
        for what in small
        if isinstance(small[what], dict)
    }
    for rank in (0, 1):
        pair = [each["publish, 2 ranks"][rank]["rest"] for each in sizes]
        growth[f"publish, rank {rank} of 2"] = round(pair[1] / pair[0], 2)
    numbers = {"unit": "MB, s", "hidden": HIDDEN, "layers": chosen.layers, "small": small, "large": large}
    keep(
        "model_memory",
        numbers | {"rest_grows_to": growth, "goal": 1.3},
        is_trial=chosen.layers != parser.get_default("layers"),
    )


if __name__ == "__main__":
    main()
