"""A store for a trial: a few artifacts lie in a scratch folder, all others are read from the real store."""

from collections.abc import Collection

from atelier.infra.store.store import SHORT, Store


class ScratchStore(Store):
    """The artifacts and trajectories `own` (kind, fingerprint) are made and found below `root`. Whatever else
    is asked for is read from the store `behind`, which does not change.
    """

    def __init__(self, behind: Store, root: str, own: Collection[tuple[str, str]]) -> None:
        super().__init__(root)
        self.behind = behind
        self._own = {(kind, fingerprint[:SHORT]) for kind, fingerprint in own}

    def address(self, kind: str, fingerprint: str) -> str:
        is_own = (kind, fingerprint[:SHORT]) in self._own
        return super().address(kind, fingerprint) if is_own else self.behind.address(kind, fingerprint)

    def shorts(self, kind: str) -> list[str]:
        others = [short for short in self.behind.shorts(kind) if (kind, short) not in self._own]
        return sorted([*super().shorts(kind), *others])
