"""Check that the store's root can be used, before planning."""

import os
from contextlib import suppress
from pathlib import Path

from atelier.engine.config.error import ConfigError, check_utf8
from atelier.engine.io.storage import is_local, local_path, reach
from atelier.infra.store.conditional_create import check_exclusive
from atelier.infra.store.store import Store, default_root
from atelier.infra.tracking.own_database import follow

WAY_OUT = "set ATELIER_ROOT to a folder that you may write to"


def check_root(*, will_write: bool = False) -> None:
    """Raises ConfigError for a root that is not a folder and, if something will be written, for one that is
    not writable or lacks exclusive create. If the store was moved, MLflow's addresses are corrected.
    """
    root = default_root()
    check_utf8(root, "ATELIER_ROOT", "the path")
    if not is_local(root):
        if will_write:
            reach(root)
            check_exclusive(root)
        return
    try:
        path = local_path(root)
        ancestor = next(folder for folder in (path, *path.parents) if folder.exists())
    except OSError as error:  # a long name, a loop of links, a deleted working directory
        raise ConfigError(
            "ATELIER_ROOT", f"{root}: {(error.strerror or str(error)).lower()}", WAY_OUT
        ) from None
    if not ancestor.is_dir():
        raise ConfigError("ATELIER_ROOT", f"{ancestor} is a file, not a folder", WAY_OUT)
    if will_write:
        _try_to_write(path)
        with suppress(ConfigError):  # the tracker reports an unreadable database
            follow(Store(root))


def _try_to_write(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(path, os.W_OK | os.X_OK)
        reason = "permission denied"
    except OSError as error:
        is_writable, reason = False, (error.strerror or str(error)).lower()
    if not is_writable:
        raise ConfigError("ATELIER_ROOT", f"{path} cannot be written ({reason})", WAY_OUT)


def open_store() -> Store:
    """The store of a command. Raises ConfigError if its root is not a folder."""
    check_root()
    return Store(default_root())
