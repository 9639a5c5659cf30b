"""Addresses that a form names, drawn: every notation, names that lead to this machine, redirects, userinfo,
ports, fragments, chains and other kinds. None leads to a service of this machine that the operator has not
named, and none to an address that is not public.

Host names are resolved from the case, without a network. No connection is made to another machine's address.
"""

import http.server
import ipaddress
import random
import socket
import threading
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from fsspec.implementations.http import HTTPFileSystem

from atelier.engine.config.data import Source
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.io import addresses, remote
from atelier.engine.io.addresses import NAMED, check_address
from atelier.engine.io.source_files import content_id, files_of
from tests.foreign.search import Case

COUNT = 40
INSIDE = ["127.0.0.1", "127.0.0.2", "0.0.0.0", "127.255.255.254"]
CLOSED = [
    "10.0.0.1",
    "172.31.255.255",
    "192.168.0.1",
    "169.254.169.254",
    "100.64.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "168.63.129.16",
    "192.0.0.192",
    "192.88.99.1",
]
NAMES = ["evil.example", "localtest.me", "a.b", "xn--nxasmq6b", "LOCALHOST", "localhost", "localhost.",
    "x.localhost",
         "metadata.google.internal", "127.0.0.1.nip.io", "ip6-localhost"]  # fmt: skip
KINDS = ["http", "http", "http", "http", "https", "HTTP", "ftp", "sftp", "smb", "webhdfs", "reference", "git",
         "github", "jupyter", "gopher", "dict", "ldap", "postgresql", "http+unix", "x"]  # fmt: skip
PATHS = ["/creds.txt", "/creds?x=.txt", "/creds#.txt", "/a/../creds.txt", "/creds%2etxt", "/moved.txt",
    "//creds.txt",
         "/creds.txt?a=b", "/*.txt", "/", "", "/creds.jsonl", "/creds.txt.gz",
         "/creds.txt\r\nHost: x"]  # fmt: skip
WRAPS = [
    "",
    "",
    "",
    "",
    "",
    "simplecache::",
    "filecache::",
    "zip://a.txt::",
    "tar://a.txt::",
    "blockcache::",
    "dir::",
]
USERS = [
    "",
    "",
    "",
    "",
    "user@",
    "example.org@",
    "user:word@",
    "[::1]@",
    "example.org\\@",
    "example.org#@",
    "a%40b@",
]


def notations(address: str) -> list[str]:
    """Ways to write an IPv4 address."""
    one, two, three, four = (int(part) for part in address.split("."))
    whole = int(ipaddress.IPv4Address(address))
    return [
        address, str(whole), hex(whole), f"0{whole:o}", f"{one}.{whole & 0xFFFFFF}",
        f"{one}.{two}.{three * 256 + four}",
        f"0x{one:x}.0x{two:x}.0x{three:x}.0x{four:x}", f"0{one:o}.0{two:o}.0{three:o}.0{four:o}",
        f"{address}.",
        f"[::ffff:{address}]", f"[::ffff:{whole >> 16:x}:{whole & 0xFFFF:x}]", f"[64:ff9b::{address}]",
        f"[2002:{whole >> 16:x}:{whole & 0xFFFF:x}::]", f"[::{address}]",
        address.translate(str.maketrans("0127", "０１２７")),
        address.replace(".", "。"), f"{address}%00", f"%31{address[1:]}",
    ]  # fmt: skip


def draw(rng: random.Random) -> Case:
    host = rng.choice([
        rng.choice(notations(rng.choice(INSIDE))), rng.choice(notations(rng.choice([*INSIDE, *CLOSED]))),
        rng.choice(NAMES), "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::1%25lo]", "[fe80::1]", "",
    ])  # fmt: skip
    return {
        "url": [rng.choice(WRAPS), rng.choice(KINDS), rng.choice(USERS), host, rng.choice(PATHS)],
        "leads": rng.choice(
            [*INSIDE, *CLOSED, "::1", "::ffff:127.0.0.1", "fe80::1", "fec0::1", "93.184.216.34"]
        ),
        "redirect": rng.choice([*INSIDE, "localhost", "[::1]", "2130706433", "evil.example"]),
        "named": rng.choice(["", "", "", "10.0.0.1", "example.org", "127.0.0.9, data.internal", ",,"]),
    }


class Service(http.server.BaseHTTPRequestHandler):
    """One of this machine, which nobody should reach."""

    num_asked = 0

    def do_GET(self) -> None:
        type(self).num_asked += 1
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.send_header("ETag", "1")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(b"secret")

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None: ...


class Gate(Service):
    """One that the operator has named; it leads to another."""

    target = ""

    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("Location", self.target)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET


@cache
def port_of(kind: type[Service]) -> int:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server.server_address[1]


class Open(Service):
    """One that the operator has named."""


def check(case: Case, folder: Path) -> str:
    port, gate, free = port_of(Service), port_of(Gate), port_of(Open)
    wrap, kind, user, host, path = case["url"]
    Gate.target = f"http://{case['redirect']}:{port}/creds.txt"
    asked, found, connect = Service.num_asked, socket.getaddrinfo, socket.socket.connect
    tried = set[str]()

    def lookup(name: Any, *more: Any, **named: Any) -> Any:
        text = name.decode() if isinstance(name, bytes) else str(name)
        is_name = addresses.written(text.lower()) == "" and not text.startswith("[")
        leads = "93.184.216.34" if text in case["named"] else case["leads"]  # the operator knows where
        return found(leads if is_name else name, *more, **named)

    def near(one: socket.socket, place: Any) -> None:
        """Connects on this machine alone."""
        tried.add(str(place[0]))
        if isinstance(place, tuple) and not ipaddress.ip_address(place[0].partition("%")[0]).is_loopback:
            raise ConnectionRefusedError(place)
        connect(one, place)

    urls = [f"{wrap}{kind}://{user}{host}:{port}{path}", f"http://127.0.0.1:{gate}{path}"]
    urls.append(f"http://127.0.0.1:{free}/creds.txt")
    named = f"{case['named']} 127.0.0.1:{gate} 127.0.0.1:{free}"
    outcomes = []
    with (
        mock.patch.dict("os.environ", {NAMED: named}),
        mock.patch.object(socket, "getaddrinfo", lookup),
        mock.patch.object(socket.socket, "connect", near),
    ):
        for url in urls:
            try:
                check_address(url, "data.source")
                for one in files_of(Source(source=url)):
                    content_id(one)
                outcomes.append("works")
            except (ConfigError, DataError) as error:
                assert "\n" not in str(error) and len(str(error)) < 700, str(error)
                outcomes.append("refused")
            finally:
                HTTPFileSystem.clear_instance_cache()
    assert Service.num_asked == asked, f"{urls} reached a service of this machine"
    closed = {each for each in (*CLOSED, "fec0::1", "fe80::1") if each not in case["named"]}
    assert not tried & closed, f"{urls} led to {tried & closed}"
    assert outcomes[-1] == "works", "what the operator has named is refused"
    return outcomes[0]


def broken() -> AbstractContextManager[object]:
    """Connections are not checked: only the written address is."""
    return mock.patch.object(remote, "checked_client", _client)


async def _client(**given: Any) -> Any:
    import aiohttp

    return aiohttp.ClientSession(**given)
