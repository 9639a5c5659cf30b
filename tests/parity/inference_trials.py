"""Try random models in random layouts of inference, beside one process: scores of labels, greedy and drawn
texts, class logits. `python -m tests.parity.inference_trials --seed 7 --seconds 120` or `--only 7/4/31`
"""

import argparse
import json
import math
import random
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch

from atelier.engine.config.error import ConfigError
from atelier.engine.config.model.encdec import EncDec
from atelier.engine.config.model.ernie import Ernie
from atelier.engine.config.objective.distance import Distance
from atelier.engine.config.parallel import InferenceLayout
from atelier.engine.config.registry import ModelSpec
from atelier.engine.parallel.gang import Gang
from atelier.engine.plan.layout_checks import check_inference
from tests.forks import gang_errors
from tests.parity.drawn import split
from tests.parity.inference import DTYPES, NUM_IDS, Said, ask
from tests.parity.products import MODELS
from tests.parity.trials import SILENT_S, Trials

SIZES = (2, 4)  # ranks of one gang after the other
AXES = ("replicate", "shard", "expert", "tensor", "pipeline")
AT_ONCE, LAYOUTS = 4, 3  # models of a gang, and layouts that each of them has
HEADS = {"natural": 2, "distance": Distance().num_classes}
BOUNDS = {"fp64": 1e-10, "fp32": 1e-4}  # nats, and logits of class heads


class Asking(NamedTuple):
    """Models, and the layouts of so many ranks in which each of them is asked."""

    name: str
    models: dict[str, ModelSpec]
    layouts: dict[str, InferenceLayout]
    precision: str

    def has(self, model: str, layout: str) -> bool:
        """Whether the plan lets the model have the layout."""
        try:
            check_inference(self.layouts[layout], self.models[model], place="layout")
        except ConfigError:
            return False
        return True

    def case(self) -> dict[str, Any]:
        return {
            "models": {name: spec.arguments() for name, spec in self.models.items()},
            "layouts": {name: layout.model_dump(mode="json") for name, layout in self.layouts.items()},
            "precision": self.precision,
            "refused": {
                model: [name for name in self.layouts if not self.has(model, name)] for model in self.models
            },
        }


def drawn(name: str) -> Asking:
    """The draw of this name, seed/ranks/number."""
    draw, ranks = random.Random(name), int(name.split("/")[1])
    models = {}
    while len(models) < AT_ONCE:
        kind = draw.choice(("gpt", "gpt", "gpt", "ernie", "encdec"))
        try:
            spec = MODELS[kind](draw, NUM_IDS, {}, num_layers=draw.choice((2, 4)))
            more: dict[str, Any] = {"init_std": 1.0 if isinstance(spec, EncDec) else 0.3}  # unlike tokens
            if isinstance(spec, Ernie):
                more |= {"classes": HEADS, "pairs": draw.choice(({}, {"distance": 8})), "prompts": 4}
            models[f"{kind} {len(models)}"] = type(spec).model_validate(spec.arguments() | more)
        except (ConfigError, ValueError):
            continue
    layouts = {}
    for _ in range(LAYOUTS):
        sizes = {axis: size for axis, size in split(draw, ranks, AXES).items() if size > 1}
        layouts[" x ".join(f"{axis} {size}" for axis, size in sizes.items())] = InferenceLayout(**sizes)
    return Asking(name, models, layouts, draw.choice(("fp64", "fp64", "fp64", "fp32")))


def askings(seed: int) -> Iterator[Asking]:
    for number in count():
        yield drawn(f"{seed}/{SIZES[number % len(SIZES)]}/{number}")


def try_one(one: Asking, folder: Path, found: Trials) -> None:
    """Ask the models in a gang and in this process."""
    place = folder / one.name.replace("/", "-")
    place.mkdir()
    case, ranks = one.case(), next(iter(one.layouts.values())).ranks
    (place / "case.json").write_text(json.dumps(case))
    told = gang_errors("tests.parity.inference", place, ranks, str(place / "case.json"), timeout_s=SILENT_S)
    if told:
        found.tried[ranks] += 1
        found.failures[one.name] = f"{case}\n{told}"
        return
    answers = json.loads((place / "answers.json").read_text())
    for name, spec in one.models.items():
        alone = ask(spec, InferenceLayout(), Gang(), DTYPES[one.precision])
        assert alone is not None  # it is the first rank
        for layout, said in answers[name].items():
            found.tried[ranks] += 1
            compare(f"{one.name} {name} {layout}", alone, said, one.precision, found)


def compare(name: str, alone: Said, said: Said, precision: str, found: Trials) -> None:
    """In float64 texts and best tokens are equal; numbers are as near as the precision's bound."""
    pairs = list(zip(numbers(alone), numbers(said), strict=True))
    far = max((abs(one - other) for one, other in pairs), default=0.0)
    far = far if all(math.isfinite(number) for pair in pairs for number in pair) else math.inf
    found.worst[precision] = max(found.worst.get(precision, 0.0), far)
    if not far <= BOUNDS[precision]:
        found.failures[name] = f"{far} apart"
    for key in ("greedy", "drawn") if precision == "fp64" else ():
        if alone[key] != said[key]:
            found.failures[name] = f"{key}: {alone[key]} alone, {said[key]} in the gang"


def numbers(said: Said) -> list[float]:
    nats = [nats for nats_BT, _ in said["scored"] for row in nats_BT for nats in row]
    return nats + [logit for row in said["classes"] for logit in row]


def try_for(seconds: float, seed: int, folder: Path, *, only: str = "") -> Trials:
    """Try draws for so long; each that fails is printed whole."""
    torch.set_num_threads(1)
    found, until = Trials(), time.monotonic() + seconds
    for one in [drawn(only)] if only else askings(seed):
        before = set(found.failures)
        try_one(one, folder, found)
        for name in set(found.failures) - before:
            print(f"{name}: {found.failures[name][-6000:]}", flush=True)
        if time.monotonic() > until:
            break
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="asked-") as folder:
        found = try_for(asked.seconds, asked.seed, Path(folder), only=asked.only)
    print(f"seed {asked.seed}: {found.told()}")
    return 1 if found.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
