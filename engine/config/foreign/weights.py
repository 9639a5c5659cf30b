"""Match a foreign checkpoint's weights to ours by names, shapes and types alone. Torch-free."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from atelier.engine.config.error import nearest
from atelier.engine.config.foreign.families import Family, Part, Said

HEAD, EMBEDDING = "head.weight", "embed.weight"
TYPES = ("F16", "BF16", "F32", "F64")  # names in the file format


class Stored(NamedTuple):
    """A stored weight; `dtype` as named in the file format."""

    shape: tuple[int, ...]
    dtype: str


class Match(NamedTuple):
    """`names`: the stored weights that make up ours; for experts, one each."""

    part: Part
    names: list[str]


class Matching(NamedTuple):
    """Our weights by name; stored weights that must equal another, named one; all refusals."""

    found: dict[str, Match]
    copies: dict[str, str]
    refused: list[str]


def is_stack(part: Part) -> bool:
    return "{e}" in part.name


def matching(stored: Mapping[str, Stored], family: Family, spec: Said) -> Matching:
    """Every weight of `spec` by our name. Refused: weights that are missing, have another shape or type, or
    are not read.
    """
    bare = family.optional if not any(name.startswith(family.optional) for name in stored) else ""
    found, refused = dict[str, Match](), list[str]()
    for ours, shape in spec.shapes().items():
        part = family.foreign(ours, spec)
        if part is None:
            refused.append(f"models of the family {family.name} have no {ours}")
            continue
        part = part._replace(name=part.name.removeprefix(bare))
        if is_stack(part) and shape[0] > len(stored):
            refused.append(
                f"{part.name} is missing: {shape[0]} experts, but only {len(stored)} weights are stored"
            )
            continue
        count = range(shape[0]) if is_stack(part) else range(1)
        names = [part.name.replace("{e}", str(number)) for number in count]
        inner = shape[1:] if is_stack(part) else shape
        wanted = (inner[0] * part.count, *inner[1:])
        found[ours] = Match(part, names)
        refused += _faults(stored, names, wanted[::-1] if part.turned else wanted)
    used = {name for each in found.values() for name in each.names}
    copies, strange = _rest(stored, family, spec, bare, used)
    return Matching(found, copies, [*dict.fromkeys(refused), *strange])


def _faults(stored: Mapping[str, Stored], names: list[str], wanted: tuple[int, ...]) -> list[str]:
    refused = []
    for name in names:
        if name not in stored:
            near = nearest(name, stored)
            refused.append(f"{name} is missing" + (f"; there is {near}" if near else ""))
        elif stored[name].shape != wanted:
            refused.append(f"{name} is {stored[name].shape}; config.json implies {wanted}")
        elif stored[name].dtype not in TYPES:
            kinds = "weights are float16, bfloat16 or wider"
            refused.append(f"{name} is of type {stored[name].dtype}; {kinds}")
    if len(types := {stored[name].dtype for name in names if name in stored}) > 1:
        refused.append(f"{names[0]} and its other experts have different types: {', '.join(sorted(types))}")
    return refused


def _rest(
    stored: Mapping[str, Stored], family: Family, spec: Said, bare: str, used: set[str]
) -> tuple[dict[str, str], list[str]]:
    """The stored weights that no part of the model reads: copies of the embedding by name, and refusals of
    the others.
    """
    tied = family.foreign(HEAD, spec) if spec.tied else None
    known = {name.removeprefix(bare) for name in (*family.copies, *([tied.name] if tied is not None else []))}
    embedding = family.foreign(EMBEDDING, spec)
    copies, strange = dict[str, str](), list[str]()
    for name in stored:
        if name in used or any(fnmatchcase(name, each.removeprefix(bare)) for each in family.extra):
            continue
        if embedding is not None and name in known:
            copies[name] = embedding.name.removeprefix(bare)
        else:
            strange.append(f"{name}: unknown weight of the family {family.name}")
    return copies, strange
