"""Loss of training over two sites at a hundredth of the bytes, beside synchronous training, each of both with
its best learning rate and momentum of the matrices.

python benchmarks/outer_tuned.py --seeds 1 2 3 --steps 504 [--store DIR] [--tiny]     30 minutes, two cores

The trainings of benchmarks/outer_loss.py: its text, model, rows, codec (int2) and `every` (8). First the rate
is chosen, then the momentum, on a validation part: documents held out from those that the default text trains
on, with seed 1 and equally many steps. The losses are then those of the default text's held-out part, which
no choice has seen. `validation`: the loss by setting of each way. `more`: held-out nats a token above
`synchronous` from the same seed, with half of its 95 % interval; `as_before`: the same with the default
setting for both ways.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from machine import keep
from outer_loss import AIM, LONG_LR, OverSites, way
from parts import interval

RATES, MOMENTA = (0.005, 0.01, 0.02), (0.9, 0.95)  # of the matrices; the last ones are the defaults
DEFAULT = (RATES[-1], MOMENTA[-1])
EVERY = 8
LINK: dict[str, Any] = way("int2", EVERY)
SYNCHRONOUS, SITES = "synchronous", "average, int2, every 8"


class Tuned(OverSites):
    """Trainings by the learning rate of the matrices."""

    def loss(self, name: str, setting: tuple[float, float], seed: int) -> float:
        """The held-out loss of a way with this rate and momentum."""
        (rate, momentum), steps = setting, self.steps
        role = self.role(self.model, "m")
        role["optim"] |= {"lr": LONG_LR, "matrix_lr": rate}
        short = f"{'s' if name == SYNCHRONOUS else 'i'}-m{str(rate)[2:]}"
        if momentum != MOMENTA[-1]:
            role["optim"]["momentum"] = momentum
            short += f"-mom{momentum:.2f}".replace("0.", "")
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


def chosen_for(name: str, part: Tuned) -> tuple[dict[str, float], tuple[float, float]]:
    """The losses on the validation part by setting, and the best of these settings."""
    losses = {(rate, MOMENTA[-1]): part.loss(name, (rate, MOMENTA[-1]), 1) for rate in RATES}
    rate, _ = min(losses, key=losses.__getitem__)
    losses |= {(rate, momentum): part.loss(name, (rate, momentum), 1) for momentum in MOMENTA}
    shown = {
        f"rate {rate:g}, momentum {momentum:g}": round(loss, 4) for (rate, momentum), loss in losses.items()
    }
    return shown, min(losses, key=losses.__getitem__)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=504, help=f"of each training; a multiple of {EVERY}")
    parser.add_argument("--store", type=Path, default=Path("outer-tuned-store"))
    parser.add_argument("--tiny", action="store_true", help="some minutes: tries the script, shows nothing")
    chosen = parser.parse_args()
    chosen.threads, chosen.source, chosen.lr = 1, "", 0.0
    test = Tuned(chosen)
    part = argparse.Namespace(**vars(chosen))
    part.source, part.store = str(test.training_text()), chosen.store / "validation"
    validation = Tuned(part)
    ways = (SYNCHRONOUS, SITES)
    found = {name: chosen_for(name, validation) for name in ways}
    print(found, flush=True)
    by_seed: dict[int, dict[str, float]] = {}
    for seed in chosen.seeds:
        own = {name: test.loss(name, best, seed) for name, (_, best) in found.items()}
        default = {f"{name}, default": test.loss(name, DEFAULT, seed) for name in ways}
        by_seed[seed] = {name: round(loss, 4) for name, loss in (own | default).items()}
        print(seed, by_seed[seed], flush=True)

    def more(end: str) -> dict[str, Any]:
        above = [each[SITES + end] - each[SYNCHRONOUS + end] for each in by_seed.values()]
        return {"more": round(sum(above) / len(above), 4), "interval": interval(above)}

    numbers = {
        "params": test.model.num_params(),
        "aim": AIM,
        "steps": test.steps,
        "bytes": round(test.message(LINK), 5),
        "validation": {name: losses for name, (losses, _) in found.items()},
        "chosen": {name: {"rate": best[0], "momentum": best[1]} for name, (_, best) in found.items()},
        "tuned": more(""),
        "as_before": more(", default"),
        "by_seed": by_seed,
    }
    keep("outer_tuned", numbers, is_trial=test.tiny, made_by=test.made_by | validation.made_by)


if __name__ == "__main__":
    main()
