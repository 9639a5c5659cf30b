"""`atelier site <act>`: this site's key, the sites that it trusts, and its agent."""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.io.storage import is_local
from atelier.infra.sites.keys import Keys

KEYS = "ATELIER_SITE"


def run(options: argparse.Namespace) -> int:
    """Raises ConfigError for an act that there is not, or one that lacks a word."""
    if options.act not in ACTS:
        near = nearest(options.act, ACTS)
        raise ConfigError(
            "site",
            f"no act {options.act!r}",
            f"did you mean {near}?" if near else f"there are: {', '.join(ACTS)}",
        )
    folder = options.keys or os.environ.get(KEYS) or "~/.config/atelier/site"
    return ACTS[options.act](Keys(Path(folder).expanduser()), options)


def _create(keys: Keys, options: argparse.Namespace) -> int:
    made = Keys.create(keys.folder, _word(options, "the site's name"), options.address or "")
    print(
        f"{made.card.site}: key and certificate in {made.folder}; atelier site card prints what others accept"
    )
    return 0


def _card(keys: Keys, options: argparse.Namespace) -> int:
    print(keys.card.text.decode(), end="")
    return 0


def _accept(keys: Keys, options: argparse.Namespace) -> int:
    place = _word(options, "a file with the card of another site, - for stdin")
    try:
        text = sys.stdin.buffer.read() if place == "-" else Path(place).read_bytes()
    except OSError as error:
        raise ConfigError("site accept", f"{place} cannot be read ({error.strerror})") from None
    card = keys.accept(text, place)
    where = card.address or "no address, it dials out"
    print(f"{card.site} is trusted: certificate {card.digest[:16]}, {where}")
    return 0


def _peers(keys: Keys, options: argparse.Namespace) -> int:
    for name, card in keys.peers.items():
        print(f"{name:<16} {card.digest[:16]}  {card.address}")
    return 0


def _revoke(keys: Keys, options: argparse.Namespace) -> int:
    keys.revoke(_word(options, "a site that is trusted"))
    return 0


def _rotate(keys: Keys, options: argparse.Namespace) -> int:
    keys.rotate()
    print(f"a new certificate: {keys.card.digest[:16]}; peers have to accept the new card")
    return 0


def _serve(keys: Keys, options: argparse.Namespace) -> int:
    """Run the agent until it is ended."""
    if find_spec("grpc") is None:
        raise ConfigError("site serve", "needs the package grpcio", "pip install grpcio (the extra sites)")
    from atelier.infra.sites.agent import Agent  # now: gRPC takes a third of a second

    if not options.mailbox or not is_local(options.mailbox):
        problem = "is no folder of this machine" if options.mailbox else "is missing"
        raise ConfigError("--mailbox", problem, "the folder of messages, train.link.mailbox of its runs")
    card, stop = keys.card, threading.Event()
    port = card.address.rpartition(":")[2] or "0"
    agent = Agent(keys, str(Path(options.mailbox).absolute()))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: stop.set())
    listen = options.listen or f"127.0.0.1:{port}"
    found = agent.serve(listen)
    print(f"{card.site} listens at {listen.rpartition(':')[0]}:{found}", flush=True)
    agent.run(stop, lambda text: print(text, file=sys.stderr, flush=True))
    agent.stop()
    return 0


def _word(options: argparse.Namespace, about: str) -> str:
    if not options.what:
        raise ConfigError(f"site {options.act}", "a word is missing", f"give {about}")
    return options.what


ACTS: dict[str, Callable[[Keys, argparse.Namespace], int]] = {
    "create": _create,
    "card": _card,
    "accept": _accept,
    "peers": _peers,
    "revoke": _revoke,
    "rotate": _rotate,
    "serve": _serve,
}
