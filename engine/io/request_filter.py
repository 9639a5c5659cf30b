"""Refuse web requests from pages of other sites (CSRF) and under foreign host names (DNS rebinding).

A server that listens on loopback is reached by every page that is open in a browser of its machine. This file
imports nothing of the project: registered models carry it to the server that MLflow starts.
"""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from ipaddress import IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]  # as ASGI has it
Message = MutableMapping[str, Any]  # as above
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
REFUSED = "this server answers only to its own address and its own pages"


class RequestFilter:
    """ASGI middleware: passes requests to the server's own URLs and from their pages, refuses others with
    403. Without `own` these are loopback and the address at which the request arrived, and `more`, hosts as
    "model.example" or "model.example:8443". `advice` ends what a refused client reads.
    """

    def __init__(
        self, app: Application, own: Iterable[str] = (), *, more: Iterable[str] = (), advice: str = ""
    ) -> None:
        self._app = app
        self._origins = frozenset(url.lower() for url in own)
        self._more = [host.lower() for host in more]
        self._refusal = (REFUSED + advice).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_own(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await answer(send, 403, "text/plain", self._refusal)
        else:
            await send({"type": "websocket.close", "code": 1008})  # before accepting: HTTP status 403

    def _is_own(self, scope: Scope) -> bool:
        own = self._origins or self._here(scope.get("server"))
        hosts = [value.lower() for name, value in scope["headers"] if name == b"host"]
        origins = {value.lower() for name, value in scope["headers"] if name == b"origin"}
        return (
            len(hosts) == 1
            and hosts[0] in {urlsplit(url).netloc.encode() for url in own}
            and origins <= {url.encode() for url in own}
        )

    def _here(self, server: tuple[str, int | None] | None) -> frozenset[str]:
        name, port = server or ("", None)
        hosts = {f"{each}:{port}" for each in (*LOOPBACK, host_of(name))} if port else set[str]()
        return frozenset(f"{kind}://{host}" for host in {*hosts, *self._more} for kind in ("http", "https"))


def host_of(name: str) -> str:
    """An address as it stands in a URL."""
    try:
        address = ip_address(name)
    except ValueError:
        return name.lower()
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or f"[{address}]")
    return str(address)


async def answer(send: Send, status: int, kind: str, body: bytes) -> None:
    """Send a whole answer."""
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
