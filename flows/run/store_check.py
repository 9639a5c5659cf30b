"""Checks that the store's root can be used, before anything is planned."""

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
    """Raises ConfigError for a root that is no folder and, when something will be written, for one that
    cannot be written to or has no exclusive create. In one that was moved MLflow's addresses are corrected.
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
    except OSError as error:  # a name that is too long, a loop of links, a working directory that is gone
        raise ConfigError(
            "ATELIER_ROOT", f"{root}: {(error.strerror or str(error)).lower()}", WAY_OUT
        ) from None
    if not ancestor.is_dir():
        raise ConfigError("ATELIER_ROOT", f"{ancestor} is a file, not a folder", WAY_OUT)
    if will_write:
        _try_to_write(path)
        with suppress(ConfigError):  # of a database that only a tracker needs, which says so
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
    """The store of a command. Raises ConfigError when its root is no folder."""
    check_root()
    return Store(default_root())
