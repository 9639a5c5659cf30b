"""A lock between processes of one user on one machine; those of a dead one, and of its forks, are open. What
other users may touch: infra/launch/locks.py; what other machines share: infra/store/lease.py.
"""

import fcntl
from pathlib import Path
from typing import IO


def file_lock(path: Path) -> IO[str] | None:
    """The file, created when missing, open to read and to append, locked until it is closed; None while
    it is locked, by another process or here. Raises OSError.
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
