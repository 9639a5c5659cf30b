"""A private PostgreSQL server: made in a folder, on a socket of loopback, killed and started again."""

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.flow.served import wait_for
from tests.ports import free_port

PASSWORD = "of the tests alone"
USER = "nobody"  # the server refuses root
PLACES = ("/usr/lib/postgresql/*/bin", "/usr/local/bin", "/usr/bin")


def program(name: str) -> str:
    """Where the program is; '' when it is not installed. Debian keeps them out of the path."""
    found = sorted(str(path) for place in PLACES for path in Path("/").glob(f"{place[1:]}/{name}"))
    return found[-1] if found else ""


def missing() -> str:
    """Why no server can be started here; empty when one can."""
    names = [name for name in ("postgres", "initdb") if not program(name)]
    if names:
        return f"not installed: {', '.join(names)}"
    return "" if os.geteuid() == 0 and shutil.which("setpriv") else "needs root and setpriv"


class Postgres:
    """A server and its address for SQLAlchemy."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"postgresql+psycopg://owner:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{self.port}/postgres"
        self._process: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        self.folder.mkdir(mode=0o700)
        owner = pwd.getpwnam(USER)
        secret = self.folder.parent / "password"
        secret.write_text(PASSWORD)
        for path in (self.folder, secret):
            os.chown(path, owner.pw_uid, owner.pw_gid)
        for above in self.folder.parents[:-1]:  # pytest's folders are closed to others
            if str(above).startswith("/tmp/"):
                above.chmod(above.stat().st_mode | 0o011)
        words = ("--auth=scram-sha-256", "--username=owner", f"--pwfile={secret}", "--no-sync")
        subprocess.run(
            self._as_user(program("initdb"), *words, str(self.folder)), check=True, stdout=subprocess.DEVNULL
        )

    def start(self) -> None:
        words = ("-D", str(self.folder), "-p", str(self.port), "-h", "127.0.0.1", "-k", "")
        with open(self.folder.parent / "postgres.log", "ab") as log:
            self._process = subprocess.Popen(
                self._as_user(program("postgres"), *words), stdout=log, stderr=log, start_new_session=True
            )
        wait_for(self._answers, 60, "postgres")

    def kill(self) -> None:
        """SIGKILL, all of it at once."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        self._process = None
        (self.folder / "postmaster.pid").unlink(missing_ok=True)

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url.replace("+psycopg", ""), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _as_user(self, *words: str) -> list[str]:
        return ["setpriv", f"--reuid={USER}", "--regid=nogroup", "--clear-groups", "--pdeathsig=KILL", *words]


@contextmanager
def postgres(folder: Path) -> Iterator[Postgres]:
    """A server that answers; afterwards nothing of it runs."""
    made = Postgres(folder)
    made.make()
    made.start()
    try:
        yield made
    finally:
        if made._process is not None:
            made.kill()
