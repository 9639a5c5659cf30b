"""The same command at sites with a store each, as a person types it at each."""

import os
import subprocess
import sys
from pathlib import Path

from tests.checkout import TOP


def started(folder: Path, site: str, words: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """`atelier <words>` with the store of a site; what it says is in `<site>.log`."""
    env = os.environ | {"ATELIER_ROOT": str(folder / site)}
    with (folder / f"{site}.log").open("ab") as log:
        command = [sys.executable, "-m", "atelier", *words]
        return subprocess.Popen(command, cwd=TOP, env=env, stdout=log, stderr=log, start_new_session=True)


def at(folder: Path, site: str) -> tuple[str, ...]:
    """The words that say which site it is, and where messages lie."""
    return f"train.link.site={site}", f"train.link.mailbox={folder / 'mail'}"


def wait(folder: Path, runs: dict[str, subprocess.Popen[bytes]]) -> None:
    """Until all have ended well."""
    for site, run in runs.items():
        assert run.wait(300) == 0, (folder / f"{site}.log").read_text()[-3000:]
