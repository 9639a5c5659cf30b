"""Scale on paper: costs per unit, measured here, and what they come to for 10^12 tokens, 10^4 ranks and 10^6
files.

python benchmarks/scale.py [--tiny]      two minutes on one core

Costs are processor time, with files in memory: what disks and networks add is not here. Each is measured
at two sizes that differ by a factor of ten; the figure at full size is the larger one's
cost per unit, times the units. `growth` is the ratio of the costs per unit: 1 means that the cost is linear.
Nothing here was run at full size.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent), str(HERE)]

import numpy as np
from machine import keep, use_own_code

from atelier.engine.checkpoint.manifest import MANIFEST, Chunk, Manifest, StoredTensor, read_manifest
from atelier.engine.config.document import MOST_BYTES
from atelier.engine.config.metric import merge, segment_name
from atelier.engine.config.record import FileEntry, Record, Summary, identify
from atelier.engine.data.tokens import Windows
from atelier.engine.io.artifact import ArtifactInput, open_input
from atelier.engine.io.storage import digest_of, names
from tests.engine.trainings import tokens

TOKENS, RANKS, FILES, STEPS = 1e12, 1e4, 1e6, 1e6
TOKENS_PER_DOCUMENT, TOKEN_BYTES, END_BYTES = 500, 2, 8
RANKS_PER_NODE, TENSORS, SOME_TENSORS = 8, 2000, 200  # of a checkpoint; that are measured
DIGEST = "0" * 64

use_own_code()


def seconds(act: Callable[[], object], rounds: int = 3) -> float:
    """Processor time, the least of some rounds: of files that are in memory."""
    found = []
    for _ in range(rounds):
        begin = time.process_time()
        act()
        found.append(time.process_time() - begin)
    return min(found)


def unit(cost: Callable[[int], float], size: int, full: float, what: str, per: str) -> dict[str, Any]:
    """A cost at `size` and a tenth of it, and at full size."""
    small, large = cost(size // 10), cost(size)
    each = large / size
    return {
        "what": what,
        "measured at": size,
        f"s per {per}": float(f"{each:.3g}"),
        "growth": round(each / max(small / (size // 10), 1e-12), 2),
        "s at full size": float(f"{each * full:.3g}"),
    }


def hashing(folder: Path, size: int) -> float:
    path = folder / "bytes"
    path.write_bytes(np.random.default_rng(0).bytes(size))
    return seconds(lambda: digest_of(str(path)))


def windows(folder: Path, documents: int) -> float:
    """Seconds for 1,000 rows of 2,048 tokens from a text of so many documents; grows with their logarithm."""
    place = folder / f"windows-{documents}"
    url = tokens(place, num_tokens=documents * 100, seed=1)
    opened = Windows(open_input(url), folder / "scratch", "train", 2048)
    rows = np.random.default_rng(0).integers(0, len(opened), (10, 100)) if len(opened) else np.zeros((10, 0))
    return seconds(lambda: [opened.batch(row) for row in rows])


def entries(number: int) -> tuple[FileEntry, ...]:
    return tuple(FileEntry(path=f"payload/{n:08}.bin", bytes=1, sha256=DIGEST) for n in range(number))


def record(files: int) -> tuple[float, int]:
    """Seconds to read a record of so many files and look the last one up; its bytes."""
    made = Record(
        kind="corpus", name="corpus", fingerprint=identify("corpus", 1, {}, {}), version=1, identity={},
        parents={}, files=entries(files), summary=cast(Summary, {}),
    ).sealed()  # fmt: skip
    text = made.text().encode()
    read = seconds(
        lambda: ArtifactInput("/nowhere", Record.read(text, "record.json")).entry(f"{files - 1:08}.bin")
    )
    return read, len(text)


def manifest(ranks: int) -> tuple[float, int]:
    """Seconds to read the manifest of a checkpoint of so many ranks that share every tensor; its bytes. The
    entries of the files, 120 bytes a rank, are few beside the parts of TENSORS tensors.
    """
    tensors = {
        f"layers.{n}.weight": StoredTensor(
            dtype="float32",
            shape=(ranks * 128, 16384),
            chunks=tuple(
                Chunk(file=rank, offset=(rank * 128, 0), shape=(128, 16384)) for rank in range(ranks)
            ),
        )
        for n in range(SOME_TENSORS)
    }
    about: dict[str, Any] = {"schema": 1, "step": 1, "trajectory": "a", "world": ranks}
    made = Manifest(**about, files=entries(ranks), tensors=tensors, values=[])
    text = made.sealed()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, MANIFEST).write_bytes(text)
        return seconds(lambda: read_manifest(folder), 1), len(text)


def curve(steps: int) -> float:
    line = {"step": 0, "role": "model", "tokens": 1, "values": {"loss": 1.0, "grad": 1.0}, "timing": {}}
    files = [
        (segment_name(1, n), "".join(json.dumps(line | {"step": step}) + "\n" for step in range(n, n + 1000)))
        for n in range(0, steps, 1000)
    ]
    return seconds(lambda: merge(files), 1)


def listing(folder: Path, files: int) -> float:
    place = folder / f"listing-{files}"
    place.mkdir()
    for number in range(files):
        (place / f"{number:08}").touch()
    return seconds(lambda: names(str(place)))


def measured(folder: Path, scale: int) -> dict[str, Any]:
    documents = TOKENS / TOKENS_PER_DOCUMENT
    found = {
        "verify": unit(
            lambda size: hashing(folder, size), 500_000_000 // scale, TOKENS * TOKEN_BYTES,
            "hash the tokens: once a node, again when they change", "byte",
        ),
        "curve": unit(curve, 200_000 // scale, STEPS, "merge a training's metric lines", "step"),
        "list": unit(lambda size: listing(folder, size), 20_000 // scale, FILES, "list a folder", "file"),
    }  # fmt: skip
    rows = {size: windows(folder, size) / 1000 for size in (20_000 // scale, 200_000 // scale)}
    (few, least), (many, most) = rows.items()
    growth = (most - least) / (math.log(many / few) / math.log(2))
    found["windows"] = {
        "what": "make a row of 2,048 tokens; its documents are found by bisection in a mapped file",
        "ms a row": round(1e3 * most, 4),
        "ms a row at full size": round(1e3 * (most + max(0.0, growth) * math.log2(documents / many)), 4),
        "ends on disk, GB": documents * END_BYTES / 1e9,
        "in memory of a rank, GB": 0.0,
    }
    kinds = {
        "record": ("read an artifact's record, by files", record, FILES, 20_000 // scale, 1),
        "manifest": (
            f"read a checkpoint's manifest, by ranks, with {TENSORS} tensors that all share",
            manifest, RANKS, 400 // scale, TENSORS // SOME_TENSORS,
        ),
    }  # fmt: skip
    for name, (what, act, full, size, times) in kinds.items():
        took, size_bytes = act(size)
        at_full = size_bytes / size * full * times
        found[name] = {
            "what": what,
            "measured at": size,
            "bytes a unit": round(size_bytes / size),
            "MB at full size": round(at_full / 1e6),
            "s at full size": round(took / size_bytes * at_full, 1),
            "largest document that is read, MB": round(MOST_BYTES / 1e6),
            "fits": at_full <= MOST_BYTES,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="a hundredth of the sizes: tries the script")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        numbers = measured(Path(folder), 100 if chosen.tiny else 1)
    full = {"tokens": TOKENS, "ranks": RANKS, "files": FILES, "steps": STEPS}
    keep("scale", {"full size": full | {"nodes": RANKS / RANKS_PER_NODE}} | numbers, is_trial=chosen.tiny)


if __name__ == "__main__":
    main()
