"""`atelier site <act>`: this site's key, the sites that it trusts, and its agent."""

import argparse
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from atelier.engine.config.error import ConfigError, DamageError, nearest, printable
from atelier.engine.io.storage import is_local
from atelier.engine.io.user_folders import expanded
from atelier.flows.run.pools import check_policy
from atelier.infra.sites.desk import Cancellation, OrderDesk
from atelier.infra.sites.keys import AUDIT, Card, Keys, check_address, is_listened_at, keys_folder, now
from atelier.infra.sites.order_runner import OrderRunner
from atelier.infra.sites.policy import Policies, SitePolicy
from atelier.infra.store.store import Store, default_root

if TYPE_CHECKING:
    from atelier.infra.sites.agent import Agent

LOOK_EVERY = 0.2  # seconds
SOON = timedelta(days=30)  # until a certificate ends


def run(options: argparse.Namespace) -> int:
    """Raises ConfigError for an act that there is not, or one that lacks a word."""
    if options.act not in ACTS:
        near = nearest(options.act, ACTS)
        raise ConfigError(
            "site",
            f"no act {options.act!r}",
            f"did you mean {near}?" if near else f"there are: {', '.join(TAKES)}",
        )
    _check_options(options)
    folder = expanded(options.keys, "--keys").absolute() if options.keys else keys_folder()
    return ACTS[options.act](Keys(folder), options)


def _check_options(options: argparse.Namespace) -> None:
    """Raises ConfigError for an option that the act does not take."""
    takes = TAKES.get(options.act, ("mailbox",))
    for name, value in vars(options).items():
        if value and name not in ("act", "what", "keys", *takes):
            way_out = ", ".join(map(_flag, takes)) or "--keys alone"
            raise ConfigError(_flag(name), f"is nothing for site {options.act}", way_out)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _create(keys: Keys, options: argparse.Namespace) -> int:
    name, address = _word(options, "the site's name"), _address(options)
    made = Keys.create(keys.folder, name, address)
    print(
        f"{made.card.site}: key and certificate in {made.folder}; atelier site card prints what others accept"
    )
    return 0


def _address(options: argparse.Namespace) -> str:
    """Raises ConfigError for what is no address."""
    address = options.address or ""
    address = f"file://{address}" if address.startswith("/") else address
    check_address(address)
    if "://" in address:
        from atelier.infra.sites.bucket import check_bucket  # cryptography: other acts need none

        check_bucket(address, "--address")
    return address


def _card(keys: Keys, options: argparse.Namespace) -> int:
    card = keys.card
    print(card.text.decode(), end="")
    print(f"{card.site}: {_to_compare(card)}", file=sys.stderr)  # stdout is what others accept
    return 0


def _accept(keys: Keys, options: argparse.Namespace) -> int:
    place = _word(options, "a file with the card of another site, - for stdin")
    try:
        text = sys.stdin.buffer.read() if place == "-" else Path(place).read_bytes()
    except OSError as error:
        raise ConfigError("site accept", f"{place} cannot be read ({error.strerror})") from None
    card = keys.accept(text, place, replace=options.replace)
    print(f"{card.site} is trusted: {_to_compare(card)}")
    print(f"{card.site}: {_allowed(Policies(keys.folder).of(card.site))}")
    return 0


def _to_compare(card: Card) -> str:
    """What both sites compare of a card: the digest is of the certificate alone."""
    address = card.address or "no address, it dials out"
    return f"certificate {card.digest[:32]}, until {card.end:%Y-%m-%d}, {address}"


def _peers(keys: Keys, options: argparse.Namespace) -> int:
    _check_site(keys)
    for name, card in keys.peers.items():
        print(f"{name:<16} {card.digest[:32]}  until {card.end:%Y-%m-%d}  {card.address}")
    if not keys.peers:
        print("no site is trusted yet: atelier site accept <a card>", file=sys.stderr)
    return 0


def _revoke(keys: Keys, options: argparse.Namespace) -> int:
    _check_site(keys)
    peer = _word(options, "a site that is trusted")
    keys.check_trusted(peer, "site revoke")
    Policies(keys.folder).forget(peer)  # first: whoever accepts it again lets it have nothing by that
    keys.revoke(peer)
    return 0


def _rotate(keys: Keys, options: argparse.Namespace) -> int:
    keys.rotate(_address(options) if options.address else None)
    print(f"{keys.card.site}: {_to_compare(keys.card)}; peers have to accept the new card, with --replace")
    return 0


def _serve(keys: Keys, options: argparse.Namespace) -> int:
    """Run the agent until it is ended."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the agent says itself what went wrong
    from atelier.infra.sites.agent import Agent  # now: gRPC takes a third of a second
    from atelier.infra.sites.bucket import check_bucket

    card, stop, mailbox = keys.card, threading.Event(), _mailbox(keys, options)
    if card.is_in_bucket:
        if options.listen:
            raise ConfigError("--listen", f"{card.site} has no port, others reach it in {card.address}")
        check_bucket(card.address, "site serve")
    if options.listen and not is_listened_at(options.listen):
        raise ConfigError("--listen", f"{options.listen!r} is no place to listen at", "127.0.0.1:7800")
    _check_folder(mailbox)
    root = Store(default_root()).root
    lock = keys.alone("site serve")
    agent, runner = Agent(keys, mailbox), OrderRunner(keys, mailbox, root, _say)
    keys.set_mailbox(mailbox)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: stop.set())
    print(_reached(agent, card, options.listen))
    print(*_served(keys, mailbox, root), sep="\n", flush=True)
    if options.with_parent:
        threading.Thread(target=_until_alone, args=(stop,), daemon=True).start()
    carrying = threading.Thread(target=agent.run, args=(stop, _say), daemon=True)
    carrying.start()
    runner.tidy()
    while not stop.wait(LOOK_EVERY):
        runner.look()
    carrying.join()
    agent.stop()
    lock.close()  # from now on another agent may write the audit log
    if options.with_parent:
        runner.end_all()
    return 0


def _served(keys: Keys, mailbox: str, root: str) -> Iterator[str]:
    """What an agent serves, and for whom."""
    yield f"keys {keys.folder}, messages {mailbox}, store {root}"
    for name, card in keys.peers.items():
        yield f"trusts {name}: {_to_compare(card)}"
    if not keys.peers:
        yield "trusts no site yet: atelier site accept <a card>"
    for card in (keys.card, *keys.peers.values()):
        if card.end - now() < SOON:
            ends = f"the certificate of {card.site} ends on {card.end:%Y-%m-%d}"
            yield f"warning: {ends}: atelier site rotate at {card.site}"


def _reached(agent: "Agent", card: Card, listen: str | None) -> str:
    """Have an agent answer; where."""
    if card.is_in_bucket:
        agent.serve_in(card.address)
        return f"{card.site} answers in {card.address}"
    listen = listen or f"127.0.0.1:{card.address.rpartition(':')[2] or 0}"
    port = agent.serve(listen)
    return f"{card.site} listens at {listen.rpartition(':')[0]}:{port}"


def _until_alone(stop: threading.Event) -> None:
    """Set `stop` when the process that started this one has ended."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    stop.set()


def _check_site(keys: Keys) -> None:
    """Raises ConfigError where there is no site."""
    _ = keys.card


def _check_folder(mailbox: str) -> None:
    """Raises ConfigError for a mailbox that cannot be made, or be written to."""
    way_out = "--mailbox <a folder, where its agent can write>"
    try:
        Path(mailbox).mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ConfigError("--mailbox", f"{mailbox} is a file", way_out) from None
    except OSError as error:
        raise ConfigError("--mailbox", f"{mailbox} cannot be made ({error.strerror})", way_out) from None
    if not os.access(mailbox, os.W_OK | os.X_OK):
        raise ConfigError("--mailbox", f"{mailbox} cannot be written to", way_out)


def _mailbox(keys: Keys, options: argparse.Namespace) -> str:
    """Raises ConfigError for a mailbox that is no folder of this machine."""
    if options.mailbox and not is_local(options.mailbox):
        raise ConfigError("--mailbox", "is no folder of this machine", "a folder, where its agent can write")
    if not options.mailbox:
        _check_site(keys)
    return str(Path(options.mailbox).absolute()) if options.mailbox else str(keys.mailbox)


def _say(text: str) -> None:
    with suppress(OSError, ValueError):  # nobody reads it, or the disk is full
        sys.stderr.write(f"{printable(text, 0)}\n")  # at once: an agent has several threads
        sys.stderr.flush()


def _allow(keys: Keys, options: argparse.Namespace) -> int:
    """Change what this site does for a peer, or show it. What is not given stays as it is."""
    _check_site(keys)
    peer = _word(options, "a site that is trusted")
    if peer not in keys.peers:
        raise ConfigError(
            "site allow", f"{peer!r} is not trusted", f"trusted: {', '.join(keys.peers) or 'none'}"
        )
    given = {
        "tasks": _words(options.tasks),
        "reads": _words(options.read),
        "uses": _words(options.use),
        "sends": _words(options.send),
        "pool": options.pool,
        "tracker": options.tracker,
        "hourly": _gigabytes(options.hourly),
    }
    changes = {field: value for field, value in given.items() if value is not None}
    policies = Policies(keys.folder)
    try:
        before = policies.of(peer)
    except DamageError:
        if not changes:
            raise
        before = SitePolicy(site=peer)  # what it said nobody knows
    policy = before.model_copy(update=changes)
    if changes:
        check_policy(policy)
        policies.set(policy)
    print(f"{peer}: {_allowed(policy)}")
    if policy != before:
        print(f"before: {_allowed(before)}")
    return 0


def _allowed(policy: SitePolicy) -> str:
    parts = [
        f"runs {', '.join(policy.tasks) or 'no task'} here, on pool {policy.pool}",
        f"reads {', '.join(policy.reads) or 'nowhere'}",
        f"uses {', '.join(policy.uses) or 'nothing'} from here",
        f"sends {', '.join(policy.sends) or 'no file'}",
        *([f"{policy.hourly:g} GB an hour"] if policy.hourly else ()),
    ]
    return "; ".join(parts)


def _gigabytes(given: str | None) -> float | None:
    if given is None:
        return None
    try:
        found = float(given)
    except ValueError:
        found = -1.0
    if not 0 <= found < math.inf:
        raise ConfigError("--hourly", f"{given!r} is no number of GB", "2.5, or 0 for any")
    return found


def _words(given: list[str] | None) -> tuple[str, ...] | None:
    """Words that were given one by one, or with commas, each once; `none` is no word."""
    if given is None:
        return None
    words = dict.fromkeys(word for text in given for word in text.split(","))
    return tuple(word for word in words if word not in ("", "none"))


def _audit(keys: Keys, options: argparse.Namespace) -> int:
    """Verify the audit log of this site, and against that of another where it is given."""
    from atelier.infra.sites.audit_check import (  # cryptography: other acts need none
        DIFFERS,
        compare,
        site_of,
        table,
        verify,
    )

    path, site, certificates = keys.folder / AUDIT, keys.card.site, keys.certificates
    verified = verify(path, site, certificates)
    print(f"{site}: {path}: {verified.chain.lines} lines, each follows from the one before")
    for peer, statement in sorted(verified.own.items()):
        left = verified.unsigned(peer)
        print(
            f"signed with {peer} up to line {statement.lines}; {left} messages since then are not signed yet"
        )
    rows = table(verified)
    print(*rows, sep="\n")
    if options.what:
        other = Path(options.what)
        if not other.exists():
            raise ConfigError("site audit", f"{other} is no file", "the audit.jsonl of another site")
        peer = site_of(other, site, certificates)
        count = compare(path, site, other, peer, certificates)
        print(f"{other}: holds {count} signatures of {site}, all of them under lines of this log")
        count = compare(other, peer, path, site, certificates)
        print(f"{path}: holds {count} signatures of {peer}, all of them under lines of that log")
    differing = sum(row.endswith(DIFFERS) for row in rows)
    if differing:
        print(f"{differing} rows differ from what the peer has signed: on their way, broken off, or wrong")
    return 0


def _orders(keys: Keys, options: argparse.Namespace) -> int:
    """List the runs that sites have asked each other for, the newest last."""
    desk = OrderDesk(_mailbox(keys, options))
    for order in desk.orders():
        reply = desk.reply(order.id)
        if order.act == "run":
            about = f"{order.id[:8]}  {order.home} -> {order.site}  {order.flow:<10}"
            about += f" {reply.state if reply else 'waits':<9} {', '.join(order.tasks)}"
            print(printable(about, 0))  # names are the other site's
    return 0


def _cancel(keys: Keys, options: argparse.Namespace) -> int:
    """End an order, at a checkpoint."""
    desk, digits = OrderDesk(_mailbox(keys, options)), _word(options, "digits of an order")
    found = [order for order in desk.orders() if order.id.startswith(digits)]
    if len(found) != 1:
        raise ConfigError("site cancel", f"{len(found)} orders begin with {digits!r}", "atelier site orders")
    desk.put(Cancellation(order=found[0].id, home=found[0].home, site=found[0].site))
    return 0


def _work(keys: Keys, options: argparse.Namespace) -> int:
    """Do an order: what the agent starts."""
    from atelier.flows.deployments.ordered import work_on  # flows: nothing that the other acts wait for

    mailbox, number = _mailbox(keys, options), _word(options, "the id of an order")
    order = OrderDesk(mailbox).order(number)
    if order is None:
        raise ConfigError("site work", f"there is no order {number[:16]}", "atelier site orders")
    return work_on(OrderDesk(mailbox), order, Policies(keys.folder), mailbox, Store(default_root()))


def _word(options: argparse.Namespace, about: str) -> str:
    if not options.what:
        raise ConfigError(f"site {options.act}", "a word is missing", f"give {about}")
    return options.what


TAKES = {
    "create": ("address",),
    "card": (),
    "accept": ("replace",),
    "peers": (),
    "allow": ("tasks", "read", "use", "send", "pool", "tracker", "hourly"),
    "revoke": (),
    "rotate": ("address",),
    "serve": ("mailbox", "listen", "with_parent"),
    "audit": (),
    "orders": ("mailbox",),
    "cancel": ("mailbox",),
}  # of the options, beside --keys; acts that are not here are an agent's own
ACTS: dict[str, Callable[[Keys, argparse.Namespace], int]] = {
    "create": _create,
    "card": _card,
    "accept": _accept,
    "peers": _peers,
    "revoke": _revoke,
    "rotate": _rotate,
    "allow": _allow,
    "serve": _serve,
    "audit": _audit,
    "orders": _orders,
    "cancel": _cancel,
    "work": _work,
}
