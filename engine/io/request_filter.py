"""Refuse web requests from other sites' pages (CSRF), under foreign host names (DNS rebinding), and with
unreadable bodies.

Every page open in a browser can reach a loopback server of its machine. This file imports nothing of the
project, because registered models carry it to the server that MLflow starts.
"""

import json
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
PORTS = {"http": 80, "https": 443}  # schemes, each with the port that clients leave out
REFUSED = "this server answers only to its own address and its own pages"


class RequestFilter:
    """ASGI middleware: passes requests to the server's own URLs and from their pages, refuses others with
    403. Without `own` these are loopback, the address at which the request arrived, and `more`, hosts such as
    "model.example" or "model.example:8443". `advice`: end of the refusal's text.
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
            await send({"type": "websocket.close", "code": 1008})  # before accepting, so HTTP status 403

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
        names = (*LOOPBACK, host_of(name)) if port else ()
        hosts = {*(f"{each}:{port}" for each in names), *self._more}
        unsaid = {f"{kind}://{each}" for kind, usual in PORTS.items() if port == usual for each in names}
        return frozenset(f"{kind}://{host}" for host in hosts for kind in PORTS) | unsaid


class BodyFilter:
    """ASGI middleware: passes on a POST to `path` as the JSON that `read` makes from content type and body. A
    `refusal` that `read` raises, an exception with a status, is answered in one line. A body is read up to
    `most` bytes and one more part.
    """

    def __init__(
        self,
        app: Application,
        path: str,
        read: Callable[[str, bytes], bytes],
        refusal: type[Exception],
        most: int,
    ) -> None:
        self._app, self._path, self._read, self._refusal, self._most = app, path, read, refusal, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != self._path or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        kinds = [value.decode("latin-1") for name, value in scope["headers"] if name == b"content-type"]
        try:
            body = self._read(",".join(kinds), await self._whole(receive))
        except self._refusal as refused:
            told = json.dumps({"error_code": "BAD_REQUEST", "message": str(refused)})
            await answer(send, getattr(refused, "status", 400), "application/json", told.encode())
            return
        replaced = {b"content-type": b"application/json", b"content-length": str(len(body)).encode()}
        headers = [pair for pair in scope["headers"] if pair[0] not in (*replaced, b"transfer-encoding")]
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def received() -> Message:
            return messages.pop() if messages else await receive()

        await self._app({**scope, "headers": [*headers, *replaced.items()]}, received, send)

    async def _whole(self, receive: Receive) -> bytes:
        body, has_more = bytearray(), True
        while has_more and len(body) <= self._most:
            message = await receive()
            body += message.get("body", b"")
            has_more = message.get("more_body", False)
        return bytes(body)


def host_of(name: str) -> str:
    """An address as written in a URL."""
    try:
        address = ip_address(name)
    except ValueError:
        return name.lower()
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or f"[{address}]")
    return str(address)


async def answer(send: Send, status: int, kind: str, body: bytes) -> None:
    """Send a complete answer."""
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
