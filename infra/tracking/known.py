"""What is known of an MLflow store without asking it."""

import json
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from atelier.engine.spec.error import DamageError
from atelier.engine.storage import is_local, join, local_path, read_object, read_text, write_bytes
from atelier.infra.exclusive import create_exclusive
from atelier.infra.store import SHORT, Store


class Known:
    """Small files that say what the MLflow store `key` has already, so that reused artifacts cost no request.
    A hint: losing it is harmless.
    """

    def __init__(self, store: Store, key: str) -> None:
        self.claims = join(store.root, "mlflow-known", key)
        base = local_path(store.root) if is_local(store.root) else Path.home() / ".cache" / "atelier"
        self.folder = base / "mlflow-known" / key

    def get(self, kind: str, fingerprint: str) -> dict[str, Any]:
        with suppress(OSError, DamageError):
            return read_object(str(self.folder / f"{kind}-{fingerprint[:SHORT]}.json"))
        return {}

    def put(self, kind: str, fingerprint: str, **facts: Any) -> None:
        facts = self.get(kind, fingerprint) | facts
        write_bytes(str(self.folder / f"{kind}-{fingerprint[:SHORT]}.json"), json.dumps(facts).encode())

    def drop(self, kind: str, fingerprint: str) -> None:
        (self.folder / f"{kind}-{fingerprint[:SHORT]}.json").unlink(missing_ok=True)

    def agree(self, kind: str, name: str, mine: str, is_there: Callable[[str], bool]) -> str:
        """The run for `name` that everybody uses: the first one proposed that is still there; `mine` is this
        caller's proposal. MLflow has no names that only one run can have, and orders runs by the clocks of
        those who made them.
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
