"""Folders on this machine: scratch of runs, and caches, which may be deleted at any time."""

from pathlib import Path

from atelier.engine.io.storage import is_local, local_path
from atelier.engine.io.user_folders import own_folder
from atelier.infra.store.store import Store


def local_folder(store: Store) -> Path:
    """A local folder, perhaps shared by machines that share the store: use unique names in it."""
    return local_path(store.root) if is_local(store.root) else own_folder()


def scratch_of(store: Store, run_id: str) -> Path:
    """A private folder for the run's processes."""
    scratch = local_folder(store) / "scratch" / run_id
    scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
    return scratch
