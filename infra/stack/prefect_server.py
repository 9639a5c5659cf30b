"""Prefect's server behind a request filter: `python -m atelier.infra.stack.prefect_server <port>`, in a
container `python -m atelier.infra.stack.prefect_server <port> <address to listen on> <its own URLs>`.

Prefect's middleware checks the password but accepts any host name. The filter first refuses requests from
pages of other sites (CSRF) and under foreign host names (DNS rebinding).
"""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import uvicorn
from prefect.server.api.server import create_app
from prefect.settings import get_current_settings

from atelier.infra.stack.prefect_database import make_tables, one_writer
from atelier.infra.stack.settings import HOST, own_origins

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope


REFUSED = b"this server answers only to its own address and its own pages"


class RequestFilter:
    """ASGI middleware: passes requests to the server's own URLs and from their pages, refuses others with
    403.
    """

    def __init__(self, app: "ASGI3Application", own: Iterable[str]) -> None:
        self._app = app
        self._origins = {url.lower().encode() for url in own}
        self._hosts = {urlsplit(origin).netloc for origin in self._origins}

    async def __call__(
        self, scope: "Scope", receive: "ASGIReceiveCallable", send: "ASGISendCallable"
    ) -> None:
        if scope["type"] == "lifespan" or self._is_own(scope["headers"]):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(REFUSED)).encode())]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": REFUSED})
        else:
            await send({"type": "websocket.close", "code": 1008})  # before accepting: HTTP status 403

    def _is_own(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        hosts = {value.lower() for name, value in headers if name == b"host"}
        origins = {value.lower() for name, value in headers if name == b"origin"}
        return len(hosts) == 1 and hosts <= self._hosts and origins <= self._origins


def main(port: int, host: str = HOST, *own: str) -> None:
    """Serve until SIGTERM, as `prefect server start`; all else is configured by PREFECT_... variables."""
    server = get_current_settings().server
    one_writer()
    make_tables()
    uvicorn.run(
        RequestFilter(cast("ASGI3Application", create_app(final=True)), own or own_origins(port)),
        host=host,
        port=port,
        log_level=server.logging_level.lower(),
        timeout_keep_alive=server.api.keepalive_timeout,
        ws_ping_interval=server.api.websocket_ping_interval,
        ws_ping_timeout=server.api.websocket_ping_timeout,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
