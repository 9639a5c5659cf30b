"""Choose the MLflow tracking URI and the credential that may be sent to it.

MLflow's client takes user, password and token from the environment and sends them to any server. So the
environment must hold those of the server in use, and no others.
"""

import os
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from atelier.engine.config.error import ConfigError, printable
from atelier.engine.io.addresses import PORTS, WAY_OUT, is_named
from atelier.engine.io.proxies import LOOPBACK, exempt_loopback
from atelier.infra.stack.stack import Stack
from atelier.infra.store.store import Store
from atelier.infra.tracking.own_database import check_uri, settle

URI = "MLFLOW_TRACKING_URI"
CREDENTIALS = (
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_AUTH",  # a plugin that signs every request
)
_hidden: dict[str, str] = {}  # the user's, while another server is in use
_lent: dict[str, str] = {}  # the stack's, set by this process


def tracking_address(given: str, store: Store) -> str:
    """Tracking URI for runs of `store`: `given`, else $MLFLOW_TRACKING_URI, else its stack's server while
    that runs, else a database in its folder.

    Also sets the credential for that address in the environment: the stack's for the stack's server, the
    user's for $MLFLOW_TRACKING_URI, none for any other; and exempts loopback from proxies. Raises ConfigError
    for an unusable sqlite database.
    """
    exempt_loopback(os.environ)
    _restore()
    stack, users = Stack(store.root).tracking(), os.environ.get(URI, "")
    uri = given or users or stack.get(URI, "")
    if uri:
        check_uri(uri)
    else:
        uri = settle(store)
    if is_same_server(uri, users) and any(key in os.environ for key in CREDENTIALS):
        return uri
    for key in CREDENTIALS:
        if key in os.environ:
            _hidden[key] = os.environ.pop(key)
    if is_same_server(uri, stack.get(URI, "")):
        _lent.update({key: value for key, value in stack.items() if key != URI})
        os.environ.update(_lent)
    return uri


def check_form_uri(uri: str, root: str, own: Iterable[str]) -> None:
    """Raises ConfigError for a tracker that a form may not use. Allowed are: empty, `own`, the environment's,
    the stack's, and hosts that the operator names. MLflow's client connects itself, and follows names and
    redirects to any address.
    """
    known = {"", *own, os.environ.get(URI, ""), Stack(root).tracking().get(URI, "")}
    if uri in known or any(is_same_server(uri, each) for each in known):
        return
    try:
        found = urlsplit(uri)
        host, port = found.hostname or "", found.port or PORTS.get(found.scheme, 0)
    except ValueError:
        host, port = "", 0
    if not host or not is_named(host, port):
        problem = f"{printable(uri, 80)} is not the stack's tracker, and a form may use no other"
        raise ConfigError("tracker.uri", problem, f"leave it out; {WAY_OUT}")


def _restore() -> None:
    """Restore the user's credentials."""
    for key, value in _lent.items():
        if os.environ.get(key) == value:
            del os.environ[key]
    for key, value in _hidden.items():
        os.environ.setdefault(key, value)
    _lent.clear()
    _hidden.clear()


def is_same_server(one: str, other: str) -> bool:
    """True for two addresses of one web server, however they are spelled."""
    return _server(one) == _server(other) != ()


def _server(url: str) -> tuple[str, str, int] | tuple[()]:
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS[parts.scheme]
    except (ValueError, KeyError):
        return ()
    host = parts.hostname or ""
    return (parts.scheme, LOOPBACK[0] if host in LOOPBACK else host, port) if host else ()


def without_secret(text: str) -> str:
    """`text` without user and password in its URLs."""
    return re.sub(r"//[^/@\s]*@", "//", text)
