"""Origin of a model's weights: the share of its parameters that comes from each ancestor, and how. A weight
made of rows of several origins is split among them.
"""

from collections import defaultdict
from collections.abc import Mapping
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from atelier.engine.config.base import Spec, parse
from atelier.engine.config.conversions import ANCESTRY, COPIED, FIRST
from atelier.engine.config.document import section_of
from atelier.engine.config.error import DamageError
from atelier.engine.config.record import Record
from atelier.engine.config.registry import model_of
from atelier.engine.io.artifact import ArtifactInput, open_input
from atelier.infra.store.store import Store

CONFIG = "config.json"
SEED, ADOPTED, TUNED = "from its seed", "adopted", "new in its training"


class Origin(NamedTuple):
    """The model in which parameters originate, and how: from its seed, adopted, or by a conversion."""

    fingerprint: str
    name: str
    how: str


class WeightShare(NamedTuple):
    """A row of `atelier lineage --weights`."""

    origin: Origin
    share: float
    parameters: float


class WeightPieces(Spec):
    """A part of one weight: source, share, how, and the parent's role if it is not the first."""

    pieces: tuple[tuple[str, float, str] | tuple[str, float, str, str], ...]


Shares = Mapping[Origin, float]  # of one weight; they sum to 1


def weight_shares(store: Store, word: str) -> list[WeightShare]:
    """Shares of the model `word`, largest first; sum 1. Raises AtelierError if there is no such model."""
    record = store.resolve(word, "model")
    with TemporaryDirectory() as scratch:
        found = _Ancestry(store, Path(scratch))
        total: dict[Origin, float] = defaultdict(float)
        sizes = found.sizes(record)
        for weight, shares in found.of(record).items():
            for origin, share in shares.items():
                total[origin] += share * sizes[weight]
    whole = sum(sizes.values())
    rows = [WeightShare(origin, number / whole, number) for origin, number in total.items()]
    return sorted(rows, key=lambda row: (-row.share, row.origin))


class _Ancestry:
    def __init__(self, store: Store, scratch: Path) -> None:
        self.store, self.scratch = store, scratch

    def of(self, record: Record) -> dict[str, Shares]:
        """Shares by weight."""
        parents = record.parents
        if "model" in parents:
            roles = [role for role in parents if role == FIRST or role.startswith(f"{FIRST}.")]
            return self._converted(record, {role: self._before(record, role) for role in roles})
        if "init" in parents:
            before = self.of(self._before(record, "init"))
            return {name: before.get(name, _all(record, TUNED)) for name in self.sizes(record)}
        how = ADOPTED if record.summary.get("source") else SEED
        return dict.fromkeys(self.sizes(record), _all(record, how))

    def _converted(self, record: Record, parents: Mapping[str, Record]) -> dict[str, Shares]:
        source, known = self._open(record), {role: self.of(parent) for role, parent in parents.items()}
        if ANCESTRY not in source.names():  # after merging an adapter every matrix counts as its base's
            return {name: known[FIRST].get(name, _all(record, TUNED)) for name in self.sizes(record)}
        found: dict[str, Shares] = {}
        for name, pieces in source.json(ANCESTRY, self.scratch).items():
            shares: dict[Origin, float] = defaultdict(float)
            place = f"{source.url}/{ANCESTRY}"
            for weight, share, how, *role in parse(WeightPieces, {"pieces": pieces}, place).pieces:
                if not weight:
                    shares[Origin(record.fingerprint, record.name, how)] += share
                    continue
                for origin, part in known[role[0] if role else FIRST][weight].items():
                    via = origin if how == COPIED else origin._replace(how=f"{origin.how}, {how}")
                    shares[via] += share * part
            found[name] = dict(shares)
        return found

    def sizes(self, record: Record) -> dict[str, int]:
        """Number of parameters of each weight."""
        source = self._open(record)
        document = source.json(CONFIG, self.scratch)
        spec = model_of(section_of(document.get("model", document)), f"{source.url}/{CONFIG}")
        return {name: prod(shape) for name, shape in spec.shapes().items()}

    def _open(self, record: Record) -> ArtifactInput:
        return open_input(self.store.address("model", record.fingerprint))

    def _before(self, record: Record, role: str) -> Record:
        found = self.store.find("model", record.parents[role])
        if found is None:
            raise DamageError(f"{record.name}: its {role} {record.parents[role][:16]} is gone")
        return found


def _all(record: Record, how: str) -> Shares:
    return {Origin(record.fingerprint, record.name, how): 1.0}
