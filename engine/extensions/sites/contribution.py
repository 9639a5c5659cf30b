"""Write and read a site's contribution to an outer step (encoded.py). The ranks of a site write their pieces
of it; every rank of another site reads all of it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

from atelier.engine.config.error import DataError
from atelier.engine.config.seed import seed_of
from atelier.engine.extensions.sites.clip import norm, square_sums
from atelier.engine.extensions.sites.codecs import decode, encode
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.encoded import Layout, parts_of
from atelier.engine.extensions.sites.messages import Contribution
from atelier.engine.io.tensorfile import TensorEntry
from atelier.engine.model.weights import StoredWeights, Weight, entries_of, type_of


def check_form(head: Contribution, place: str, *, codecs: Sequence[Codec], fragment: int, code: str) -> None:
    """Raise DataError for a contribution with another codec or fragment than the round's, or computed by
    other code than that of the digest `code`; '' = any.
    """
    head.check_code(code, place)
    if head.codec not in codecs:
        known = ", ".join(codec.text for codec in codecs)
        raise DataError(f"{place}: has codec {head.codec.text}, and the training's are {known}")
    if head.fragment != fragment:
        raise DataError(f"{place}: is of fragment {head.fragment}, and the round's is {fragment}")


def layout_of(weights: Mapping[str, Weight]) -> Layout:
    """The layout in the order of names, which does not depend on a pipeline."""
    return {entry.name: entry for entry in sorted(entries_of(weights))}


def encoded(weights: Mapping[str, Weight], codec: Codec, number: int) -> dict[str, Weight]:
    """The tensors of a message of round `number`, in their order. Reading one gathers its weight: a
    collective, one weight at a time, in this order on all ranks.
    """
    found: dict[str, Weight] = {}
    for entry in layout_of(weights).values():
        seed = seed_of(number, entry.name)
        found |= _EncodedWeight(codec, entry, weights[entry.name], seed).parts()
    return found


class _EncodedWeight:
    """One weight, which is gathered and encoded when its first part is read; its other parts come next."""

    def __init__(self, codec: Codec, entry: TensorEntry, source: Weight, seed: int) -> None:
        self._codec, self._entry, self._source, self._seed = codec, entry, source, seed
        self._ready: list[Tensor] = []

    def parts(self) -> dict[str, Weight]:
        found = parts_of(self._codec, self._entry)
        return {
            part.name: Weight(part.shape, type_of(part), partial(self._take, is_first=place == 0))
            for place, part in enumerate(found)
        }

    def _take(self, *, is_first: bool) -> Tensor | None:
        if is_first:
            whole = self._source.gather()
            self._ready = [] if whole is None else encode(self._codec, self._entry, whole, self._seed)
        return self._ready.pop(0) if self._ready else None


class StoredContribution:
    """A site's contribution in a verified file; `place` names it in errors."""

    def __init__(self, path: Path, codec: Codec, layout: Layout, place: str) -> None:
        """Raises DataError unless the file has exactly the tensors that the codec makes of this layout."""
        self._held, self._codec, self._layout, self._place = StoredWeights(path), codec, layout, place
        expected = {part.name: part for entry in layout.values() for part in parts_of(codec, entry)}
        for name, part in expected.items():
            if name not in self._held or self._held.place(name).shape != part.shape:
                raise DataError(f"{place}: has no {name} of shape {part.shape}")
            if self._held.place(name).dtype != type_of(part):
                raise DataError(f"{place}: {name} is {self._held.place(name).dtype}, not {type_of(part)}")
        if more := sorted(set(self._held) - set(expected)):
            raise DataError(f"{place}: has {more[0]}, which does not belong to it")

    def whole(self, name: str) -> Tensor:
        """The decoded contribution of a weight. Raises DataError if it is invalid."""
        entry = self._layout[name]
        parts = [self._held[part.name] for part in parts_of(self._codec, entry)]
        return decode(self._codec, entry, parts, f"{self._place}: {name}")

    def check(self, names: Iterable[str], most: float = math.inf) -> None:
        """Raise DataError unless these weights can all be decoded and the norm of all is at most `most`."""
        if math.isinf(most):
            for name in names:
                self.whole(name)
            return
        found = norm(part for name in self._layout for part in square_sums(self.whole(name)))
        if found > most:
            raise DataError(f"{self._place}: has the norm {found:.4g}, and at most {most:.4g} is accepted")
