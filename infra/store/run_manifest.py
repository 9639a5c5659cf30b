"""Manifests of runs: `{root}/runs/<id>.json`. Plans compare with them, `atelier runs` lists them, and garbage
collection keeps the artifacts that they name (infra/store/gc.py). Each carries its own digest.
"""

from collections.abc import Iterable
from typing import Protocol

from pydantic import ConfigDict, Field

from atelier.engine.config.base import Json, JsonObject, Spec, canonical, flatten
from atelier.engine.config.document import MOST_BYTES, check_as, opened, sealed
from atelier.engine.config.error import DamageError, printable
from atelier.engine.config.record import LATEST, Record
from atelier.engine.io.storage import join, names, read_bytes, write_bytes
from atelier.infra.dag import Node, Product
from atelier.infra.store.lease import Holder

FOLDER = "runs"
ENDING = ".json"


class RecordStore(Protocol):
    """The used part of infra/store/store.py, which itself looks up names in manifests."""

    root: str

    def find(self, kind: str, fingerprint: str) -> Record | None:
        """The record of a finished artifact, or None."""
        ...


class Row(Spec):
    """A product that a run makes or reuses. `keeps` are the trajectories that it is trained in; `model`: the
    product's name, of whatever kind; `name`: the row's in a plan.
    """

    model_config = ConfigDict(extra="allow")

    fingerprint: str
    name: str = ""
    kind: str = ""
    key: str = ""
    task: str = ""
    identity: JsonObject = {}
    parents: dict[str, str] = {}
    keeps: tuple[str, ...] = ()
    model: str = ""


class RunManifest(Spec):
    """Schema of a run's manifest; other keys are allowed."""

    model_config = ConfigDict(extra="allow")

    id: str
    flow: str = ""
    command: str = ""
    overrides: tuple[str, ...] = ()
    sweep: str = ""
    rerun_of: str = Field(default="", description="id of the run that this one runs again, perhaps changed")
    config: JsonObject = {}
    started: float = Field(default=0.0, ge=0, le=LATEST)
    ended: float | None = Field(default=None, ge=0, le=LATEST)
    status: str = "running"
    holder: JsonObject | None = Field(default=None, description="`vars` of a Holder")
    tasks: tuple[Row, ...] = ()
    states: dict[str, str] = {}
    links: dict[str, str] = {}

    def model_post_init(self, context: None) -> None:
        if self.holder is not None:
            Holder.read(self.holder)


UNSEALED = frozenset(RunManifest.model_fields)  # keys of an older manifest without a digest


def write_manifest(store: RecordStore, manifest: RunManifest) -> None:
    document = manifest.model_dump(mode="json", exclude_unset=True)
    write_bytes(join(store.root, FOLDER, f"{manifest.id}{ENDING}"), sealed(document))


def manifests(store: RecordStore) -> list[RunManifest]:
    """All runs' manifests, oldest first, without damaged ones (`read_manifests`)."""
    found, _ = read_manifests(store)
    return found


def read_manifests(store: RecordStore) -> tuple[list[RunManifest], dict[str, DamageError]]:
    """All readable manifests, oldest first, and by run id the damage of the others."""
    found, damaged = [], {}
    for name in names(join(store.root, FOLDER)):
        if not name.endswith(ENDING):
            continue
        run = name.removesuffix(ENDING)
        try:
            found.append(read_manifest(store, run))
        except FileNotFoundError:
            continue
        except DamageError as damage:
            damaged[run] = damage
    return sorted(found, key=lambda manifest: manifest.started), damaged


def read_manifest(store: RecordStore, run: str) -> RunManifest:
    """The manifest of a run, by id. Raises DamageError, with the way out, when it cannot be read."""
    place = join(store.root, FOLDER, f"{run}{ENDING}")
    what = "a run's manifest"
    try:
        document = opened(read_bytes(place, MOST_BYTES), place, what, UNSEALED)
        manifest = check_as(RunManifest, document, place, what)
        if manifest.id != run:
            raise DamageError(f"{place}: is the manifest of run {printable(manifest.id)}, not of {run}")
    except DamageError as damage:
        raise DamageError(str(damage), f"`atelier gc --forget {run}` removes it") from None
    return manifest


def is_alive(manifest: RunManifest) -> bool | None:
    """Whether the run is active; None when its process is on another machine, so that it is unknown."""
    if manifest.status != "running":
        return False
    if manifest.holder is None:
        return None
    holder = Holder.read(manifest.holder)
    if holder.is_over():
        return False
    return True if holder.is_here() else None


def described(node: Node) -> list[Row]:
    """The node's products as rows of a manifest."""
    return [
        Row(
            name=row_name(node, key),
            key=key,
            task=node.task,
            kind=product.kind,
            fingerprint=product.fingerprint,
            identity=comparable(product),
            parents=parents_of(product),
            keeps=product.trajectories,
            model=product.name,
        )
        for key, product in node.products.items()
    ]


def measured(store: RecordStore, rows: Iterable[Row], metric: str) -> tuple[float, Record] | None:
    """Value of `metric` among the products in `rows`, and the record that has it. `<name>.<key>` is a key of
    the summary of the product with that name (model, role, task or kind), such as `student_a.eval_loss`;
    without a name, of the first product that has the key.
    """
    name, _, word = metric.rpartition(".")
    for row in rows:
        if name not in ("", row.key, row.model, row.name, row.kind):
            continue
        record = store.find(row.kind, row.fingerprint)
        found = record.summary.get(word) if record is not None else None
        if record is not None and isinstance(found, int | float):
            return float(found), record
    return None


def row_name(node: Node, key: str) -> str:
    return node.name if len(node.products) == 1 else f"{node.name}.{key}"


def comparable(product: Product) -> dict[str, Json]:
    """The product's identity by configuration key, with keys that a user would change. If several values
    follow from one key (a model's last step, the end of its trunk), they are a list.
    """
    found = _by_key(product)
    return {key: values[0] if len(values) == 1 else values for key, values in found.items()}


def given(product: Product) -> dict[str, Json]:
    """`comparable` with the given values only, without derived ones."""
    return {key: values[0] for key, values in _by_key(product).items()}


def _by_key(product: Product) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    for key, value in flatten({**product.identity, **product.detail}).items():
        first, _, rest = key.partition(".")
        place = product.origin.get(first, first)
        found.setdefault(f"{place}.{rest}" if rest else place, []).append(value)
    return found


def parents_of(product: Product) -> dict[str, str]:
    return {
        key: fp
        for key, fp in {**product.parents, **product.detail_parents}.items()
        if key not in ("trajectory", "trunk")
    }


def nearest_run(store: RecordStore, flow: str, config: JsonObject) -> RunManifest | None:
    """The finished run of the same flow with the fewest differing keys; on a tie the newest."""
    wanted = flatten(config)
    best, fewest = None, None
    for manifest in manifests(store):
        if manifest.flow != flow or manifest.status != "finished":
            continue
        theirs = flatten(manifest.config)
        differing = sum(
            1
            for key in wanted.keys() | theirs.keys()
            if canonical(wanted.get(key)) != canonical(theirs.get(key))
        )
        if fewest is None or differing <= fewest:
            best, fewest = manifest, differing
    return best
