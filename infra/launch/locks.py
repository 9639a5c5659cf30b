"""File locks shared by the processes of a machine, also of other users. A dead process's locks are released
at once. The files may have been created by a hostile user: links are not followed, nothing is written.
"""

import errno
import fcntl
import math
import os
import pwd
import stat
import time
from contextlib import suppress
from pathlib import Path

from atelier.engine.config.error import ConfigError, printable

FOLDER = "ATELIER_LOCKS"  # in the environment: a folder for all users, instead of the usual ones
PLACES = ("/run/lock", "/tmp")  # the first that root owns and every user may write to is used
FOR_ALL = 0o444  # read permission is enough to lock a file
FRESH_S = 2.0  # a file just created may not have all its permissions yet
OPENED = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def try_lock(place: Path, mode: int) -> int | None:
    """Lock the file, created with `mode` when missing; returns the descriptor that holds the lock, None while
    another process holds it. Raises ConfigError when it is no regular file or cannot be opened.
    """
    while True:
        descriptor = _opened(place, mode)
        if descriptor is None:
            return None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _refusal(place, "is not a regular file")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, place):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the file was removed meanwhile: its lock excludes no other process


def holder(place: Path) -> int | None:
    """Pid of the process that holds the file's lock; None when it is free or the pid is not visible here."""
    with suppress(OSError):
        about = os.lstat(place)
        name = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1:2] == ["FLOCK"] and name in words:
                pid = int(words[4])
                return pid if pid > 0 else None
    return None


def shared_folder() -> Path:
    """A folder of this machine in which every user may lock files that no other user can remove. Raises
    ConfigError when there is none.
    """
    given = os.environ.get(FOLDER, "")
    way_out = f"give {FOLDER} a folder for all users of this machine, created by root with mode 1777"
    if given:
        if not _is_safe(Path(given), {0, os.getuid()}):
            raise ConfigError(FOLDER, f"{given} can be changed by other users", way_out)
        return Path(given)
    for place in PLACES:
        if _is_safe(Path(place), {0}) and os.stat(place).st_mode & stat.S_IWOTH:
            return Path(place)
    raise ConfigError(FOLDER, f"none of {', '.join(PLACES)} is root's and writable for all", way_out)


def _is_safe(folder: Path, owners: set[int]) -> bool:
    """Whether users other than the owners can only add files to it and remove their own."""
    try:
        about = os.stat(folder)
        unseen = int(Path("/proc/sys/fs/overflowuid").read_text())  # root's uid in a user namespace
    except (OSError, ValueError):
        return False
    is_open = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return (
        stat.S_ISDIR(about.st_mode)
        and about.st_uid in owners | {unseen}
        and (not is_open or bool(about.st_mode & stat.S_ISVTX))
    )


def _opened(place: Path, mode: int) -> int | None:
    """Open the file, created when missing; None when it was created just now and is not accessible yet. An
    existing file is opened without O_CREAT, which kernels refuse for files of other users in folders like
    /tmp.
    """
    while True:
        try:
            return _existing(place)
        except FileNotFoundError:
            pass
        except PermissionError:
            if _age(place) < FRESH_S:
                return None
            raise _refusal(place, "may not be opened") from None
        except OSError as error:
            what = "is a symbolic link" if error.errno == errno.ELOOP else "is not a regular file"
            raise _refusal(place, what) from None
        try:
            descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL | OPENED, 0o600)
        except FileExistsError:
            continue
        except OSError as error:
            way_out = "make its folder writable for you"
            raise ConfigError(str(place), f"cannot be created ({error.strerror})", way_out) from None
        os.fchmod(descriptor, mode)
        return descriptor


def _existing(place: Path) -> int:
    try:
        return os.open(place, os.O_RDWR | OPENED)  # network file systems need write access to lock
    except PermissionError:
        return os.open(place, os.O_RDONLY | OPENED)


def _is_at(descriptor: int, place: Path) -> bool:
    try:
        there = os.lstat(place)
    except FileNotFoundError:
        return False
    own = os.fstat(descriptor)
    return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)


def _age(place: Path) -> float:
    try:
        return abs(time.time() - os.lstat(place).st_ctime)
    except FileNotFoundError:
        return 0.0
    except PermissionError:  # of its folder
        return math.inf


def _refusal(place: Path, what: str) -> ConfigError:
    whose = ""
    with suppress(OSError):
        whose = f", created by {user(os.lstat(place).st_uid)}"
    return ConfigError(printable(str(place)), f"{what}{whose}: it cannot be locked", "ask root to remove it")


def user(uid: int) -> str:
    """Name of a user; `user <uid>` when it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
