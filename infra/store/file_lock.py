"""A lock between processes of one user on one machine; a dead process and its forks release it. Between
users: infra/launch/locks.py; between machines: infra/store/lease.py.
"""

import fcntl
from pathlib import Path
from typing import IO


def file_lock(path: Path) -> IO[str] | None:
    """The file, created if missing, open for reading and appending, locked until it is closed; None if it is
    locked, by another process or here. Raises OSError.
    """
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError:
        file.close()
        raise
    return file
