"""Exempt loopback from the environment's proxies, so that local programs connect directly."""

from collections.abc import MutableMapping
from importlib.util import find_spec

LOOPBACK = ("127.0.0.1", "localhost", "::1")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "ws_proxy", "wss_proxy")
EXEMPT = "no_proxy"
ONLY_GRPC = "no_grpc_proxy"  # if it is set, gRPC does not read no_proxy
SOCKS = "socksio"  # without this package HTTP clients do not start if a SOCKS proxy is set


def exempt_loopback(environment: MutableMapping[str, str]) -> list[str]:
    """Add loopback to the hosts without proxy; the user's exemptions stay. Both spellings are set, because
    some libraries read only one. Without a proxy nothing changes: on macOS `no_proxy` alone hides the
    system's proxies.

    A SOCKS proxy that no installed package supports is removed. Returns a note for each.
    """
    notes = []
    for name in _given(environment):
        if environment[name].lower().startswith("socks") and find_spec(SOCKS) is None:
            del environment[name]
            notes.append(f"{name} is not used: a SOCKS proxy needs the package {SOCKS}")
    if _given(environment):
        small, large = environment.get(EXEMPT), environment.get(EXEMPT.upper())
        environment[EXEMPT] = _extended(small if small is not None else large or "")
        environment[EXEMPT.upper()] = _extended(large if large is not None else small or "")
        if environment.get(ONLY_GRPC):
            environment[ONLY_GRPC] = _extended(environment[ONLY_GRPC])
    return notes


def _given(environment: MutableMapping[str, str]) -> list[str]:
    spelled = [word for name in PROXIES for word in (name, name.upper())]
    return [name for name in spelled if environment.get(name)]


def _extended(given: str) -> str:
    """The list plus missing loopback names, IPv6 without brackets, which httpx does not read. "*" exempts
    everything, but only alone.
    """
    words = [word.strip().removeprefix("[").removesuffix("]") for word in given.split(",") if word.strip()]
    return ",".join(words if words == ["*"] else [*words, *(name for name in LOOPBACK if name not in words)])
