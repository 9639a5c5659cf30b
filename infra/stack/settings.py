"""Addresses and credentials of the local stack, and the environment of each of its processes.

They lie in `<root>/stack`, readable by their owner alone: a Prefect credential is a shell on its pools.
"""

import json
import os
import secrets
import sys
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from atelier import IMPORT_ROOT
from atelier.engine.config.error import ConfigError, DamageError
from atelier.engine.io.storage import is_local, local_path, read_object

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HOST = "127.0.0.1"
QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "PREFECT_CLI_PROMPT": "false",
}


def stack_folder(root: str) -> Path:
    """Where the stack of the store at `root` keeps what belongs to this machine."""
    if is_local(root):
        return local_path(root).absolute() / "stack"
    return Path.home() / ".cache" / "atelier" / "stack" / sha256(root.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Random, made once for a store; both pages ask for the same user and password."""

    user: str
    password: str
    flask_key: str

    @property
    def prefect(self) -> str:
        """What Prefect calls an auth string."""
        return f"{self.user}:{self.password}"

    @staticmethod
    def of(folder: Path) -> "Credentials":
        """The folder's credentials, made when there are none."""
        path = folder / "credentials.json"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.chmod(folder, 0o700)
        try:
            found = read_object(str(path), "credentials")
            texts: dict[str, Any] = {key: found.get(key) for key in ("user", "password", "flask_key")}
            if not all(isinstance(text, str) for text in texts.values()):
                raise DamageError(f"{path}: not credentials")
            return Credentials(**texts)
        except DamageError as damage:
            way_out = "`atelier down`, then remove the file: `atelier up` makes new ones"
            raise DamageError(str(damage), way_out) from None
        except FileNotFoundError:
            made = Credentials(
                user="atelier", password=secrets.token_urlsafe(24), flask_key=secrets.token_urlsafe(32)
            )
            write_private(path, json.dumps(asdict(made)))
            return made


@dataclass(frozen=True, kw_only=True)
class Addresses:
    prefect: str  # http://127.0.0.1:4200
    mlflow: str

    def client(self, credentials: Credentials) -> dict[str, str]:
        """Environment of whoever talks to both servers: the command line, workers, flows."""
        return {
            "PREFECT_API_URL": f"{self.prefect}/api",
            "PREFECT_API_AUTH_STRING": credentials.prefect,
            "MLFLOW_TRACKING_URI": self.mlflow,
            "MLFLOW_TRACKING_USERNAME": credentials.user,
            "MLFLOW_TRACKING_PASSWORD": credentials.password,
        }


def own_hosts(port: int) -> tuple[str, ...]:
    """What a request to the server at `port` may call it."""
    return (f"{HOST}:{port}", f"localhost:{port}")


def own_origins(port: int) -> tuple[str, ...]:
    """Where the pages come from that may ask it."""
    return tuple(f"http://{host}" for host in own_hosts(port))


def prefect_server(root: str, port: int, credentials: Credentials) -> dict[str, str]:
    """Environment of the Prefect server: it asks for the credential, and answers no page but its own."""
    own = f"http://{HOST}:{port}"
    return QUIET | {
        "PREFECT_HOME": str(prefect_home(root)),
        "PREFECT_SERVER_API_AUTH_STRING": credentials.prefect,
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(own_origins(port)),
        "PREFECT_UI_API_URL": f"{own}/api",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_DATABASE_TIMEOUT": "60",  # seconds: sqlite has one writer; else a busy one is a 503
        "PREFECT_SERVER_DATABASE_CONNECTION_TIMEOUT": "30",
    }


def mlflow_server(folder: Path, credentials: Credentials) -> dict[str, str]:
    """Environment of the MLflow server, its users in a database of their own."""
    return mlflow_users(folder, f"sqlite:///{folder / 'mlflow-users.db'}", credentials)


def mlflow_users(folder: Path, database: str, credentials: Credentials) -> dict[str, str]:
    """As above, the users in `database`; who is none of them sees nothing."""
    ini = folder / "mlflow-auth.ini"
    lines = [
        "[mlflow]",
        "default_permission = NO_PERMISSIONS",
        f"database_uri = {database}",
        f"admin_username = {credentials.user}",
        f"admin_password = {credentials.password}",
        "auth_cache_ttl_seconds = 300",  # else a password hash, a tenth of a second of CPU time, a request
    ]
    write_private(ini, "\n".join(lines) + "\n")
    return QUIET | {
        "MLFLOW_AUTH_CONFIG_PATH": str(ini),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": credentials.flask_key,
    }


def worker(root: str, client: dict[str, str]) -> dict[str, str]:
    """Environment of a worker, which the flows that it starts inherit (their gangs do not)."""
    return (
        QUIET
        | client
        | {
            "ATELIER_ROOT": root,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": str(IMPORT_ROOT),  # the flows that it starts are this code's, wherever they run
            "PREFECT_HOME": str(prefect_home(root).with_name("prefect-worker")),
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "PREFECT_WORKER_PREFETCH_SECONDS": "1",
            "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
            "PREFECT_CLIENT_MAX_RETRIES": "5",  # 2 + 4 + ... + 32 s, then its loops try again
            "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",  # what a server says whose database is away
            "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
        }
    )


def prefect_home(root: str) -> Path:
    """Where Prefect keeps its database for this store."""
    return local_path(root).absolute() / "prefect" if is_local(root) else stack_folder(root) / "prefect"


def clean_environment() -> dict[str, str]:
    """This process's environment without what it says of other servers."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}


def check_binding(host: str) -> None:
    """Refuse an address that others can reach: neither server speaks TLS itself."""
    if host not in LOOPBACK:
        way_out = f"leave --host away; from elsewhere: ssh -L PORT:{HOST}:PORT <this machine>, for both ports"
        raise ConfigError("--host", f"{host} can be reached by others, and the stack speaks no TLS", way_out)


def write_private(path: Path, text: str) -> None:
    """A file that only its owner reads, whole or not at all."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(fresh, path)


def read_state(folder: Path) -> dict[str, Any]:
    """What runs, as `up` left it; empty when nothing was ever started."""
    try:
        return read_object(str(folder / "state.json"))
    except (FileNotFoundError, DamageError):
        return {}
