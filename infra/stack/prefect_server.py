"""Prefect's server behind a request filter: `python -m atelier.infra.stack.prefect_server <port>`, in a
container `python -m atelier.infra.stack.prefect_server <port> <address to listen on> <its own URLs>`.

Prefect's middleware checks the password but accepts any host name. The filter first refuses requests from
pages of other sites (CSRF) and under foreign host names (DNS rebinding).
"""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import uvicorn
from prefect.server.api.server import create_app
from prefect.settings import get_current_settings

from atelier.engine.io.request_filter import Application, RequestFilter
from atelier.infra.stack.prefect_database import make_tables, one_writer
from atelier.infra.stack.settings import HOST, own_origins

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application


def filtered(own: Iterable[str]) -> "ASGI3Application":
    """Prefect's server as an application that answers only to its own URLs."""
    return cast("ASGI3Application", RequestFilter(cast(Application, create_app(final=True)), own))


def main(port: int, host: str = HOST, *own: str) -> None:
    """Serve until SIGTERM, as `prefect server start`; all else is configured by PREFECT_... variables."""
    server = get_current_settings().server
    one_writer()
    make_tables()
    uvicorn.run(
        filtered(own or own_origins(port)),
        host=host,
        port=port,
        log_level=server.logging_level.lower(),
        timeout_keep_alive=server.api.keepalive_timeout,
        ws_ping_interval=server.api.websocket_ping_interval,
        ws_ping_timeout=server.api.websocket_ping_timeout,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
