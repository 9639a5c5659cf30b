"""Addresses and credentials of the local stack, and the environment of each of its processes.

They are in `<root>/stack`, readable only by their owner: a Prefect credential gives a shell on its pools.
"""

import json
import os
import secrets
import sys
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import cast

from atelier import IMPORT_ROOT
from atelier.engine.config.error import ConfigError, DamageError
from atelier.engine.io.addresses import NAMED
from atelier.engine.io.local_url import sqlite_url
from atelier.engine.io.proxies import LOOPBACK
from atelier.engine.io.storage import is_local, local_path, read_object
from atelier.engine.io.user_folders import cache_folder, own_folder
from atelier.infra.stack.database_check import tighten
from atelier.infra.stack.service import ServiceEntry

HOST = "127.0.0.1"
DATABASE, FILES = "mlflow.db", "mlartifacts"  # of MLflow, in a store's root
USER = "atelier"
QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "PREFECT_CLI_PROMPT": "false",
}


def stack_folder(root: str) -> Path:
    """Folder for the state of the stack of the store at `root` on this machine."""
    if is_local(root):
        return local_path(root).absolute() / "stack"
    return own_folder() / "stack" / sha256(root.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Random credentials, created once per store; both servers use the same user and password."""

    user: str
    password: str
    flask_key: str

    @property
    def prefect(self) -> str:
        """Prefect's auth string."""
        return f"{self.user}:{self.password}"

    @staticmethod
    def of(folder: Path) -> "Credentials":
        """The folder's credentials, created when missing. Raises DamageError when the file cannot be read."""
        path = folder / "credentials.json"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.chmod(folder, 0o700)
        tighten(path)
        try:
            found = read_object(str(path), "credentials")
            keys = ("user", "password", "flask_key")
            texts = {key: text for key in keys if isinstance(text := found.get(key), str)}
            if len(texts) < len(keys):
                raise DamageError(f"{path}: not credentials")
            return Credentials(**texts)
        except DamageError as damage:
            way_out = "`atelier down`, then remove the file: `atelier up` makes new ones"
            raise DamageError(str(damage), way_out) from None
        except FileNotFoundError:
            made = Credentials(
                user=USER, password=secrets.token_urlsafe(24), flask_key=secrets.token_urlsafe(32)
            )
            write_private(path, json.dumps(asdict(made)))
            return made


TRAINING_VIEW = (
    "?workflowType=machine_learning"  # of MLflow's pages; without it some open the view for traces
)


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """URLs of the Prefect server and the MLflow server."""

    prefect: str  # http://127.0.0.1:4200
    mlflow: str

    @property
    def experiments(self) -> str:
        """MLflow's list of experiments."""
        return f"{self.mlflow}/#/experiments{TRAINING_VIEW}"

    def client(self, credentials: Credentials) -> dict[str, str]:
        """Environment of the clients of both servers: command line, workers, flows."""
        return {
            "PREFECT_API_URL": f"{self.prefect}/api",
            "PREFECT_API_AUTH_STRING": credentials.prefect,
            "MLFLOW_TRACKING_URI": self.mlflow,
            "MLFLOW_TRACKING_USERNAME": credentials.user,
            "MLFLOW_TRACKING_PASSWORD": credentials.password,
        }


def own_hosts(port: int) -> tuple[str, ...]:
    """Host names under which the server at `port` may be addressed."""
    return (f"{HOST}:{port}", f"localhost:{port}")


def own_origins(port: int) -> tuple[str, ...]:
    """Origins of pages that may send requests to it."""
    return tuple(f"http://{host}" for host in own_hosts(port))


def locked(port: int, login: str) -> dict[str, str]:
    """Settings of a Prefect server that requires `login` (user:password) and serves pages on `port`."""
    return {
        "PREFECT_SERVER_API_AUTH_STRING": login,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(own_origins(port)),
    }


def prefect_server(root: str, port: int, credentials: Credentials) -> dict[str, str]:
    """Environment of the Prefect server: it requires the credential, and accepts only its own origins."""
    own = f"http://{HOST}:{port}"
    about = {
        "PREFECT_HOME": str(prefect_home(root)),
        "PREFECT_API_DATABASE_CONNECTION_URL": prefect_database(prefect_home(root)),
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_UI_API_URL": f"{own}/api",
        "PREFECT_UI_STATIC_DIRECTORY": str(pages_folder()),
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_DATABASE_TIMEOUT": "60",  # seconds: sqlite has one writer; else a wait becomes a 503
        "PREFECT_SERVER_DATABASE_CONNECTION_TIMEOUT": "30",
    }
    return QUIET | locked(port, credentials.prefect) | about


def pages_folder() -> Path:
    """Folder in which Prefect builds its pages; its default, the installation, may be read-only."""
    return cache_folder() / f"prefect-pages-{version('prefect')}"


def mlflow_server(folder: Path, credentials: Credentials) -> dict[str, str]:
    """Environment of the MLflow server, with its users in a separate database."""
    return mlflow_users(folder, sqlite_url(folder / "mlflow-users.db"), credentials)


def mlflow_users(folder: Path, database: str, credentials: Credentials) -> dict[str, str]:
    """As `mlflow_server`, with the users in `database`; others have no permissions."""
    ini = folder / "mlflow-auth.ini"
    lines = [
        "[mlflow]",
        "default_permission = NO_PERMISSIONS",
        f"database_uri = {database.replace('%', '%%')}",  # MLflow reads the file with interpolation
        f"admin_username = {credentials.user}",
        f"admin_password = {credentials.password}",
        "auth_cache_ttl_seconds = 300",  # without a cache every request hashes a password: 0.1 s of CPU time
    ]
    write_private(ini, "\n".join(lines) + "\n")
    return QUIET | {
        "MLFLOW_AUTH_CONFIG_PATH": str(ini),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": credentials.flask_key,
    }


def worker(root: str, client: dict[str, str]) -> dict[str, str]:
    """Environment of a worker, inherited by its flows (not by their gangs)."""
    return (
        QUIET
        | client
        | {
            "ATELIER_ROOT": root,
            NAMED: os.environ.get(NAMED, ""),  # forms may read public addresses and these hosts
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": str(IMPORT_ROOT),  # its flows run this code in any working directory
            "PREFECT_HOME": str(prefect_home(root).with_name("prefect-worker")),
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "PREFECT_WORKER_PREFETCH_SECONDS": "1",
            "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
            "PREFECT_CLIENT_MAX_RETRIES": "5",  # 2 + 4 + ... + 32 s, then its loops try again
            "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",  # the server's status when its database is away
            "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
        }
    )


def mlflow_folder(root: str) -> Path:
    """Folder of MLflow's database, and of its artifacts where the server keeps them, for this store."""
    return local_path(root).absolute() if is_local(root) else stack_folder(root)


def prefect_home(root: str) -> Path:
    """Prefect's home with its database for this store."""
    return local_path(root).absolute() / "prefect" if is_local(root) else stack_folder(root) / "prefect"


def prefect_database(home: Path) -> str:
    """URL of Prefect's database in its home, with the path escaped, which Prefect does not do."""
    return sqlite_url(home / "prefect.db", "sqlite+aiosqlite")


def clean_environment() -> dict[str, str]:
    """This process's environment without PREFECT_... and MLFLOW_... variables."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}


def check_binding(host: str) -> None:
    """Raises ConfigError for an address that others can reach: neither server speaks TLS."""
    if host not in LOOPBACK:
        way_out = f"omit --host; from elsewhere: ssh -L PORT:{HOST}:PORT <this machine>, for both ports"
        raise ConfigError("--host", f"{host} can be reached by others, but the stack has no TLS", way_out)


def write_private(path: Path, text: str) -> None:
    """Write a file readable only by its owner, atomically."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(fresh, path)


def read_state(folder: Path) -> dict[str, ServiceEntry]:
    """State of the stack's processes as written by `up`; {} when none was started."""
    try:
        return cast(dict[str, ServiceEntry], read_object(str(folder / "state.json")))
    except (FileNotFoundError, DamageError):
        return {}
