"""What a training reads, without its models: streams, phases, assignment, seed and sizes. It determines every
sample. Torch-free.

A trajectory has its data plan in a file; for older ones it follows from their identity. Identity has shares
of sum 1 instead of the weights, which can round to another number of samples in a block.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, cast

import numpy as np
from pydantic import Field, TypeAdapter

from atelier.engine.config.base import Json, Spec, meaning_of, parse
from atelier.engine.config.error import DataError
from atelier.engine.config.mixture import (
    EXAMPLES,
    MIXTURE,
    ROWS,
    WINDOWS,
    Assignment,
    SourceShares,
    Stream,
    in_order,
    kinds_of_rows,
    streams,
)
from atelier.engine.config.own_code import KEY, code_of, files_in
from atelier.engine.config.registry import Objective, ObjectiveSpec
from atelier.engine.config.train import Progressive, Train


class EqualSteps(NamedTuple):
    """Steps first <= step < last of one size: their first sample and the one after the last, tokens of a row
    and rows of a step.
    """

    first: int
    last: int
    begin: int
    end: int
    sequence: int
    batch: int


class DataPlan(Spec):
    streams: tuple[Stream, ...] = Field(min_length=1, description="in the order of mixture.in_order")
    phases: tuple[int, ...] = Field(default=(), description="first step of each phase after the first")
    assignment: Assignment = "blocks"
    seed: int
    global_batch: int = Field(ge=1)
    sequence: int = Field(ge=1)
    progressive: Progressive = Progressive()
    last: int = Field(default=0, ge=0, description="samples of the training; 0 = unknown")

    @staticmethod
    def of(
        train: Train, found: Iterable[Stream], phases: tuple[int, ...], assignment: Assignment
    ) -> "DataPlan":
        """The plan of a training with these settings."""
        return DataPlan(
            streams=in_order(found),
            phases=phases,
            assignment=assignment,
            seed=train.seed,
            global_batch=train.global_batch,
            sequence=train.sequence,
            progressive=train.progressive,
            last=train.progressive.samples_before(train.num_steps, train.global_batch),
        )

    def samples_before(self, step: int) -> int:
        """Samples of all steps before `step`."""
        return self.progressive.samples_before(step, self.global_batch)

    def runs(self, start: int, end: int) -> list[EqualSteps]:
        """The steps start <= step < end in runs of one size."""
        if start >= end:
            return []
        firsts = [s for s in self.progressive.first_steps(self.global_batch) if start < s < end]
        return [
            EqualSteps(
                first,
                last,
                self.samples_before(first),
                self.samples_before(last),
                self.progressive.sequence_at(first, self.sequence),
                self.progressive.batch_at(first, self.global_batch),
            )
            for first, last in zip([start, *firsts], [*firsts, end], strict=True)
        ]

    def later(self) -> list[tuple[int, list[float]]]:
        """First sample and weights of each later phase."""
        return [
            (self.samples_before(step), [stream.later[number] for stream in self.streams])
            for number, step in enumerate(self.phases)
        ]


def steps_of(run: EqualSteps, samples: np.ndarray) -> np.ndarray:
    """The step of each sample of a run."""
    return run.first + (samples - run.begin) // run.batch


def left_out_of(summary: Mapping[str, Json], start: int, end: int) -> list[int]:
    """The steps start <= step < end that a model's rollbacks passed over, from its summary."""
    bad, most = summary.get("rolled_back"), summary.get("pass_over")
    if not isinstance(bad, list) or not isinstance(most, int):
        return []
    steps = {step - 1 - n for step in bad if isinstance(step, int) for n in range(most)}
    return sorted(step for step in steps if start <= step < end)


def plan_from(
    identity: Mapping[str, Json], parents: Mapping[str, str], objectives: Json, *, end: int, place: str
) -> DataPlan:
    """The plan that a trajectory's identity and parents tell. `objectives`: of the identity of the trajectory
    whose objectives define the rows: its own, or that of the teacher that it learns from in one training.
    `end`: a step at or after the last that is asked for. Raises DataError if they do not tell it, ConfigError
    for kinds or values that this code does not know.
    """
    common = {
        "seed": identity["seed"],
        "global_batch": identity["global_batch"],
        "sequence": identity["sequence"],
        "progressive": meaning_of(Progressive, identity.get("progressive", {}), f"{place}: progressive"),
    }
    if "num_labels" in identity and "labels" in parents:
        labelled = Stream.model_validate(
            {"input": "labels", "kind": EXAMPLES, "num_examples": identity["num_labels"]}
            | {"draw": identity.get("draw", 0)}
        )
        return _ending(parse(DataPlan, {"streams": (labelled,), **common}, place), end)
    specs = kinds_of_rows(_objectives(objectives, place))
    later = _later(identity.get("phases", []), place)
    weights = identity.get("weights") or dict.fromkeys(_sources(parents, specs.values()), 1.0)
    if not isinstance(weights, Mapping) or not weights or ("weights" not in identity and len(weights) > 1):
        raise DataError(f"{place}: its identity does not tell the shares of {', '.join(parents)}")
    shares = {name: _number(value, place) for name, value in weights.items()}
    for phase in later:  # a phase names the sources that it reads; others rest
        shares |= {name: 0.0 for name in phase.weights if name not in shares}
    later = [
        SourceShares(begin=each.begin, weights=dict.fromkeys(shares, 0.0) | each.weights) for each in later
    ]
    caps = identity.get("epochs", {})
    epochs = (
        {name: _number(value, place) for name, value in caps.items()} if isinstance(caps, Mapping) else {}
    )
    plan = {
        "streams": streams(specs, shares, later, epochs),
        "phases": tuple(each.begin for each in later),
        "assignment": identity.get("assignment", "exact" if epochs else "blocks"),
    }
    return _ending(parse(DataPlan, {**plan, **common}, place), end)


def _ending(plan: DataPlan, end: int) -> DataPlan:
    return plan.model_copy(update={"last": plan.samples_before(end)})


def check_versions(identity: Mapping[str, Json], objectives: Json, place: str) -> None:
    """Raise DataError if this code draws or makes the samples of such a trajectory in another way than the
    code that trained it.
    """
    mixture, rows = identity.get("mixture"), identity.get("rows")
    if mixture is not None and mixture != {"version": MIXTURE}:
        raise DataError(f"{place}: its mixture is {mixture}, this code draws version {MIXTURE}")
    is_labelled = "num_labels" in identity
    specs = {} if is_labelled else _objectives(objectives, place)
    read = {EXAMPLES} if is_labelled else set(kinds_of_rows(specs)) or {WINDOWS}
    now = {kind: ROWS[kind] for kind in sorted(read) if ROWS.get(kind, 1) != 1}
    if (rows or {}) != now:
        raise DataError(f"{place}: its rows have versions {rows or 1}, those of this code {now or 1}")
    is_mixed = isinstance(weights := identity.get("weights"), Mapping) and len(weights) > 1
    if mixture is None and (is_mixed or len(read) > 1):
        raise DataError(f"{place}: its mixture is of version 1, this code draws version {MIXTURE}")


def _objectives(found: Json, place: str) -> dict[str, ObjectiveSpec]:
    if not isinstance(found, Mapping):
        raise DataError(f"{place}: its identity names no objectives")
    result: dict[str, ObjectiveSpec] = {}
    for key, value in found.items():
        fields = dict(value) if isinstance(value, Mapping) else {}
        version, code = fields.pop("version", 1), fields.pop("code", {})
        kind = type(cast(ObjectiveSpec, TypeAdapter(Objective).validate_python({"kind": fields.get("kind")})))
        spec = meaning_of(kind, fields, f"{place}: objective.{key}")
        if version != spec.version:
            raise DataError(
                f"{place}: objective.{key} has version {version} of {spec.kind}, this code {spec.version}"
            )
        if code != code_of(kind):
            raise DataError(
                f"{place}: objective.{key} is of other code of kind {spec.kind}"
                f" ({files_in({KEY: code})}); take that code back, or train again"
            )
        result[key] = spec
    return result


def _sources(parents: Mapping[str, str], specs: Iterable[ObjectiveSpec]) -> list[str]:
    kinds = {type(spec).source for spec in specs} or {"tokens"}
    pairs = [key.partition(".") for key in parents]
    return sorted({source for kind, dot, source in pairs if dot and kind in kinds})


def _later(phases: Json, place: str) -> list[SourceShares]:
    found: list[SourceShares] = []
    for each in phases if isinstance(phases, list) else []:
        if not (isinstance(each, list) and len(each) == 2):
            raise DataError(f"{place}: a phase is not a step and shares")
        found.append(parse(SourceShares, {"begin": each[0], "weights": each[1]}, f"{place}: phases"))
    return found


def _number(value: Json, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{place}: {value!r} is not a share")
    return float(value)
