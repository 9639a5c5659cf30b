"""`atelier site <act>`: manage this site's key, trusted sites, policies and agent."""

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
SOON = timedelta(days=30)  # warn this long before a certificate ends


def run(options: argparse.Namespace) -> int:
    """Run one act. Raises ConfigError for an unknown act, or one that lacks an argument."""
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
            raise ConfigError(_flag(name), f"is not an option of site {options.act}", way_out)


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
    """The address. Raises ConfigError if it is invalid."""
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
    print(f"{card.site}: {_to_compare(card)}", file=sys.stderr)  # stdout has only the card
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
    """Text that both sites compare. The digest covers the certificate alone."""
    address = card.address or "no address, it connects to others"
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
    Policies(keys.folder).forget(peer)  # first, so that accepting it again grants nothing
    keys.revoke(peer)
    return 0


def _rotate(keys: Keys, options: argparse.Namespace) -> int:
    keys.rotate(_address(options) if options.address else None)
    print(f"{keys.card.site}: {_to_compare(keys.card)}; peers have to accept the new card, with --replace")
    return 0


def _serve(keys: Keys, options: argparse.Namespace) -> int:
    """Run the agent until it is stopped."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the agent reports errors itself
    from atelier.infra.sites.agent import Agent  # late: gRPC takes 0.3 s
    from atelier.infra.sites.bucket import check_bucket

    card, stop, mailbox = keys.card, threading.Event(), _mailbox(keys, options)
    if card.is_in_bucket:
        if options.listen:
            raise ConfigError("--listen", f"{card.site} has no port; others reach it in {card.address}")
        check_bucket(card.address, "site serve")
    if options.listen and not is_listened_at(options.listen):
        raise ConfigError("--listen", f"{options.listen!r} is not an address to listen at", "give host:port")
    _check_folder(mailbox)
    root = Store(default_root()).root
    lock = keys.alone("site serve")
    agent, runner = (
        Agent(keys, mailbox, _number(options.mbps, "--mbps", "Mbit/s") or 0.0),
        OrderRunner(keys, mailbox, root, _say),
    )
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
    lock.close()  # another agent may write the audit log now
    if options.with_parent:
        runner.end_all()
    return 0


def _served(keys: Keys, mailbox: str, root: str) -> Iterator[str]:
    """The folders that an agent uses, and the sites that it trusts."""
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
    """Let the agent serve. Returns a line with its address."""
    if card.is_in_bucket:
        agent.serve_in(card.address)
        return f"{card.site} answers in {card.address}"
    listen = listen or f"127.0.0.1:{card.address.rpartition(':')[2] or 0}"
    port = agent.serve(listen)
    return f"{card.site} listens at {listen.rpartition(':')[0]}:{port}"


def _until_alone(stop: threading.Event) -> None:
    """Set `stop` when the parent process has ended."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    stop.set()


def _check_site(keys: Keys) -> None:
    """Raises ConfigError if this machine has no site."""
    _ = keys.card


def _check_folder(mailbox: str) -> None:
    """Raises ConfigError for a mailbox that cannot be created or written."""
    way_out = "--mailbox <a folder in which the agent can write>"
    try:
        Path(mailbox).mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ConfigError("--mailbox", f"{mailbox} is a file", way_out) from None
    except OSError as error:
        raise ConfigError("--mailbox", f"{mailbox} cannot be created ({error.strerror})", way_out) from None
    if not os.access(mailbox, os.W_OK | os.X_OK):
        raise ConfigError("--mailbox", f"{mailbox} cannot be written to", way_out)


def _mailbox(keys: Keys, options: argparse.Namespace) -> str:
    """The mailbox. Raises ConfigError if it is not a local folder."""
    if options.mailbox and not is_local(options.mailbox):
        raise ConfigError("--mailbox", "is not a local folder", "give a folder in which the agent can write")
    if not options.mailbox:
        _check_site(keys)
    return str(Path(options.mailbox).absolute()) if options.mailbox else str(keys.mailbox)


def _say(text: str) -> None:
    with suppress(OSError, ValueError):  # stderr is closed, or the disk is full
        sys.stderr.write(f"{printable(text, 0)}\n")  # in one write: an agent has several threads
        sys.stderr.flush()


def _allow(keys: Keys, options: argparse.Namespace) -> int:
    """Change or show the policy for a peer. Options that are not given stay."""
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
        "hourly": _number(options.hourly, "--hourly", "GB"),
    }
    changes = {field: value for field, value in given.items() if value is not None}
    policies = Policies(keys.folder)
    try:
        before = policies.of(peer)
    except DamageError:
        if not changes:
            raise
        before = SitePolicy(site=peer)  # the earlier policy is unreadable
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


def _number(given: str | None, flag: str, unit: str) -> float | None:
    if given is None:
        return None
    try:
        found = float(given)
    except ValueError:
        found = -1.0
    if not 0 <= found < math.inf:
        raise ConfigError(flag, f"{given!r} is not a number of {unit}", "give one like 2.5; 0 = any")
    return found


def _words(given: list[str] | None) -> tuple[str, ...] | None:
    """Words given one by one or with commas, without duplicates; `none` is left out."""
    if given is None:
        return None
    words = dict.fromkeys(word for text in given for word in text.split(","))
    return tuple(word for word in words if word not in ("", "none"))


def _audit(keys: Keys, options: argparse.Namespace) -> int:
    """Verify the audit log of this site, and compare it with another site's, if given."""
    from atelier.infra.sites.audit_check import (  # cryptography: other acts need none
        DIFFERS,
        compare,
        site_of,
        table,
        verify,
    )

    path, site, certificates = keys.folder / AUDIT, keys.card.site, keys.certificates
    verified = verify(path, site, certificates)
    print(f"{site}: {path}: {verified.chain.lines} lines, the chain is intact")
    for peer, statement in sorted(verified.own.items()):
        left = verified.unsigned(peer)
        print(f"signed with {peer} up to line {statement.lines}; {left} later messages are not signed yet")
    rows = table(verified)
    print(*rows, sep="\n")
    if options.what:
        other = Path(options.what)
        if not other.exists():
            raise ConfigError("site audit", f"{other} is not a file", "give the audit.jsonl of another site")
        peer = site_of(other, site, certificates)
        count = compare(path, site, other, peer, certificates)
        print(f"{other}: holds {count} signatures of {site}, all match lines of this log")
        count = compare(other, peer, path, site, certificates)
        print(f"{path}: holds {count} signatures of {peer}, all match lines of that log")
    differing = sum(row.endswith(DIFFERS) for row in rows)
    if differing:
        print(f"{differing} rows differ from the peer's signature: in transit, interrupted, or wrong")
    return 0


def _orders(keys: Keys, options: argparse.Namespace) -> int:
    """List the runs that sites have asked each other for, the newest last."""
    desk = OrderDesk(_mailbox(keys, options))
    for order in desk.orders():
        reply = desk.reply(order.id)
        if order.act == "run":
            about = f"{order.id[:8]}  {order.home} -> {order.site}  {order.flow:<10}"
            about += f" {reply.state if reply else 'waits':<9} {', '.join(order.tasks)}"
            print(printable(about, 0))  # the other site chose the names
    return 0


def _cancel(keys: Keys, options: argparse.Namespace) -> int:
    """Cancel an order; its run stops at a checkpoint."""
    desk, digits = OrderDesk(_mailbox(keys, options)), _word(options, "digits of an order")
    found = [order for order in desk.orders() if order.id.startswith(digits)]
    if len(found) != 1:
        raise ConfigError(
            "site cancel", f"{len(found)} orders begin with {digits!r}", "`atelier site orders` lists them"
        )
    desk.put(Cancellation(order=found[0].id, home=found[0].home, site=found[0].site))
    return 0


def _work(keys: Keys, options: argparse.Namespace) -> int:
    """Run an order; the agent starts this command."""
    from atelier.flows.deployments.ordered import work_on  # late: only this act needs flows

    mailbox, number = _mailbox(keys, options), _word(options, "the id of an order")
    order = OrderDesk(mailbox).order(number)
    if order is None:
        raise ConfigError("site work", f"there is no order {number[:16]}", "`atelier site orders` lists them")
    return work_on(OrderDesk(mailbox), order, Policies(keys.folder), mailbox, Store(default_root()))


def _word(options: argparse.Namespace, about: str) -> str:
    if not options.what:
        raise ConfigError(f"site {options.act}", "an argument is missing", f"give {about}")
    return options.what


TAKES = {
    "create": ("address",),
    "card": (),
    "accept": ("replace",),
    "peers": (),
    "allow": ("tasks", "read", "use", "send", "pool", "tracker", "hourly"),
    "revoke": (),
    "rotate": ("address",),
    "serve": ("mailbox", "listen", "mbps", "with_parent"),
    "audit": (),
    "orders": ("mailbox",),
    "cancel": ("mailbox",),
}  # options of each act, beside --keys; acts not listed are for the agent
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
