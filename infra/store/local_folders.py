"""Where a store's runs keep what belongs to this machine: scratch of runs, and caches, which may be lost at
any time.
"""

import os
from pathlib import Path

from atelier.engine.io.storage import is_local, local_path
from atelier.infra.store.store import Store


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/atelier, ~/.cache/atelier without one. It need not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "atelier"


def local_folder(store: Store) -> Path:
    """A folder of this machine, or of several that share the store: what is of one has a name of its own."""
    return local_path(store.root) if is_local(store.root) else Path.home() / ".cache" / "atelier"


def scratch_of(store: Store, run_id: str) -> Path:
    """A private folder for the run's processes."""
    scratch = local_folder(store) / "scratch" / run_id
    scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
    return scratch
