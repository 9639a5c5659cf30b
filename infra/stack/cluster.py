"""Start a server of a cluster in its container: `python -m atelier.infra.stack.cluster prefect`, `services`
or `mlflow`; `check` only checks the secrets. All configuration is in the environment.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from atelier.engine.config.error import AtelierError, ConfigError
from atelier.infra.stack.settings import QUIET, USER, Credentials, mlflow_users, own_origins

PREFECT_PORT, MLFLOW_PORT = 4200, 5000  # inside the container; the compose file publishes them
EVERYWHERE = "0.0.0.0"
LOGIN, FLASK = "ATELIER_PASSWORD", "ATELIER_FLASK_KEY"
PREFECT_DB, MLFLOW_DB = "ATELIER_PREFECT_DB_PASSWORD", "ATELIER_MLFLOW_DB_PASSWORD"
REDIS = "ATELIER_REDIS_PASSWORD"
SECRETS = {  # required by each part
    "prefect": (LOGIN, PREFECT_DB, REDIS),
    "services": (PREFECT_DB, REDIS),
    "mlflow": (LOGIN, FLASK, MLFLOW_DB),
    "check": (LOGIN, FLASK, PREFECT_DB, MLFLOW_DB, REDIS),
}
SHORTEST, FEWEST = 16, 8  # fewest characters, and fewest distinct ones
KNOWN = re.compile(
    "passw|change|secret|prefect|postgres|mlflow|atelier|redis|admin|example|default|1234567|qwert",
    re.IGNORECASE,
)
WAY_OUT = "infra/docker/secrets makes a random one"


def check_secrets(part: str, given: Mapping[str, str]) -> None:
    """Raises ConfigError for a secret that is missing, guessable or used twice."""
    values: dict[str, str] = {}
    for name in SECRETS[part]:
        value = given.get(name, "")
        if not value:
            raise ConfigError(name, "is not set", WAY_OUT)
        if not re.fullmatch(r"[A-Za-z0-9_-]+", value):  # it is put into URLs and SQL
            raise ConfigError(name, "has other characters than letters, digits, - and _", WAY_OUT)
        if len(value) < SHORTEST or len(set(value)) < FEWEST or KNOWN.search(value):
            raise ConfigError(name, "is a default or can be guessed", WAY_OUT)
        if value in values:
            raise ConfigError(name, f"is the same as {values[value]}", WAY_OUT)
        values[value] = name


def own_urls(port: int, given: Mapping[str, str]) -> list[str]:
    """URLs of the server for clients: browsers (the first of $ATELIER_URLS), workers, health check."""
    urls = [url.rstrip("/") for url in given.get("ATELIER_URLS", "").split()]
    same = [url.replace("127.0.0.1", "localhost") for url in urls]
    return list(dict.fromkeys([*urls, *same, *own_origins(port)]))


def prefect(given: Mapping[str, str]) -> dict[str, str]:
    """Environment of Prefect's API and of its background services, which share database and redis."""
    redis = f"redis://:{given[REDIS]}@{given.get('ATELIER_REDIS_HOST', 'redis')}:6379"
    database = f"prefect:{given[PREFECT_DB]}@{given.get('ATELIER_POSTGRES_HOST', 'postgres')}:5432/prefect"
    urls = own_urls(PREFECT_PORT, given)
    return QUIET | {
        "PREFECT_API_DATABASE_CONNECTION_URL": f"postgresql+asyncpg://{database}",
        "PREFECT_MESSAGING_BROKER": "prefect_redis.messaging",
        "PREFECT_MESSAGING_CACHE": "prefect_redis.messaging",
        "PREFECT_SERVER_EVENTS_CAUSAL_ORDERING": "prefect_redis.ordering",
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect_redis.lease_storage",
        "PREFECT_REDIS_MESSAGING_URL": f"{redis}/0",
        "PREFECT_SERVER_DOCKET_URL": f"{redis}/1",
        "PREFECT_SERVER_API_AUTH_STRING": f"{USER}:{given.get(LOGIN, '')}",
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(urls),
        "PREFECT_UI_API_URL": f"{urls[0]}/api",
        "PREFECT_UI_STATIC_DIRECTORY": "/tmp/ui",  # the root file system is read-only
        "PREFECT_HOME": "/tmp/prefect",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    }


def mlflow(given: Mapping[str, str]) -> dict[str, str]:
    """Environment of MLflow, with its users in a separate database."""
    host = given.get("ATELIER_POSTGRES_HOST", "postgres")
    database = f"postgresql+psycopg://mlflow:{given[MLFLOW_DB]}@{host}:5432"
    login = Credentials(user=USER, password=given[LOGIN], flask_key=given[FLASK])
    users = f"{database}/mlflow_users"
    renew_login(users, login)
    return (
        QUIET
        | mlflow_users(Path("/tmp"), users, login)
        | {
            "MLFLOW_BACKEND_STORE_URI": f"{database}/mlflow",  # not an argument, which `ps` would show
            "MLFLOW_FLASK_SERVER_SECRET_KEY": login.flask_key,
        }
    )


def renew_login(database: str, login: Credentials) -> None:
    """Set the user's current password in MLflow's database: it may differ after a new .env or a restore."""
    from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore  # takes seconds

    store = SqlAlchemyStore()
    store.init_db(database)
    if store.has_user(login.user) and not store.authenticate_user(login.user, login.password):
        store.update_user(login.user, password=login.password)


def command(part: str, given: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Python arguments that run the part, and additions to its environment."""
    if part == "prefect":
        arguments = [
            "atelier.infra.stack.prefect_server",
            str(PREFECT_PORT),
            EVERYWHERE,
            *own_urls(PREFECT_PORT, given),
        ]
        return arguments, prefect(given) | {"PREFECT__SERVER_WEBSERVER_ONLY": "1"}
    if part == "services":
        return ["atelier.infra.stack.prefect_services"], prefect(given) | {
            "PREFECT_API_DATABASE_MIGRATE_ON_START": "false"
        }
    urls = own_urls(MLFLOW_PORT, given)
    hosts = [urlsplit(url).netloc for url in urls]
    arguments = ["atelier.infra.stack.mlflow_server", "--app-name", "basic-auth", "--workers", "1"]
    arguments += [
        "--host",
        EVERYWHERE,
        "--port",
        str(MLFLOW_PORT),
        "--artifacts-destination",
        given["ATELIER_ARTIFACTS"],
    ]
    arguments += ["--allowed-hosts", ",".join(hosts), "--cors-allowed-origins", ",".join(urls)]
    return arguments, mlflow(given)


def main(part: str) -> None:
    """Check the secrets and exec the part's process."""
    check_secrets(part, os.environ)
    if part == "check":
        return
    arguments, environment = command(part, os.environ)
    kept = {key: value for key, value in os.environ.items() if key not in SECRETS["check"]}
    os.execve(sys.executable, [sys.executable, "-m", *arguments], kept | environment)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except AtelierError as error:
        sys.exit(str(error))
