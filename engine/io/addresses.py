"""Which addresses a source may be read from if a form chose it: public ones, and those that the operator
names. Otherwise a form could read services that only this machine or network should reach (server-side
request forgery). Torch-free.

A name is checked by the addresses that it resolves to when connecting, whatever it resolved to before and
whoever redirected there.
"""

import errno
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

from atelier.engine.config.error import ConfigError, printable

NAMED = "ATELIER_FORM_ADDRESSES"  # environment variable: forms choose sources; its value lists further hosts
WAY_OUT = f"{NAMED} in the environment of `atelier up` or `atelier worker` lists further readable hosts"
CLOSED = tuple(
    map(
        ip_network,
        (
            "fec0::/10",  # site-local, before fd00::/8
            "3fff::/20",  # for documentation
            "168.63.129.16/32",  # Azure's platform: credentials and extensions of the machine
            "192.0.0.0/24",  # of protocols; Oracle's platform at 192.0.0.192
            "192.88.99.0/24",  # relays of 6to4
        ),
    )
)  # refused, though ipaddress says "global"
NOWHERE = ("192.0.2.1", "2001:db8::1")  # for documentation; no machine has them
PORTS = {"http": 80, "https": 443}
CHECKED = tuple(PORTS)  # schemes whose every connection is checked
# schemes without a host: it is fixed, in the environment, or does not exist
HOSTLESS = (
    "", "file", "local", "memory", "data", "hf", "github", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss",
    "adl", "zip", "tar", "simplecache", "filecache", "blockcache", "sqlite", "models",
)  # fmt: skip
INNER = (
    ip_network("64:ff9b::/96"),
    ip_network("2002::/16"),
)  # IPv6 ranges that map to IPv4 addresses: NAT64, 6to4
KIND = re.compile(r"[A-Za-z][\w+.-]+")
LINK = re.compile(r"[A-Za-z][\w+-]+")  # in a chain, fsspec takes a bare word for a scheme; a file has a dot
Address = IPv4Address | IPv6Address
Resolve = Callable[[str], Iterable[str]]


def resolved(name: str) -> list[str]:
    """The addresses of a name; none if it is unknown."""
    with suppress(OSError, UnicodeError):
        return [str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    return []


def is_public(text: str) -> bool:
    """Whether an address is on the public Internet, not of this machine, its networks or its cloud."""
    address = inner(ip_address(text))
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    return not any(address in network for network in CLOSED) and not _is_own(address)


def _is_own(address: Address) -> bool:
    """Whether an interface of this machine has the address. If the system lets any address be bound, none
    counts as its own.
    """
    return _can_bind(str(address)) and not _can_bind(NOWHERE[isinstance(address, IPv6Address)])


def _can_bind(text: str) -> bool:
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((text, 0))
    except OSError:
        return False
    return True


def inner(address: Address) -> Address:
    """The IPv4 address that an IPv6 address maps to."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in INNER[0]:
            return IPv4Address(int(address) & 0xFFFFFFFF)
        if address in INNER[1]:
            return IPv4Address(int(address) >> 80 & 0xFFFFFFFF)
    return address


def is_allowed(text: str, port: int, named: str, resolve: Resolve = resolved) -> bool:
    """Whether an address may be connected to: a public one, or one in `named`."""
    return is_public(text) or _is_named(text, port, named, resolve)


def _is_named(text: str, port: int, named: str, resolve: Resolve) -> bool:
    """Whether an address is in `named`: hosts, networks and host:port, separated by commas or blanks."""
    address = inner(ip_address(text))
    for entry in named.replace(",", " ").split():
        host, number = _split(entry)
        if number in (None, port) and any(address in network for network in _networks(host, resolve)):
            return True
    return False


def _split(entry: str) -> tuple[str, int | None]:
    """Host and port of an entry; IPv6 addresses with a port are in brackets."""
    if entry.startswith("["):
        host, _, port = entry[1:].partition("]")
        return host, int(port[1:]) if port[1:].isdecimal() else None
    host, mark, port = entry.rpartition(":")
    return (host, int(port)) if mark and port.isdecimal() and ":" not in host else (entry, None)


def _networks(host: str, resolve: Resolve) -> Iterator[Any]:
    try:
        yield ip_network(host, strict=False)
    except ValueError:
        for text in resolve(host):
            yield ip_network(inner(ip_address(text)))


def check_address(url: str, place: str, named: str | None = None) -> None:
    """Raise ConfigError for an address that a form may not use: of a scheme whose connections are not
    checked, or with a host written as a refused address. Names are not resolved here.
    """
    named = os.environ.get(NAMED, "") if named is None else named
    for part in url.split("::"):
        kind, mark, _ = part.partition("://")
        is_kind = KIND.fullmatch(kind) if mark else "::" in url and LINK.fullmatch(kind)
        kind = kind.lower() if is_kind else ""  # other text opens nothing
        if kind.partition("+")[0] in HOSTLESS:
            continue
        try:
            found = urlsplit(part)
            host, port = found.hostname or "", found.port or PORTS.get(kind, 0)
        except ValueError as error:
            raise ConfigError(place, f"{printable(part, 80)} is not an address ({error})", WAY_OUT) from None
        problem = _fault(kind, host, port, named)
        if problem:
            raise ConfigError(place, problem, WAY_OUT)


def _fault(kind: str, host: str, port: int, named: str) -> str:
    """The reason why a form may not use a host; '' if it may."""
    if is_named(host, port, named):
        return ""
    if kind not in CHECKED:
        return f"{printable(kind, 40)}:// names a host; forms may read hosts only by http and https"
    if not host:
        return "names no host"
    text = written(host)
    return (
        f"{printable(host, 80)} is not a public address" if text and not is_allowed(text, port, named) else ""
    )


def is_named(host: str, port: int, named: str | None = None) -> bool:
    """Whether the operator lists a host as written: its name, or an address in a network. Names are not
    resolved.
    """
    named = os.environ.get(NAMED, "") if named is None else named
    entries = [_split(entry.lower()) for entry in named.replace(",", " ").split()]
    if (host, None) in entries or (host, port) in entries:
        return True
    text = written(host)
    return bool(text) and _is_named(text, port, named, lambda name: ())


def with_hosts(named: str, urls: Iterable[str]) -> str:
    """Add to `named` the hosts of `urls` that are written as addresses, with their ports. Host names are not
    added, because they may resolve differently later.
    """
    found = [urlsplit(url) for url in urls if url.startswith(tuple(f"{kind}://" for kind in CHECKED))]
    texts = [(written(one.hostname or ""), one.port or PORTS[one.scheme]) for one in found]
    hosts = [f"[{text}]:{port}" if ":" in text else f"{text}:{port}" for text, port in texts if text]
    return " ".join(filter(None, (named, *hosts)))


def written(host: str) -> str:
    """The address that a host is written as, in any form (0x7f.1, 2130706433, localhost); '' for a name."""
    host = host.rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return "127.0.0.1"
    with suppress(ValueError):
        return str(ip_address(host.partition("%")[0]))
    with suppress(OSError):
        return socket.inet_ntoa(socket.inet_aton(host))
    return ""


def open_socket(found: tuple[Any, ...]) -> socket.socket:
    """A socket for one of getaddrinfo's rows. Raises PermissionError for a refused address."""
    family, kind, protocol, _, (host, port, *_) = found
    if not is_allowed(str(host).partition("%")[0], int(port), os.environ.get(NAMED, "")):
        raise PermissionError(errno.EACCES, f"{host} is not a public address; {NAMED} lists further ones")
    return socket.socket(family, kind, protocol)


async def checked_client(**given: Any) -> Any:  # types of aiohttp, an optional package
    """An HTTP client that connects only to allowed addresses, also after redirects."""
    import aiohttp  # optional

    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(socket_factory=open_socket), **given)
