"""Locked files that the processes of a machine share, those of other users included. A dead process's locks
are free at once. A file may have been put there by somebody hostile: no link is followed, nothing is written.
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

FOLDER = "ATELIER_LOCKS"  # names a folder for all users of the machine, where the usual ones will not do
PLACES = ("/run/lock", "/tmp")  # of these the first that every user may write to and nobody but root owns
FOR_ALL = 0o444  # enough to lock a file, and nobody has a reason to write into it
FRESH_S = 2.0  # a file that is being made has not all its permissions yet
OPENED = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def try_lock(place: Path, mode: int) -> int | None:
    """A descriptor that holds the lock of the file, made with `mode` where there is none; None while another
    holds it. ConfigError when what is there is no file that can be locked.
    """
    while True:
        descriptor = _opened(place, mode)
        if descriptor is None:
            return None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _refusal(place, "is no plain file")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, place):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # of a file that was removed meanwhile: it keeps nobody out


def holder(place: Path) -> int | None:
    """The process that holds the lock of the file; None where nobody does, or it cannot be seen from here."""
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
    """A folder of this machine in which every user may lock files that no other user can remove. ConfigError
    when there is none.
    """
    given = os.environ.get(FOLDER, "")
    way_out = f"give {FOLDER} one folder for all users of this machine, made by root with mode 1777"
    if given:
        if not _is_safe(Path(given), {0, os.getuid()}):
            raise ConfigError(FOLDER, f"{given} is no folder that others cannot change", way_out)
        return Path(given)
    for place in PLACES:
        if _is_safe(Path(place), {0}) and os.stat(place).st_mode & stat.S_IWOTH:
            return Path(place)
    raise ConfigError(FOLDER, f"neither of {', '.join(PLACES)} is a folder of root's for everybody", way_out)


def _is_safe(folder: Path, owners: set[int]) -> bool:
    """Whether who is not its owner can only add files to it, and remove their own."""
    try:
        about = os.stat(folder)
        unseen = int(Path("/proc/sys/fs/overflowuid").read_text())  # root's, as a user namespace shows it
    except (OSError, ValueError):
        return False
    is_open = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return (
        stat.S_ISDIR(about.st_mode)
        and about.st_uid in owners | {unseen}
        and (not is_open or bool(about.st_mode & stat.S_ISVTX))
    )


def _opened(place: Path, mode: int) -> int | None:
    """A descriptor of the file. Where it is there it is opened without O_CREAT, which kernels refuse for
    files of other users in folders as /tmp.
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
            what = "is a symbolic link" if error.errno == errno.ELOOP else "is no plain file"
            raise _refusal(place, what) from None
        try:
            descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL | OPENED, 0o600)
        except FileExistsError:
            continue
        except OSError as error:
            way_out = "make its folder one that you may write to"
            raise ConfigError(str(place), f"cannot be made ({error.strerror})", way_out) from None
        os.fchmod(descriptor, mode)
        return descriptor


def _existing(place: Path) -> int:
    try:
        return os.open(place, os.O_RDWR | OPENED)  # network file systems lock nothing that is only read
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
        whose = f", made by {user(os.lstat(place).st_uid)}"
    return ConfigError(printable(str(place)), f"{what}{whose}: it cannot be locked", "have it removed")


def user(uid: int) -> str:
    """The name of a user, or the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
