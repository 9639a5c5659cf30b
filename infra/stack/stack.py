"""The local stack of a store: Prefect server, MLflow server and workers, each started when missing, found
again by later commands, ended together.
"""

import json
import os
import socket
from collections.abc import Callable
from typing import TypedDict

from atelier.engine.config.document import whole_of
from atelier.engine.config.error import ConfigError
from atelier.engine.io.local_url import file_url, sqlite_url
from atelier.engine.io.proxies import exempt_loopback
from atelier.infra.stack import service, settings
from atelier.infra.stack.database_check import MLFLOW, PREFECT, check_database, tighten
from atelier.infra.stack.service import Service, ServiceEntry
from atelier.infra.stack.settings import HOST, Addresses, Credentials

PREFECT_PORT, MLFLOW_PORT = 4200, 5000
PRIVATE = 0o077  # umask of the servers, whose databases have users and runs; workers write to the store
HEALTH_PORT = "PREFECT_WORKER_WEBSERVER_PORT"  # optional port of a worker's health check
LIGHT = "light"  # pool of parent flows, which only wait


class StackPart(TypedDict):
    """A process of the stack as `atelier status --json` prints it; `answers` is None for a worker."""

    name: str
    url: str
    running: bool
    answers: bool | None
    pid: int | None
    log: str


class Stack:
    """The stack that belongs to the store at `root`."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.folder = settings.stack_folder(root)
        self.state = settings.read_state(self.folder)

    @property
    def credentials(self) -> Credentials:
        return Credentials.of(self.folder)

    @property
    def addresses(self) -> Addresses | None:
        """Addresses of its servers; None when it was never started."""
        prefect, mlflow = (self._url(name) for name in ("prefect", "mlflow"))
        return Addresses(prefect=prefect, mlflow=mlflow) if prefect and mlflow else None

    def _url(self, name: str) -> str:
        return self.state.get(name, ServiceEntry()).get("url", "")

    def client(self) -> dict[str, str]:
        """Environment of its clients; {} when its Prefect server is not running."""
        if self.addresses is None or not service.is_running(self.state["prefect"]):
            return {}
        return self.addresses.client(self.credentials)

    def tracking(self) -> dict[str, str]:
        """MLflow's variables of `client`; {} when its MLflow server is not running."""
        if self.addresses is None or not service.is_running(self.state["mlflow"]):
            return {}
        found = self.addresses.client(self.credentials)
        return {key: value for key, value in found.items() if key.startswith("MLFLOW_")}

    def up(self, prefect_port: int, mlflow_port: int, say: Callable[[str], None]) -> list[str]:
        """Start the servers that are not running, both at once; returns the names of those started. Raises
        ConfigError when one runs at another port, and for a database that none can use.
        """
        wanted = [self._prefect(prefect_port), self._mlflow(mlflow_port)]
        missing = [one for one in wanted if not service.is_running(self.state.get(one.name, ServiceEntry()))]
        for one in wanted:
            if one not in missing and self._url(one.name) != one.url:
                raise ConfigError(
                    f"--{one.name}-port", f"{one.name} runs at {self._url(one.name)}", "atelier down"
                )
        self._check_databases()
        for one in missing:
            service.check_port(one.name, int(one.url.rsplit(":", 1)[1]))
        for one in missing:
            say(f"starting {one.name} at {one.url}")
            self._keep(one.name, service.start(one, self.folder))
        for one in missing:
            service.wait_ready(one, self.state[one.name])
        return [one.name for one in missing]

    def _check_databases(self) -> None:
        mlflow, home = settings.mlflow_folder(self.root), settings.prefect_home(self.root)
        for path, tables in (
            (mlflow / settings.DATABASE, MLFLOW),
            (home / "prefect.db", PREFECT),
        ):
            tighten(path)
            check_database(path, tables)

    def start_worker(self, pool: str, limit: int) -> bool:
        """Start a worker for `pool` on this machine; False when it runs already."""
        name = f"worker-{pool}"
        if service.is_running(self.state.get(name, ServiceEntry())):
            return False
        self._keep(name, service.start(self.worker(pool, limit), self.folder))
        return True

    def worker(self, pool: str, limit: int, name: str = "") -> Service:
        """The worker of `pool`: its flows get the servers' credentials, their gangs do not."""
        client = self.client() or {k: os.environ[k] for k in CLIENT_KEYS if k in os.environ}
        arguments = (
            "atelier.infra.stack.pool_worker",
            "worker",
            "start",
            "--pool",
            pool,
            "--type",
            "process",
        )
        arguments += ("--name", name or f"{socket.gethostname()}-{pool}", "--limit", str(limit))
        if HEALTH_PORT in os.environ:
            client |= {HEALTH_PORT: os.environ[HEALTH_PORT]}
            arguments += ("--with-healthcheck",)
        return Service(
            name=f"worker-{pool}",
            arguments=arguments,
            environment=settings.clean_environment() | settings.worker(self.root, client),
        )

    def down(self, say: Callable[[str], None]) -> int:
        """Stop all processes of the stack, workers first. Returns their number."""
        names = sorted(self.state, key=lambda name: (not name.startswith("worker"), name != "prefect"))
        running = [name for name in names if service.is_running(self.state[name])]
        for name in running:
            say(f"ending {name}")
            service.stop(self.state[name])
        for name in names:
            self.state[name].pop("holder", None)
            if name.startswith("worker"):
                self.state.pop(name)
        if names:  # else nothing was started and there is no folder
            self._write()
        return len(running)

    def parts(self) -> list[StackPart]:
        """State of each process: name, url, running, answers, pid, log."""
        return [
            {
                "name": name,
                "url": entry.get("url", ""),
                "running": service.is_running(entry),
                "answers": service.answers(self._url(name) + HEALTH[name]) if name in HEALTH else None,
                "pid": whole_of(entry.get("holder", {}).get("pid")) or None,
                "log": entry.get("log", ""),
            }
            for name, entry in self.state.items()
        ]

    def _prefect(self, port: int) -> Service:
        url = f"http://{HOST}:{port}"
        environment = settings.clean_environment() | settings.prefect_server(
            self.root, port, self.credentials
        )
        return Service(
            name="prefect",
            arguments=("atelier.infra.stack.prefect_server", str(port)),
            environment=environment,
            ready=f"{url}/api/health",
            url=url,
            umask=PRIVATE,
        )

    def _mlflow(self, port: int) -> Service:
        url = f"http://{HOST}:{port}"
        base = settings.mlflow_folder(self.root)
        arguments = ("atelier.infra.stack.mlflow_server", "--app-name", "basic-auth")
        arguments += ("--host", HOST, "--port", str(port))
        arguments += ("--backend-store-uri", sqlite_url(base / settings.DATABASE), "--workers", "1")
        arguments += ("--artifacts-destination", file_url(base / settings.FILES))
        arguments += ("--allowed-hosts", ",".join(settings.own_hosts(port)))
        arguments += ("--cors-allowed-origins", ",".join(settings.own_origins(port)))
        environment = settings.clean_environment() | settings.mlflow_server(self.folder, self.credentials)
        return Service(
            name="mlflow",
            arguments=arguments,
            environment=environment,
            ready=f"{url}/health",
            url=url,
            umask=PRIVATE,
        )

    def _keep(self, name: str, entry: ServiceEntry) -> None:
        self.state[name] = entry
        self._write()

    def _write(self) -> None:
        settings.write_private(self.folder / "state.json", json.dumps(self.state, indent=1))


HEALTH = {"prefect": "/api/health", "mlflow": "/health"}


CLIENT_KEYS = (  # addresses and credentials of the servers for clients
    "PREFECT_API_URL",
    "PREFECT_API_AUTH_STRING",
    "PREFECT_UI_URL",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
)


def join_stack(root: str) -> bool:
    """Make this process use the Prefect server of the running stack of `root`, unless the user has set one;
    True if so. Tracking finds the stack's MLflow itself (infra/tracking/address.py).
    """
    exempt_loopback(os.environ)
    if os.environ.get("PREFECT_API_URL"):
        return False
    client = Stack(root).client()
    for key, value in client.items():  # the user's settings take precedence
        if key.startswith("PREFECT_"):
            os.environ.setdefault(key, value)
    return bool(client)
