"""Try random products: each in one process of float64 (or of its own precision) and in a gang.
`python -m tests.parity.trials --seed 7 --seconds 120` or `--only 7/4/31`
"""

import argparse
import math
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from itertools import islice
from pathlib import Path

from safetensors.torch import load

from atelier.engine.config.error import AtelierError
from atelier.engine.config.role import Role
from atelier.engine.config.row_classes import RowClasses
from tests.engine.row_inputs import harbour
from tests.engine.trainings import TrainingSetup, tokens
from tests.forks import gang_errors
from tests.parity.products import Product, in_precision, product, products

SIZES = (2, 4, 2, 4, 8)  # ranks of one gang after the other
AT_ONCE = {2: 6, 4: 6, 8: 3}  # products that a gang trains, by ranks
SILENT_S = 300.0  # a gang that says nothing for so long hangs
BOUNDS = {"fp64": (1e-10, 1e-8), "fp32": (1e-5, None), "bf16": (1e-4, None)}  # of values, of weights
# a mean over a row or two, not over a hundred tokens: 1.6e-4 where bf16 was 2e-4 off float64, and the layout
# in float64 2e-15; of two classes that nearly tie rounding may choose either
MOST_ROUNDED = 4  # times the bound: what bf16 rounds may excuse
# of two experts whose scores tie in bf16 either may be chosen, and a token of 64 then has another loss: apart
# by 2.4e-3 where float32 is 1.8e-7 apart (346052/4/456); such a product is tried in float32 as well
ROUTED = 1e-2
FEW, ACCURACY = {"fp32": 1e-5, "bf16": 1e-3}, "objective/accuracy/"

NORM = "grad_norm"  # near a point where a norm layer sees almost nothing rounding grows a thousandfold a step
NORMS = 1e-7  # how far norms may be apart where losses still agree to 1e-14


@dataclass
class Trials:
    """What was tried: products by number of ranks, and what did not agree, by product."""

    tried: Counter[int] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)
    worst: dict[str, float] = field(default_factory=dict)

    def told(self) -> str:
        sizes = ", ".join(f"{number} on {ranks} ranks" for ranks, number in sorted(self.tried.items()))
        worst = ", ".join(f"{what} {value:.1e}" for what, value in sorted(self.worst.items()))
        return f"{sum(self.tried.values())} products ({sizes}), {len(self.failures)} wrong; largest: {worst}"


class Workbench:
    """The inputs of all products, and a folder for each. `program`: a module whose main trains in gangs; ''
    = that of tests/parity/gang.py.
    """

    def __init__(self, folder: Path, program: str = "") -> None:
        self.folder, self.words = folder, [program] if program else []
        self.inputs = {
            False: {"tokens": tokens(folder / "tokens")},
            True: harbour(folder / "harbour", sentinels=12),
        }
        self.num_gangs = 0
        self.again: list[Product] = []  # to be tried in another precision

    def setup(self, one: Product, name: str) -> TrainingSetup:
        folder = self.folder / one.name.replace("/", "-") / name
        folder.mkdir(parents=True, exist_ok=True)
        return TrainingSetup(folder, self.inputs[one.reads_library])

    def try_all(self, some: Sequence[Product], found: Trials) -> None:
        """Products of the same number of ranks. Those that end a gang are failures; another gang goes on."""
        left = [one for one in some if self._alone(one, found)]
        while left:
            self.num_gangs += 1
            place = self.folder / f"gang-{self.num_gangs}"
            place.mkdir()
            paths = [self._write(one) for one in left]
            words = [*self.words, *map(str, paths)]
            told = gang_errors("tests.parity.gang", place, left[0].layout.ranks, *words, timeout_s=SILENT_S)
            done = [one for one, path in zip(left, paths, strict=True) if (path.parent / "done").exists()]
            for one in done:
                self._compare(one, found)
            left = left[len(done) :]
            if told:  # perhaps after the last of them
                self._fail(left.pop(0) if left else done[-1], found, told)
        if self.again:
            again, self.again = self.again, []
            self.try_all(again, found)

    def _alone(self, one: Product, found: Trials) -> bool:
        """Train it in this process; false when that fails."""
        found.tried[one.layout.ranks] += 1
        setup = self.setup(one, "alone")
        try:
            with redirect_stdout(StringIO()):
                setup.train(setup.training(one.roles, one.train))
        except Exception:  # whatever it is, it is a failure of the product, told whole; the others go on
            self._fail(one, found, f"alone: {traceback.format_exc()[-3000:]}")
            return False
        return True

    def _write(self, one: Product) -> Path:
        setup = self.setup(one, "gang")
        for name, layout in (("run", one.layout), ("then", one.then)):
            if layout is not None:
                run = setup.run_file(setup.training(one.roles, one.train), layout=layout)
                (setup.folder / f"{name}.json").write_text(run.model_dump_json(by_alias=True))
        return setup.folder / "run.json"

    def _compare(self, one: Product, found: Trials) -> None:
        alone, gang = self.setup(one, "alone"), self.setup(one, "gang")
        try:
            for role, spec in one.roles.items():
                for what, where, value, most in distances(alone, gang, role, spec, one.train.precision):
                    key = f"{one.train.precision} {what}"
                    found.worst[key] = max(found.worst.get(key, 0.0), value)
                    if not value <= most and one.train.precision == "bf16":
                        most = max(most, min(2 * self._rounding(one, role, where), MOST_ROUNDED * most))
                    if most < value <= ROUTED and one.train.precision == "bf16" and chooses_experts(one):
                        self.again.append(in_precision(one, "fp32"))
                        return
                    if not value <= most:
                        raise AssertionError(f"{role}: {what} are {value:.3g} apart ({where})")
        except Exception as error:  # the others go on
            is_apart = isinstance(error, AssertionError)
            self._fail(one, found, str(error) if is_apart else traceback.format_exc()[-3000:])

    def _rounding(self, one: Product, role: str, metric: str) -> float:
        """How far one process in bf16 is from itself in float64, in the step in which it is farthest: each of
        two layouts may round as much, as a loss of 64 tokens did that was 2.0e-4 apart, 1.5e-4 from float64,
        and 2e-15 apart in float64 (398187/2/716).
        """
        exact = self.setup(one, "float64")
        with redirect_stdout(StringIO()):
            exact.train(exact.training(one.roles, one.train.model_copy(update={"precision": "fp64"})))
        curves = zip(self.setup(one, "alone").curve(role), exact.curve(role), strict=True)
        both = [(mine["values"], true["values"]) for mine, true in curves]
        return max(abs(m[metric] - t[metric]) for m, t in both if metric in m and metric in t)

    def _fail(self, one: Product, found: Trials, told: str) -> None:
        found.failures[one.name] = told
        print(f"{one.name}: {told}\n{described(one)}", flush=True)


def chooses_experts(one: Product) -> bool:
    """Whether scores, which rounding moves, choose experts in any of its models."""
    experts = [role.model.experts for role in one.roles.values() if getattr(role.model, "num_experts", 1) > 1]
    return any(each.router.learns for each in experts)


def described(one: Product) -> str:
    roles = [f"  {name}: {role.as_identity()} end {role.end}" for name, role in one.roles.items()]
    layouts = [str(each.model_dump(exclude_defaults=True)) for each in (one.layout, one.then) if each]
    return "\n".join(
        [*roles, f"  {one.train.model_dump(exclude_defaults=True)}", f"  {' then '.join(layouts)}"]
    )


def distances(
    alone: TrainingSetup, gang: TrainingSetup, role: str, spec: Role, precision: str
) -> Iterator[tuple[str, str, float, float]]:
    """What is compared of a role, where it is farthest apart, how far, how far it may be: in float64 all
    values of all steps and the weights, in less the losses of its first step from equal weights: what a later
    one reads of its teacher, which has moved since, is left out.
    """
    most, weights = BOUNDS[precision]
    mine, theirs = alone.curve(role), gang.curve(role)
    assert [(line["step"], line["tokens"]) for line in mine] == [
        (line["step"], line["tokens"]) for line in theirs
    ]
    pairs = {
        line["step"]: (line["values"], other["values"]) for line, other in zip(mine, theirs, strict=True)
    }
    assert all(a.keys() == b.keys() for a, b in pairs.values()), f"{role}: other metrics"
    if precision != "fp64":
        first, other = next(iter(pairs.values()))
        taught = {key for key, each in spec.objective.items() if type(each).needs_teacher and spec.start}
        names = [name for name in first if name == "loss" or name.startswith("objective/")]
        names = [name for name in names if name.removeprefix("objective/") not in taught]
        few = {f"objective/{key}" for key, each in spec.objective.items() if isinstance(each, RowClasses)}
        names = [name for name in names if not (precision == "bf16" and name.startswith(ACCURACY))]
        for what, own, room in (
            ("losses", {*names} - few, most),
            ("losses of rows", {*names} & few, FEW[precision]),
        ):
            apart = farthest((name, first[name] - other[name]) for name in sorted(own))
            yield f"{what} of the first step", *apart, room
        return
    values = [(name, f"{name} at {step}", a[name] - b[name]) for step, (a, b) in pairs.items() for name in a]
    yield "losses", *farthest((at, value) for name, at, value in values if name != NORM), most
    yield "gradient norms", *farthest((at, value) for name, at, value in values if name == NORM), NORMS
    here, there = load(alone.weights(role)), load(gang.weights(role))
    assert here.keys() == there.keys(), f"{role}: other weights"
    yield "weights", *farthest((n, (here[n] - there[n]).abs().max().item()) for n in here), weights or 0.0


def farthest(differences: Iterable[tuple[str, float]]) -> tuple[str, float]:
    """The name of the largest difference, and how large it is; a NaN is larger than all."""
    found = [(abs(value) if math.isfinite(value) else math.inf, name) for name, value in differences]
    value, name = max(found, default=(0.0, ""))
    return name, value


def try_for(
    seconds: float, seed: int, folder: Path, sizes: Sequence[int] = SIZES, *, until_wrong: bool = False
) -> Trials:
    """Products of this seed until the time is over, or until one is wrong; what began then is ended."""
    bench, found, until = Workbench(folder), Trials(), time.monotonic() + seconds
    drawn = {ranks: products(seed, ranks) for ranks in sizes}
    while True:
        for ranks in sizes:
            bench.try_all(list(islice(drawn[ranks], AT_ONCE[ranks])), found)
            print(f"{max(0.0, until - time.monotonic()):.0f} s left: {found.told()}", flush=True)
            if time.monotonic() > until or (until_wrong and found.failures):
                return found


def try_some(some: Sequence[Product], folder: Path, program: str = "") -> Trials:
    """These products, all of the same number of ranks."""
    found = Trials()
    Workbench(folder, program).try_all(some, found)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--only", default="", help="one product again, by the name that a run printed")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            if asked.only:
                one = product(asked.only)
                found = try_some([one] if one else [], Path(folder))
            else:
                print(f"seed {asked.seed}", flush=True)
                found = try_for(asked.seconds, asked.seed, Path(folder))
        except AtelierError as error:
            print(error, file=sys.stderr)
            return 2
    print(found.told())
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
