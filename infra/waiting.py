"""Who it is that a run waits for, in words."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from atelier.engine.spec.error import printable
from atelier.infra.locks import user
from atelier.infra.manifests import is_alive, manifests
from atelier.infra.store import Store

LONGEST = 80  # characters of a command line


def who(pids: Sequence[int], store: Store) -> str:
    """The processes that hold what is waited for, with their runs where the store knows them."""
    if not pids:
        return "who has them cannot be seen from here"
    runs = {m["holder"]["pid"]: m["id"] for m in manifests(store) if m.get("holder") and is_alive(m)}
    return f"{', '.join(_one(pid, runs.get(pid, '')) for pid in pids)} " + (
        "has them" if len(pids) == 1 else "have them"
    )


def _one(pid: int, run: str) -> str:
    name = f"run {run} (process {pid})" if run else f"process {pid}"
    with suppress(OSError):
        uid = os.stat(f"/proc/{pid}").st_uid
        if uid != os.getuid():
            name += f" of {user(uid)}"
        if not run:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            name += f" ({printable(' '.join(words).strip(), LONGEST)})"
    return name
