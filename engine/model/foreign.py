"""Convert another family's checkpoint weights to ours and back, one at a time: names change, and matrices are
transposed, split and joined (engine/config/foreign/families.py). Numbers do not change.
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from atelier.engine.config.error import DataError
from atelier.engine.config.foreign.families import UNUSED, Family, Part, Said
from atelier.engine.config.foreign.weights import Stored, is_stack, matching
from atelier.engine.model.weights import StoredWeights, Weight


def adopted(stored: StoredWeights, family: Family, spec: Said, place: str) -> dict[str, Weight]:
    """The weights of `spec` by our names, each read when gathered.

    Raises DataError for a weight that is missing, unknown, of another shape or type, or tied but stored twice
    with different values; and, when gathered, for values that are not finite.
    """
    there = {name: Stored(entry.shape, entry.dtype) for name, entry in stored.entries().items()}
    matched = matching(there, family, spec)
    if matched.refused:
        raise DataError(f"{place}: {matched.refused[0]}")
    for name, other in matched.copies.items():
        if not torch.equal(stored[name], stored[other]):
            raise DataError(f"{place}: {name} is tied to {other} by config.json, but has other values")
    found: dict[str, Weight] = {}
    for ours, shape in spec.shapes().items():
        part, names = matched.found[ours]
        read = partial(_read, stored, names, part, place)
        found[ours] = Weight(shape, stored.place(names[0]).dtype, read)
    return found


def _read(stored: StoredWeights, names: list[str], part: Part, place: str) -> Tensor:
    """Read one weight of ours."""
    pieces = []
    for name in names:
        whole = stored[name]
        if not whole.sum().isfinite() and not whole.isfinite().all():  # the first test is 50 times as fast
            raise DataError(f"{place}: {name} has values that are not finite")
        whole = whole.T if part.turned and whole.dim() == 2 else whole
        pieces.append(whole.chunk(part.count)[part.part])
    return torch.stack(pieces) if is_stack(part) else pieces[0].contiguous()


def exported(weights: Mapping[str, Weight], family: Family, spec: Said) -> dict[str, Weight]:
    """The weights by the family's names. The family must be able to express the model (`Family.config`)."""
    parts: dict[str, dict[int, tuple[Part, str, int]]] = {}  # foreign name -> number -> (part, ours, expert)
    for ours, shape in spec.shapes().items():
        if ours.endswith(UNUSED):
            continue
        part = family.foreign(ours, spec)
        if part is None:
            raise DataError(f"models of the family {family.name} have no {ours}")
        for e in range(shape[0]) if is_stack(part) else (-1,):
            parts.setdefault(part.name.replace("{e}", str(e)), {})[part.part] = (part, ours, e)
    found: dict[str, Weight] = {}
    for name, mine in parts.items():
        part, ours, e = mine[0]
        shape = weights[ours].shape[1:] if e >= 0 else weights[ours].shape
        shape = (
            (sum(weights[one].shape[0] for _, one, _ in mine.values()), *shape[1:])
            if part.count > 1
            else shape
        )
        shape = shape[::-1] if part.turned else shape
        ordered = [mine[number] for number in sorted(mine)]
        found[name] = Weight(shape, weights[ours].dtype, partial(_written, weights, ordered))
    return found


def _written(weights: Mapping[str, Weight], parts: list[tuple[Part, str, int]]) -> Tensor | None:
    """One weight of the family; None on ranks that only send."""
    pieces: list[Tensor] = []
    for _, ours, e in parts:
        whole = weights[ours].gather()
        if whole is None:
            continue
        pieces.append(whole[e] if e >= 0 else whole)
    if not pieces:
        return None
    joined = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
    return joined.T.contiguous() if parts[0][0].turned and joined.dim() == 2 else joined.contiguous()
