"""Loss and bytes of codecs between two sites in a small training, with and without feedback.

python benchmarks/codecs.py [--seeds 3] [--steps 160]

Two sites with half of the rows each, DiLoCo's outer step (Nesterov, lr 0.7, momentum 0.9) every 16 steps,
both in this process with one mailbox; the text is a noisy cycle of tokens (tests/engine/trainings.py). `more`
is the held-out loss at the end, in nats a token, minus that of codec `none` from the same seed: the mean over
seeds; `most` is the largest. `bytes`: a message's size as a share of one of codec `none`. Results at this
size may not hold at another.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from machine import keep, use_own_code

from atelier.engine.config.model.gpt import GPT
from atelier.engine.extensions.sites.config.train.link import Link
from atelier.engine.extensions.sites.encoded import message_bytes
from atelier.engine.io.tensorfile import TensorEntry
from tests.engine.extensions.sites.test_outer import Sites
from tests.engine.trainings import VOCAB, role, tokens

EVERY, BATCH = 16, 8
MODEL = GPT(num_layers=3, hidden=64, num_heads=4, vocab=VOCAB)
OUTER = {"kind": "nesterov", "lr": 0.7, "momentum": 0.9}
CODECS: dict[str, dict[str, Any]] = {
    "bf16": {"kind": "bf16"},
    "int8": {"kind": "int8"},
    "int4": {"kind": "int4"},
    "int2": {"kind": "int2"},
    "topk 0.01": {"kind": "topk"},
    "topk 0.1": {"kind": "topk", "share": 0.1},
    "powersgd 4": {"kind": "powersgd"},
}
CASES: dict[str, dict[str, Any]] = {
    "none": {},
    **{name: {"codec": codec} for name, codec in CODECS.items()},
    **{f"{name}, no feedback": {"codec": codec, "feedback": False} for name, codec in CODECS.items()},
    "none, delay 4": {"delay": 4},
    "none, delay 4, 4 fragments": {"delay": 4, "fragments": 4},
    "int4, delay 4, 4 fragments": {"codec": CODECS["int4"], "delay": 4, "fragments": 4},
}


def loss(folder: Path, link: dict[str, Any], steps: int, seed: int) -> float:
    """The held-out loss of the two sites' model."""
    text = {"tokens": tokens(folder / "text", num_tokens=60_000, seed=seed)}
    rows = {"a": BATCH // 2, "b": BATCH // 2}
    sites = Sites(folder, text, rows=rows, every=EVERY, outer=OUTER, **link)
    how = {"micro_batch": 4, "sequence": 32, "checkpoint_every": steps, "eval_sequences": 64, "seed": seed}
    sites.train(role(shape=MODEL, lr=3e-3), steps=steps, **how)
    assert len(set(sites.models())) == 1
    return sites.setups["a"].summary("m")["eval_loss"]


def message(link: dict[str, Any]) -> float:
    """Bytes that a site sends in `EVERY` steps, as a share of those of codec none."""
    weights = [TensorEntry(name, "F32", tuple(shape)) for name, shape in MODEL.shapes().items()]
    each = message_bytes(Link(rows={"a": 1}, every=EVERY, **link).codec, weights)
    return each / message_bytes(Link().codec, weights)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=160)
    given = parser.parse_args()
    use_own_code()
    losses: dict[str, list[float]] = {name: [] for name in CASES}
    for seed in range(1, given.seeds + 1):
        for name, link in CASES.items():
            with tempfile.TemporaryDirectory() as folder:
                losses[name].append(loss(Path(folder), link, given.steps, seed))
    found: dict[str, Any] = {}
    for name, link in CASES.items():
        apart = [one - none for one, none in zip(losses[name], losses["none"], strict=True)]
        found[name] = {
            "bytes": round(message(link), 4),
            "loss": [round(one, 4) for one in losses[name]],
            "more": round(statistics.mean(apart), 4),
            "most": round(max(apart), 4),
        }
    keep("codecs", {"steps": given.steps, "every": EVERY, "params": MODEL.num_params(), "cases": found})


if __name__ == "__main__":
    main()
