"""A cache of MLflow's ids of artifacts and trajectories. Does not import MLflow."""

import json
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import NotRequired, TypedDict, cast

from atelier.engine.config.base import Json
from atelier.engine.config.error import DamageError
from atelier.engine.io.storage import join, read_object, read_text, write_bytes
from atelier.infra.store.conditional_create import create_exclusive
from atelier.infra.store.local_folders import local_folder
from atelier.infra.store.store import SHORT, Store


class PageAddress(TypedDict):
    """A page of a run in MLflow, with its title."""

    name: str
    experiment: str
    run: str


class FlowAddress(TypedDict):
    """A flow run's MLflow run, and links to other pages about it."""

    id: str
    experiment: str
    run: str
    links: dict[str, str]


class KnownIds(TypedDict):
    """MLflow's ids of a model; for data and trajectories only experiment and run."""

    experiment: str
    run: str
    model: str
    step: int
    task: str
    flow: FlowAddress
    report: NotRequired[PageAddress]
    scores: NotRequired[dict[str, float]]  # of the newest report that has the model
    control: NotRequired[str]  # fingerprint of its control in that report
    picture: NotRequired[str]  # digest of the lineage's picture on its page
    name: NotRequired[str]  # of the registered model, and its version there
    version: NotRequired[str]


Fact = Json | FlowAddress | PageAddress


class IdCache:
    """Cache of the entries in the MLflow store `key`, in small files, so that reused artifacts cost no
    request. Losing it is harmless.
    """

    def __init__(self, store: Store, key: str) -> None:
        self.claims = join(store.root, "mlflow-known", key)
        self.folder = local_folder(store) / "mlflow-known" / key

    def get(self, kind: str, fingerprint: str) -> KnownIds | None:
        with suppress(OSError, DamageError):
            return cast(KnownIds, read_object(str(self.folder / f"{kind}-{fingerprint[:SHORT]}.json")))
        return None

    def put(self, kind: str, fingerprint: str, **facts: Fact) -> None:
        known = {**(self.get(kind, fingerprint) or {}), **facts}
        write_bytes(str(self.folder / f"{kind}-{fingerprint[:SHORT]}.json"), json.dumps(known).encode())

    def drop(self, kind: str, fingerprint: str) -> None:
        (self.folder / f"{kind}-{fingerprint[:SHORT]}.json").unlink(missing_ok=True)

    def agree(self, kind: str, name: str, mine: str, is_there: Callable[[str], bool]) -> str:
        """The one run for `name` that all processes use: the first proposed that still exists; `mine` is this
        caller's proposal. MLflow has no unique run names, and orders runs by their creators' clocks.
        """
        short = sha256(name.encode()).hexdigest()[:SHORT]
        number = 0
        while True:
            claim = join(self.claims, f"{kind}-{short}.{number}")
            if create_exclusive(claim, mine.encode()):
                return mine
            if is_there(found := read_text(claim)):
                return found
            number += 1
