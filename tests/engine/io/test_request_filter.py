"""Requests that a server on this machine accepts."""

import asyncio

import pytest

from atelier.engine.io.request_filter import Message, Receive, RequestFilter, Scope, Send
from atelier.infra.stack.settings import own_origins

OWN = [(b"host", b"127.0.0.1:4200")]
FOREIGN = [
    [],
    [(b"host", b"evil.example")],
    [(b"host", b"127.0.0.1:4201")],
    [*OWN, (b"host", b"evil.example")],
    [*OWN, *OWN],
    [*OWN, (b"origin", b"null")],
    [*OWN, (b"origin", b"http://127.0.0.1:4201")],
    [*OWN, (b"origin", b"http://127.0.0.1:4200"), (b"origin", b"http://evil.example")],
]


SERVED = ("127.0.0.1", 4200)


def outcomes(gate_of: str, kind: str, *requests: list[tuple[bytes, bytes]], **scope: object) -> list[object]:
    """For each request "passed", or the status or code with which it was refused."""
    sent: list[object] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        sent.append("passed")

    async def send(message: Message) -> None:
        if "body" not in message:
            sent.append(message.get("status", message.get("code")))

    async def receive() -> Message:
        raise AssertionError("a body is read before the request is let in")

    gate = (
        RequestFilter(app, own_origins(4200))
        if gate_of == "its URLs"
        else RequestFilter(app, more=["Model.example", "10.0.0.7:81"])
    )
    for headers in requests:
        asyncio.run(gate({"type": kind, "headers": headers, "server": SERVED} | scope, receive, send))
    return sent


@pytest.mark.parametrize("gate_of", ["its URLs", "its address"])
@pytest.mark.parametrize(("kind", "refused"), [("http", 403), ("websocket", 1008)])
def test_its_own_address_and_pages_are_let_in_and_nothing_else(gate_of: str, kind: str, refused: int) -> None:
    assert outcomes(gate_of, kind, *FOREIGN) == [refused] * len(FOREIGN)
    own = [OWN, [(b"host", b"LOCALHOST:4200")], [*OWN, (b"origin", b"http://localhost:4200")]]
    assert outcomes(gate_of, kind, *own) == ["passed"] * len(own)


def test_an_address_at_which_the_request_arrived_and_named_hosts_are_own_too() -> None:
    for server, host in ((("192.168.1.5", 81), b"192.168.1.5:81"), (("::ffff:10.1.1.1", 81), b"10.1.1.1:81"),
                         (("fe80::1", 81), b"[fe80::1]:81")):  # fmt: skip
        assert outcomes("its address", "http", [(b"host", host)], server=server) == ["passed"]
        assert outcomes("its address", "http", [(b"host", b"10.9.9.9:81")], server=server) == [403]
    named = [
        [(b"host", b"model.example"), (b"origin", b"https://model.example")],
        [(b"host", b"10.0.0.7:81")],
    ]
    assert outcomes("its address", "http", *named) == ["passed"] * 2
    assert outcomes("its address", "http", [(b"host", b"model.example:81")]) == [403]
    assert outcomes("its address", "http", [(b"host", b"")], server=None) == [403]


def test_clients_leave_the_usual_port_out() -> None:
    for port, kind, other in ((80, b"http", b"https"), (443, b"https", b"http")):
        for host in (b"localhost", b"192.168.1.5", b"localhost:%d" % port):
            own = [(b"host", host), (b"origin", kind + b"://" + host)]
            assert outcomes("its address", "http", own, server=("192.168.1.5", port)) == ["passed"]
        foreign = [
            [(b"host", b"evil.example")],
            [(b"host", b"localhost"), (b"origin", other + b"://localhost")],
        ]
        assert outcomes("its address", "http", *foreign, server=("192.168.1.5", port)) == [403] * 2
    assert outcomes("its address", "http", [(b"host", b"localhost")], server=("127.0.0.1", 81)) == [403]
