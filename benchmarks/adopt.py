"""Peak memory and time of importing a checkpoint of 256 MB and one of 2 GB (equal widths, more blocks),
beside a copy that hashes both ends.

python benchmarks/adopt.py [--layers 10 80] [--rounds 3] [--folder .]
goals: memory grows to 1.1 times at most; 1.25 times the copy at most

Memory is VmHWM of a fresh process that imports, which includes pages of mapped files. The two ways alternate
in rotated order; medians. Files are in the page cache of the machine, if it has room for them.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

import torch
from machine import keep, use_own_code
from safetensors.torch import save_file

from atelier.engine.config.foreign.families import family_of
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.run_file import RunFile
from atelier.engine.io.source_files import content_id
from tests.engine.trainings import artifact

MB = 1e6
SHARD = 400 * MB  # bytes, about
BLOCK = 1 << 20
FAMILY = "qwen3"

use_own_code()


def spec_of(layers: int) -> GPT:
    return GPT(
        num_layers=layers, hidden=1024, num_heads=16, num_kv_heads=8, ffn=3072, vocab=300, qk_norm=True,
        norm_eps=1e-6, rope_theta=1e6, tied=True,
    )  # fmt: skip


def write(folder: Path, spec: GPT) -> int:
    """A checkpoint of random weights in bf16, in shards; its bytes."""
    family, shards, weight_map, size = family_of({"model_type": FAMILY}, FAMILY), [{}], {}, 0
    for ours, shape in spec.shapes().items():
        part = family.foreign(ours, spec)
        assert part is not None
        weight = (0.02 * torch.randn(shape)).to(torch.bfloat16)
        if sum(each.nbytes for each in shards[-1].values()) > SHARD:
            shards.append({})
        shards[-1][part.name] = weight
        size += weight.nbytes
    folder.mkdir()
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / name)
        weight_map |= dict.fromkeys(shard, name)
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(family.config(spec)))
    return size


def importing(folder: Path, place: Path, tokenizer: str) -> tuple[float, float]:
    """Seconds of an import without its start, and MB of its process at the most."""
    files = sorted(folder.iterdir())
    config = {
        "source": str(folder),
        "weights": [path.name for path in files if path.suffix == ".safetensors"],
        "files": [[str(path), content_id(str(path))] for path in files],
    }
    run = RunFile(
        schema=1, task="adopt", version=1, config=config, inputs={"tokenizer": tokenizer},
        outputs={"model": str(place / "made")}, scratch=str(place),
        layout=Parallel(shard=1, threads=1, device="cpu"),
    )  # fmt: skip
    place.mkdir()
    (place / "run.json").write_text(run.text())
    code = subprocess.run(
        [sys.executable, __file__, "--child", str(place / "run.json")], capture_output=True, text=True
    )
    if code.returncode:
        raise SystemExit(code.stderr)
    found = json.loads(code.stdout.splitlines()[-1])
    return found["seconds"], found["mb"]


def child(place: str) -> None:
    """Import, and say how long it took and how much memory."""
    from atelier.engine import adopt as adopting

    run = RunFile.model_validate_json(Path(place).read_text())
    began = time.perf_counter()
    adopting.adopt(run)
    print()
    print(json.dumps({"seconds": time.perf_counter() - began, "mb": peak_mb()}))


def peak_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / MB for line in lines if line.startswith("VmHWM"))


def copying(folder: Path, place: Path) -> float:
    """Seconds of a copy that hashes what it reads and, read again, what it wrote."""
    began = time.perf_counter()
    place.mkdir()
    for path in sorted(folder.iterdir()):
        digests = [hashlib.sha256(), hashlib.sha256()]
        with open(path, "rb") as source, open(place / path.name, "wb") as target:
            while block := source.read(BLOCK):
                digests[0].update(block)
                target.write(block)
            target.flush()
            os.fsync(target.fileno())
        with open(place / path.name, "rb") as written:
            while block := written.read(BLOCK):
                digests[1].update(block)
        assert digests[0].digest() == digests[1].digest()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, nargs="+", default=[10, 80])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    cases = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        place = Path(name)
        tokenizer = artifact(place / "tokenizer", "tokenizer", {"tokenizer.json": small_tokenizer(place)})
        for layers in options.layers:
            size = write(place / "source", spec_of(layers))
            seconds: dict[str, list[float]] = {"import": [], "copy": []}
            memory: list[float] = []
            for number in range(options.rounds):
                for way in sorted(seconds, reverse=bool(number % 2)):
                    if way == "import":
                        took, mb = importing(place / "source", place / "import", tokenizer)
                        memory.append(mb)
                    else:
                        took = copying(place / "source", place / "copy")
                    seconds[way].append(took)
                    remove(place / way)
            middle = {way: statistics.median(each) for way, each in seconds.items()}
            cases[f"{size / MB:.0f} MB"] = {
                "layers": layers,
                "import_s": round(middle["import"], 3),
                "copy_s": round(middle["copy"], 3),
                "import / copy": round(middle["import"] / middle["copy"], 3),
                "memory_mb": round(statistics.median(memory), 1),
            }
            print(json.dumps(cases), flush=True)
            remove(place / "source")
    first, *_, last = cases.values()
    growth = round(last["memory_mb"] / first["memory_mb"], 3)
    keep("adopt", {"cases": cases, "memory grows": growth, "rounds": options.rounds})


def small_tokenizer(place: Path) -> bytes:
    """Bytes and the tokens that every learned tokenizer has."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={token: n for n, token in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    made.add_special_tokens(["<|end|>", "<|pad|>"])
    return made.to_str().encode()


def remove(folder: Path) -> None:
    subprocess.run(["rm", "-rf", str(folder)], check=True)


if __name__ == "__main__":
    main()
