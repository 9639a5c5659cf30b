"""Verify an audit log: its chain, its signatures, and the statements about it in the other site's log."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from atelier.engine.config.base import Json
from atelier.engine.config.document import parse_as
from atelier.engine.config.error import DamageError, printable
from atelier.infra.sites.audit import FIRST, SIGNED, Chain, read_lines
from atelier.infra.sites.countersign import WHAT, Signed, Statement

Certificates = Mapping[str, tuple[str, str]]  # site and PEM by digest
DIFFERS, NOT_YET = "differs", "not signed yet"  # marks of a row


@dataclass(frozen=True)
class Verified:
    """A verified log: its chain and, by peer, the last statements of both sites."""

    chain: Chain
    own: Mapping[str, Statement]
    theirs: Mapping[str, Statement]

    def unsigned(self, peer: str) -> int:
        """Messages to and from a peer that are not signed yet."""
        return self.chain.unsigned(peer)


def verify(path: Path, site: str, certificates: Certificates) -> Verified:
    """Verify the log of `site`. `certificates`: of this site and its peers, former ones too.

    Raises DamageError naming the first line that does not follow from the one before, or has a wrong
    signature.
    """
    chain, own, theirs = Chain(), dict[str, Statement](), dict[str, Statement]()
    digests, claims = [FIRST], dict[int, list[tuple[str, Statement]]]()
    said = dict[tuple[str, int], str]()  # digests by the other site and lines of its log
    for number, found in enumerate(read_lines(path, chain), start=1):
        digests.append(chain.digest)
        if found.get("what") != SIGNED:
            continue
        place = f"{path}:{number}"
        mine, other = (_signed(found, key, place, certificates) for key in ("own", "theirs"))
        if mine.site != site or (mine.peer, mine.site) != (other.site, other.peer):
            raise DamageError(f"{place}: signed by {mine.site} and {other.site}, and the log is of {site}")
        if other.own_digest != mine.answers and mine.own_digest != other.answers:
            raise DamageError(f"{place}: {mine.site} and {other.site} did not sign at the same time")
        if mine.lines >= number or digests[mine.lines] != mine.digest:
            raise DamageError(f"{place}: {site} has signed other lines before; this log was changed")
        if said.setdefault((other.site, other.lines), other.digest) != other.digest:
            raise DamageError(f"{place}: {other.site} has signed two logs of {other.lines} lines")
        own[other.site] = _later(own.get(other.site), mine)
        theirs[other.site] = _later(theirs.get(other.site), other)
        claims.setdefault(mine.lines, []).append((place, mine))
    _check_counts(path, claims)
    return Verified(chain, own, theirs)


def _later(one: Statement | None, other: Statement) -> Statement:
    """Of two statements of a site, the one about the longer log."""
    return one if one is not None and one.lines > other.lines else other


def _signed(found: Mapping[str, Json], key: str, place: str, certificates: Certificates) -> Statement:
    """A statement in a line. Raises DamageError unless its site's key has signed it."""
    signed = parse_as(Signed, json.dumps(found.get(key)), place, WHAT)
    digest = signed.statement.certificate
    if digest not in certificates:
        raise DamageError(
            f"{place}: {signed.statement.site} signed with the certificate {digest[:16]}, which was never"
            " trusted"
        )
    owner, certificate = certificates[digest]
    if owner != signed.statement.site:
        raise DamageError(
            f"{place}: a statement of {signed.statement.site} is signed with a certificate of {owner}"
        )
    signed.check(certificate, place)
    return signed.statement


def _check_counts(path: Path, claims: Mapping[int, list[tuple[str, Statement]]]) -> None:
    """Check that the counts of each statement equal those of the lines before it."""
    chain = Chain()
    for _ in read_lines(path, chain):
        for place, statement in claims.get(chain.lines, ()):
            if statement.crossed != chain.with_peer(statement.peer):
                raise DamageError(f"{place}: counts other messages than the lines before it")


def site_of(other: Path, site: str, certificates: Certificates) -> str:
    """The site whose log `other` is, by a signature of `site` in it. Raises DamageError if there is none."""
    for place, found in _of_site(other, site):
        return _signed(found, "theirs", place, certificates).peer
    raise DamageError(f"{other}: holds no signature of {site}, so its owner cannot be verified")


def compare(path: Path, site: str, other: Path, peer: str, certificates: Certificates) -> int:
    """Check the log of `site` against the statements about it in `other`, the log of `peer`. Returns the
    number of statements.

    Raises DamageError if a signed line is gone or differs, or a statement is not for `peer`.
    """
    chain, digests = Chain(), [FIRST]
    for _ in read_lines(path, chain):
        digests.append(chain.digest)
    count = 0
    for place, found in _of_site(other, site):
        said = _signed(found, "theirs", place, certificates)
        if said.peer != peer:
            raise DamageError(f"{place}: {site} has signed this for {said.peer}, and the log is of {peer}")
        count += 1
        if said.lines >= len(digests):
            raise DamageError(
                f"{path}: has {chain.lines} lines, and {said.peer} holds a signature of {site} under line"
                f" {said.lines}"
            )
        if digests[said.lines] != said.digest:
            raise DamageError(
                f"{path}:{said.lines}: differs from the line that {site} signed for {said.peer}"
            )
    return count


def _of_site(log: Path, site: str) -> Iterator[tuple[str, dict[str, Json]]]:
    """The lines of a log with a statement that names `site`, with their places."""
    for number, found in enumerate(read_lines(log, Chain()), start=1):
        place = f"{log}:{number}"
        if found.get("what") == SIGNED:
            signed = parse_as(Signed, json.dumps(found.get("theirs")), place, WHAT)
            if signed.statement.site == site:
                yield place, found


def table(verified: Verified) -> list[str]:
    """Rows of the counts with each peer, by kind, beside the counts that the peer signed last. A row is
    marked `DIFFERS`, or `NOT_YET` if the difference came after this site's signature.
    """
    rows: list[tuple[str, ...]] = [
        ("peer", "way", "kind", "messages", "bytes", "signed by it: messages", "bytes", "")
    ]
    for peer in sorted({*verified.chain.crossed, *verified.theirs}):
        crossed, said = verified.chain.crossed.get(peer, {}), verified.theirs.get(peer)
        signed = verified.own[peer].crossed if peer in verified.own else {}
        for way, back in (("out", "in"), ("in", "out")):
            here, there = crossed.get(way, {}), said.crossed.get(back, {}) if said is not None else {}
            for kind in sorted({*here, *there}):
                own, theirs = here.get(kind, (0, 0)), there.get(kind, (0, 0))
                counts = [f"{number:,}" for number in (*own, *theirs)]
                before = signed.get(way, {}).get(kind, (0, 0))
                mark = "" if own == theirs else NOT_YET if before == theirs else DIFFERS
                rows.append((peer, way, printable(kind), *counts, mark))
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [line.rstrip() for line in lines]
