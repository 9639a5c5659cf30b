"""Ring-memory inference of a model of 2 GB in a quarter of that memory, beside other ways to stream weights
from a disk. Each runs in a fresh process, in a cgroup of its memory without weights and a quarter of the
weights; the file's pages are dropped before every pass.

python benchmarks/ring.py [--layers 24] [--folder .] [--peers PATH]     goals: 2 times accelerate's disk
        offload, 1.2 times the best of load_file per layer and mmap with advice; max(compute, read) 0.9 of it

  ring        atelier's, 0.2 of the weights in memory
  load_file   safetensors' load_file of one block's shard, then the block, in turn
  mmap        all weights mapped; MADV_WILLNEED for the next block, MADV_DONTNEED behind
  accelerate  transformers' Llama of the same shapes with device_map=auto and the same memory for weights; a
              pass has the same products; also without the cgroup, if the cgroup ends it. --peers: a folder
              that has both (pip install --target)
  resident    all in memory, without the cgroup: the bits that ring must have, and the time of computing

`read` is one read of all streamed weights. Seconds are medians over --passes passes.
"""

import argparse
import hashlib
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

import torch
from machine import keep, use_own_code
from model_memory import peak_mb, write

from atelier.engine.config.model.gpt import GPT
from atelier.engine.io.artifact import open_input
from atelier.engine.model.load import blank, build, read_model, read_weights
from atelier.engine.tier.ring import put, read_model_within, ring_of, stored_by

HIDDEN, HEADS, INNER, VOCAB = 1280, 20, 3456, 4096
TOKENS = (1, 64, 512)  # of a pass
WAYS = ("ring", "load_file", "mmap", "accelerate")
CGROUPS = Path("/sys/fs/cgroup/memory")  # of version 1; for version 2, /sys/fs/cgroup
SHARE = 0.2  # of the weights that may be in memory at once

use_own_code()


def spec_of(layers: int) -> GPT:
    return GPT(num_layers=layers, hidden=HIDDEN, num_heads=HEADS, ffn=INNER, vocab=VOCAB, tied=True)


def batch_of(tokens: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(VOCAB, (1, tokens), generator=torch.Generator().manual_seed(tokens))
    return {
        "tokens_BT": ids,
        "positions_BT": torch.arange(tokens)[None],
        "documents_BT": torch.zeros_like(ids),
    }


def drop(folder: Path) -> None:
    """Drop the pages of all files of a folder from the cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


# one way each: a function that does a pass over a batch and returns its hidden states


def ring(folder: Path, layers: int, memory: int) -> Callable[[dict[str, torch.Tensor]], torch.Tensor]:
    model, _ = read_model_within(
        open_input(str(folder / "model")), folder, memory, device=torch.device("cpu"), dtype=torch.float32
    )
    model.eval()
    drop(folder)
    began = time.perf_counter()
    streamed = ring_of(model)
    assert streamed is not None
    streamed.read_all()
    print(json.dumps({"read": time.perf_counter() - began}), flush=True)
    return lambda batch: model(batch).hidden


def resident(folder: Path, layers: int, memory: int) -> Callable[[dict[str, torch.Tensor]], torch.Tensor]:
    model, _ = read_model(open_input(str(folder / "model")), folder, dtype=torch.float32)
    model.eval()
    model(batch_of(8))  # all pages are there
    return lambda batch: model(batch).hidden


def by_block(folder: Path, layers: int, before: Callable[[int, Any], None]) -> Callable[..., torch.Tensor]:
    """The model with `before(number, block)` called before each block, which has to give it weights."""
    with blank():
        model = build(spec_of(layers))
    files, _ = read_weights(open_input(str(folder / "model")), folder)
    inside = {module for block in model.blocks for module in block.modules()}
    for path, module in model.named_modules():
        for leaf, _ in stored_by(module) if module not in inside else ():
            put(module, leaf, files[f"{path}.{leaf}"].clone())
    for number, block in enumerate(model.blocks):
        block.register_forward_pre_hook(partial(_before, before, number))
    model.eval()
    return lambda batch: model(batch).hidden


def _before(before: Callable[[int, Any], None], number: int, block: Any, given: Any) -> None:
    before(number, block)


def load_file(folder: Path, layers: int, memory: int) -> Callable[[dict[str, torch.Tensor]], torch.Tensor]:
    from safetensors.torch import load_file as load

    def before(number: int, block: Any) -> None:
        for name, weight in load(folder / "blocks" / f"{number}.safetensors").items():
            path, _, leaf = name.rpartition(".")
            put(block.get_submodule(path), leaf, weight)

    return by_block(folder, layers, before)


def mapped(folder: Path, layers: int, memory: int) -> Callable[[dict[str, torch.Tensor]], torch.Tensor]:
    maps = []
    for number in range(layers):
        path = folder / "blocks" / f"{number}.safetensors"
        with open(path, "rb") as file:
            maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    from atelier.engine.model.weights import StoredWeights

    places = [StoredWeights(folder / "blocks" / f"{number}.safetensors") for number in range(layers)]

    def before(number: int, block: Any) -> None:
        maps[(number + 1) % layers].madvise(mmap.MADV_WILLNEED)
        maps[number - 1].madvise(mmap.MADV_DONTNEED)
        for name in places[number]:
            place = places[number].place(name)
            size = torch.Size(place.shape).numel()
            weight = torch.frombuffer(maps[number], dtype=place.dtype, count=size, offset=place.offset)
            path, _, leaf = name.rpartition(".")
            put(block.get_submodule(path), leaf, weight.view(place.shape))

    return by_block(folder, layers, before)


def accelerate(folder: Path, layers: int, memory: int) -> Callable[[dict[str, torch.Tensor]], torch.Tensor]:
    from transformers import AutoModelForCausalLM  # pyright: ignore[reportMissingImports]  # in --peers

    model = AutoModelForCausalLM.from_pretrained(
        folder / "llama", device_map="auto", max_memory={"cpu": memory},
        offload_folder=str(folder / "offload"), dtype=torch.float32,
    )  # fmt: skip
    return lambda batch: model.model(input_ids=batch["tokens_BT"]).last_hidden_state


def imports(folder: Path, layers: int, memory: int) -> Callable[[dict[str, torch.Tensor]], torch.Tensor]:
    from transformers import AutoModelForCausalLM  # pyright: ignore[reportMissingImports]  # in --peers

    assert AutoModelForCausalLM.from_config
    return lambda batch: batch["tokens_BT"]


@torch.inference_mode()
def worker(asked: dict[str, Any]) -> None:
    """One way in this process: seconds of each pass, digests of what came, and the peak."""
    ways = {
        "ring": ring, "load_file": load_file, "mmap": mapped, "accelerate": accelerate, "resident": resident,
        "nothing": lambda *_: lambda batch: batch["tokens_BT"], "imports": imports,
    }  # fmt: skip
    folder = Path(asked["folder"])
    torch.set_num_threads(asked["threads"])
    one = ways[asked["way"]](folder, asked["layers"], asked["memory"])
    found: dict[str, Any] = {}
    for tokens in TOKENS:
        batch, seconds = batch_of(tokens), []
        for _ in range(asked["passes"]):
            if asked["way"] != "resident":
                drop(folder)
            began = time.perf_counter()
            result = one(batch)
            seconds.append(time.perf_counter() - began)
        digest = hashlib.sha256(result.contiguous().numpy().tobytes()).hexdigest()[:16]
        found[str(tokens)] = {"seconds": statistics.median(seconds), "digest": digest}
    print(json.dumps({"passes": found, "peak_mb": peak_mb()}), flush=True)
    os._exit(0)


class Cgroup:
    """A memory cgroup of `limit` bytes, where this machine lets us have one."""

    def __init__(self, limit: int | None) -> None:
        self.place = CGROUPS / f"atelier-ring-{os.getpid()}" if limit else None
        if self.place is not None:
            self.place.mkdir()
            (self.place / "memory.limit_in_bytes").write_text(str(limit))

    def enter(self) -> None:
        """In the process that is to be limited."""
        if self.place is not None:
            (self.place / "cgroup.procs").write_text(str(os.getpid()))

    def leave(self) -> int:
        if self.place is None:
            return 0
        peak = int((self.place / "memory.max_usage_in_bytes").read_text())
        for _ in range(100):
            with suppress(OSError):
                self.place.rmdir()
                break
            time.sleep(0.05)
        return peak


def measured(asked: dict[str, Any], limit: int | None, peers: str) -> dict[str, Any]:
    group = Cgroup(limit)
    env = os.environ | {"OMP_NUM_THREADS": str(asked["threads"])}
    if asked["way"] in ("accelerate", "imports"):
        env["PYTHONPATH"] = f"{env['PYTHONPATH']}{os.pathsep}{peers}"
    child = subprocess.run(
        [sys.executable, __file__, "--worker", json.dumps(asked)],
        env=env, stdout=subprocess.PIPE, text=True, preexec_fn=group.enter,
    )  # fmt: skip
    cgroup_mb = group.leave() / 1e6
    lines = [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]
    if child.returncode or not lines:
        return {"failed": child.returncode}
    found: dict[str, Any] = {}
    for line in lines:
        found |= line
    return found | ({"cgroup_peak_mb": round(cgroup_mb, 1)} if limit else {})


def prepare(folder: Path, layers: int, peers: str) -> int:
    """The model as an artifact, its blocks as files, and a Llama of its shapes; its bytes."""
    from safetensors.torch import save_file

    from tests.engine.scored_models import Study

    study = Study(folder / "study")
    write(folder / "model", spec_of(layers), torch.float32, study.file(study.tokenizer, "tokenizer.json"))
    files, spec = read_weights(open_input(str(folder / "model")), folder)
    (folder / "blocks").mkdir()
    for number in range(layers):
        head = f"blocks.{number}."
        mine = {name.removeprefix(head): files[name].clone() for name in files if name.startswith(head)}
        save_file(mine, folder / "blocks" / f"{number}.safetensors")
    if peers:
        code = (
            "import sys; from transformers import LlamaConfig, LlamaForCausalLM\n"
            f"c = LlamaConfig(hidden_size={HIDDEN}, intermediate_size={INNER}, num_hidden_layers={layers}, "
            f"num_attention_heads={HEADS}, num_key_value_heads={HEADS}, vocab_size={VOCAB}, "
            "tie_word_embeddings=True)\n"
            f"LlamaForCausalLM(c).save_pretrained({str(folder / 'llama')!r}, max_shard_size='500MB')"
        )
        env = os.environ | {"PYTHONPATH": peers}
        subprocess.run([sys.executable, "-c", code], env=env, check=True)
    return spec.num_params() * 4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2, help="of all ways, in rotated order")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on a disk with 8 GB left")
    parser.add_argument("--peers", default="", help="a folder with transformers and accelerate")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        worker(json.loads(chosen.worker))
    root = Path(tempfile.mkdtemp(dir=chosen.folder))
    try:
        size = prepare(root, chosen.layers, chosen.peers)
        common = {
            "folder": str(root), "layers": chosen.layers, "passes": chosen.passes, "threads": chosen.threads,
            "memory": int(SHARE * size),
        }  # fmt: skip
        alone = measured(common | {"way": "nothing"}, None, "")["peak_mb"]
        theirs = measured(common | {"way": "imports"}, None, chosen.peers)["peak_mb"] if chosen.peers else 0
        bases: dict[str, float] = {
            way: theirs if way == "accelerate" else alone for way in WAYS
        }  # without weights
        is_held = os.access(CGROUPS, os.W_OK)
        limits = {way: int(base * 1e6 + size / 4) if is_held else None for way, base in bases.items()}
        rounds: dict[str, list[dict[str, Any]]] = {}
        ways = [way for way in WAYS if way != "accelerate" or chosen.peers]
        for turn in range(chosen.rounds):
            for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                rounds.setdefault(way, []).append(measured(common | {"way": way}, limits[way], chosen.peers))
                print(way, rounds[way][-1], flush=True)
        if any("failed" in one for one in rounds.get("accelerate", ())):  # it was killed at its cap
            free = measured(common | {"way": "accelerate"}, None, chosen.peers)
            rounds["accelerate, no cap"] = [free]
            print("accelerate, no cap", free, flush=True)
        rounds["resident"] = [measured(common | {"way": "resident"}, None, "") for _ in range(chosen.rounds)]
    finally:
        shutil.rmtree(root)
    keep("ring", summary(rounds, size, bases, limits), is_trial=chosen.layers != 24)


def summary(
    rounds: dict[str, list[dict[str, Any]]],
    size: int,
    bases: dict[str, float],
    limits: dict[str, int | None],
) -> dict[str, Any]:
    seconds = {
        way: {
            str(tokens): statistics.median(one["passes"][str(tokens)]["seconds"] for one in found)
            for tokens in TOKENS
        }
        for way, found in rounds.items()
        if all("passes" in one for one in found)
    }
    read = statistics.median(one["read"] for one in rounds["ring"])
    compute, mine = seconds["resident"], seconds["ring"]
    others = [way for way in ("load_file", "mmap") if way in seconds]
    digests = {
        way: [one["passes"][str(t)]["digest"] for t in TOKENS]
        for way in ("ring", "resident")
        for one in rounds[way]
    }
    return {
        "weights_gb": round(size / 1e9, 3),
        "memory_without_weights_mb": {way: round(base, 1) for way, base in bases.items()},
        "cap_mb": {way: round(limit / 1e6, 1) if limit else None for way, limit in limits.items()},
        "in_memory_gb": round(SHARE * size / 1e9, 3),
        "seconds of a pass of so many tokens": {
            way: {k: round(v, 3) for k, v in each.items()} for way, each in seconds.items()
        },
        "read_s": round(read, 3),
        "peak_mb": {way: max(one.get("peak_mb", 0) for one in found) for way, found in rounds.items()},
        "cgroup_peak_mb": {w: max(one.get("cgroup_peak_mb", 0) for one in f) for w, f in rounds.items()},
        "failed": [way for way, found in rounds.items() if any("failed" in one for one in found)],
        "bits of resident": digests["ring"] == digests["resident"],
        "accelerate / ring": {
            way: {t: round(seconds[way][t] / mine[t], 2) for t in mine}
            for way in seconds
            if way.startswith("accelerate")
        },
        "best of load_file and mmap / ring": {
            t: round(min(seconds[w][t] for w in others) / mine[t], 2) for t in mine
        },
        "max(compute, read) / pass": {t: round(max(compute[t], read) / mine[t], 3) for t in mine},
        "goals": {
            "accelerate / ring": 2.0,
            "best of load_file and mmap / ring": 1.2,
            "max(compute, read) / pass": 0.9,
        },
    }


if __name__ == "__main__":
    main()
