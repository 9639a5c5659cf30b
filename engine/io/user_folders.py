"""Folders and name of the user of this process, even without HOME or passwd entry, or if HOME is missing or
read-only. Torch-free.
"""

import os
import pwd
import stat
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from atelier.engine.config.error import ConfigError, printable

ATELIER = ".cache/atelier"
NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # variables that Python's getpass reads before passwd
PLOTS, EPOCH = "MPLCONFIGDIR", "SOURCE_DATE_EPOCH"


def home() -> Path:
    """The user's folder: $HOME, otherwise passwd's; if neither is writable, one beside temporary files."""
    return next((place for place in _homes() if _is_writable(place / ATELIER)), None) or _spare()


def own_folder() -> Path:
    """Atelier's folder of this user, ~/.cache/atelier. It need not exist."""
    return home() / ATELIER


def cache_folder() -> Path:
    """The folder for data that may be deleted at any time: $XDG_CACHE_HOME/atelier if that is an absolute
    path, otherwise ~/.cache/atelier. It need not exist.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~")
    return base / "atelier" if base.is_absolute() else own_folder()


def expanded(path: str, place: str) -> Path:
    """Expand ~ in `path`. Raises ConfigError for the setting `place` if the home folder is unknown."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        problem = f"{path}: no home folder is known"
        raise ConfigError(place, problem, "give an absolute path, or set HOME") from None


def with_home(path: str) -> str:
    """Expand a leading ~ in `path`; unchanged if that home folder is unknown."""
    return os.path.expanduser(path)


def user_name() -> str:
    """The user's login name; `uid-<number>` if there is none."""
    found = next((name for key in NAMES if (name := os.environ.get(key))), "")
    return found or (entry.pw_name if (entry := _entry()) else f"uid-{os.getuid()}")


def complete_user(environment: MutableMapping[str, str]) -> None:
    """Set variables that libraries need: HOME if it is not a folder, a name if passwd has none, a folder for
    matplotlib's fonts if the home is not writable. Existing ones stay.
    """
    if not os.path.isdir(environment.get("HOME", "")) or not os.path.isabs(environment["HOME"]):
        environment["HOME"] = str(next(iter(_homes()), None) or _spare())
    if not any(environment.get(key) for key in NAMES) and _entry() is None:
        environment["USER"] = user_name()
    if not any(_is_writable(place / ATELIER) for place in _homes()):
        environment.setdefault(PLOTS, str(cache_folder() / "matplotlib"))


def _homes() -> list[Path]:
    entry = _entry()
    places = (os.environ.get("HOME", ""), entry.pw_dir if entry else "")
    return [Path(place) for place in places if os.path.isabs(place) and os.path.isdir(place)]


def _entry() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:
        return None


def _is_writable(folder: Path) -> bool:
    """Whether the folder or files in it can be created: its nearest existing parent is writable."""
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)


def _spare() -> Path:
    """A private folder beside temporary files. Raises ConfigError if there can be none."""
    way_out = "set HOME to a folder that you may write to"
    try:
        place = Path(tempfile.gettempdir()) / f"atelier-{os.getuid()}"
        place.mkdir(mode=0o700, exist_ok=True)
        about = place.lstat()
    except OSError as error:
        raise ConfigError("HOME", f"no folder for this user: {error}", way_out) from None
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise ConfigError("HOME", f"no folder for this user: {place} is not private", way_out)
    return place


def drop_unreadable(environment: MutableMapping[str, str]) -> list[str]:
    """Remove variables that libraries cannot read on import; a note for each."""
    value = environment.get(EPOCH, "0")
    if value.isascii() and value.isdecimal():
        return []
    del environment[EPOCH]
    return [f"{EPOCH} is {printable(value, 40)}, but numpy and matplotlib need a whole number: left out"]
