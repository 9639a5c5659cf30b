"""Loss of training over two sites at a hundredth of the bytes, beside synchronous training, each of both with
its best learning rate of the matrices.

python benchmarks/outer_tuned.py --seeds 1 2 3 --steps 504 [--store DIR] [--tiny]     30 minutes, two cores

The trainings of benchmarks/outer_loss.py: its text, model, rows, codec (int2) and `every` (8). The rate is
chosen for each way on a validation part: documents held out from those that the default text trains on, with
seed 1 and equally many steps. The losses are then those of the default text's held-out part, which no choice
has seen. `validation`: the loss by rate of each way. `more`: held-out nats a token above `synchronous` from
the same seed, with half of its 95 % interval.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from machine import keep
from outer_loss import AIM, LONG_LR, OverSites, way
from parts import interval

RATES = (0.005, 0.01, 0.02)  # of the matrices; the last one is the default
EVERY = 8
LINK: dict[str, Any] = way("int2", EVERY)
SYNCHRONOUS, SITES = "synchronous", "average, int2, every 8"


class Tuned(OverSites):
    """Trainings by the learning rate of the matrices."""

    def loss(self, name: str, rate: float, seed: int) -> float:
        """The held-out loss of a way with this rate."""
        short, steps = f"{'s' if name == SYNCHRONOUS else 'i'}-m{str(rate)[2:]}", self.steps
        role = self.role(self.model, "m")
        role["optim"] |= {"lr": LONG_LR, "matrix_lr": rate}
        self._role = lambda steps: role
        if name == SITES:
            return self.over_sites(short, seed, LINK, steps)
        how: dict[str, Any] = {"micro_batch": 4, "checkpoint_every": steps, "eval_every": steps}
        return self.part(short, seed, {"m": role}, steps=steps, **how)["loss"]["m"]

    def training_text(self) -> Path:
        """A file of the documents that the text trains on."""
        [documents] = (self.store / "atelier" / "corpus").glob("*/*/documents.jsonl")
        path = self.store / "training_text.jsonl"
        lines = [json.loads(line) for line in documents.read_text().splitlines()]
        kept = [{"text": one["text"], "group": one["group"]} for one in lines if one["split"] == "train"]
        path.write_text("".join(json.dumps(line) + "\n" for line in kept))
        return path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="to choose from")
    parser.add_argument("--source", type=Path, help="training text of an earlier run, with its store")
    parser.add_argument("--steps", type=int, default=504, help=f"of each training; a multiple of {EVERY}")
    parser.add_argument("--store", type=Path, default=Path("outer-tuned-store"))
    parser.add_argument("--tiny", action="store_true", help="some minutes: tries the script, shows nothing")
    chosen = parser.parse_args()
    chosen.threads, chosen.lr = 1, 0.0
    test = Tuned(argparse.Namespace(**vars(chosen) | {"source": ""}))
    text, store = chosen.source or test.training_text(), chosen.store / "validation"
    validation = Tuned(argparse.Namespace(**vars(chosen) | {"source": str(text), "store": store}))
    ways = (SYNCHRONOUS, SITES)
    found = {name: {rate: validation.loss(name, rate, 1) for rate in chosen.rates} for name in ways}
    best = {name: min(losses, key=losses.__getitem__) for name, losses in found.items()}
    print(found, best, flush=True)
    by_seed: dict[int, dict[str, float]] = {}
    for seed in chosen.seeds:
        by_seed[seed] = {name: round(test.loss(name, rate, seed), 4) for name, rate in best.items()}
        print(seed, by_seed[seed], flush=True)
    more = [each[SITES] - each[SYNCHRONOUS] for each in by_seed.values()]
    numbers = {
        "params": test.model.num_params(),
        "aim": AIM,
        "steps": test.steps,
        "bytes": round(test.message(LINK), 5),
        "validation": {
            name: {f"{rate:g}": round(loss, 4) for rate, loss in each.items()} for name, each in found.items()
        },
        "chosen": best,
        "more": round(sum(more) / len(more), 4),
        "interval": interval(more),
        "by_seed": by_seed,
    }
    keep("outer_tuned", numbers, is_trial=test.tiny, made_by=test.made_by | validation.made_by)


if __name__ == "__main__":
    main()
