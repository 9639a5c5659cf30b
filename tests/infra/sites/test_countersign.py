"""Audit logs signed by both sites: lines that are changed, left out, cut off or forged are found
and named.
"""

import base64
import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from atelier.engine.config.base import Json
from atelier.engine.config.error import DamageError
from atelier.infra.sites import incoming
from atelier.infra.sites.agent import Agent
from atelier.infra.sites.audit import FIRST, Chain
from atelier.infra.sites.audit_check import Verified, compare, table, verify
from atelier.infra.sites.countersign import MOST_S, REST_S, Put, Signed, Statement
from atelier.infra.sites.countersign import sign as signed_by
from atelier.infra.sites.exchange import SiteExchange
from atelier.infra.sites.incoming import NotTaken
from atelier.infra.sites.keys import AUDIT
from tests.checkout import TOP
from tests.infra.sites.test_agent import Site, two, until

SIZE = 10_001


def log_of(site: Site) -> Path:
    return site.keys.folder / AUDIT


def lines_of(site: Site) -> list[str]:
    return log_of(site).read_text().splitlines()


def is_signed(site: Site) -> bool:
    return log_of(site).exists() and '"signed"' in log_of(site).read_text()


def checked(site: Site, log: Path | None = None) -> object:
    return verify(log or log_of(site), site.name, site.keys.certificates)


def sign(agent: Agent, peer: str) -> None:
    agent._signing.ask(put_by(agent, peer), peer)


def put_by(agent: Agent, peer: str) -> Put:
    link = agent._channels.of(agent.keys.peers[peer])
    return partial(agent._exchange.ask, link, peer, agent._signing)


def answer(agent: Agent, signed: Signed, peer: str, *now: Callable[[], float]) -> Json:
    """What an agent signs for a statement of a peer."""
    said = agent._signing.item(signed.model_dump_json().encode(), peer).head
    return agent._signing.answer(said, peer, *now)


def site_audit(site: Site, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "atelier", "site", "audit", *words]
    env = os.environ | {"ATELIER_SITE": str(site.keys.folder)}
    return subprocess.run(command, cwd=TOP, env=env, text=True, capture_output=True)


def crossed(folder: Path) -> tuple[Site, Site]:
    """Two sites after three messages from a to b and two back, signed after the first and after the last."""
    a, b = two(folder)
    with a.served() as mine, b.served() as theirs:
        a.send(1, os.urandom(SIZE))
        mine.exchange("b")
        sign(mine, "b")
        for number in (1, 2):
            b.send(number, os.urandom(SIZE))
            theirs.exchange("a")
            a.send(number + 1, os.urandom(SIZE))
            mine.exchange("b")
        sign(theirs, "a")
    return a, b


def chained(documents: list[dict[str, object]]) -> str:
    """A log of these lines, each with the digest of the one before, as whoever changes one would make it."""
    text, previous = "", FIRST
    for document in documents:
        line = json.dumps({**document, "previous": previous})
        previous = hashlib.sha256(line.encode()).hexdigest()
        text += line + "\n"
    return text


def told_by(site: Site) -> list[str]:
    """What happened, by the lines of a site's log."""
    return [json.loads(line)["what"] for line in lines_of(site)]


@pytest.mark.parametrize("when", ["the message exists", "it is acknowledged"])
def test_whoever_is_killed_when_a_message_has_crossed_has_a_line_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The receiver before the message exists, the sender when it finds it there; each once."""
    a, b = two(tmp_path, "a")
    for site in (a, b):
        site.box.open(site.name, "ab")
    a.send(1, os.urandom(SIZE))
    killed = {"the message exists": (incoming, "write_bytes"), "it is acknowledged": (SiteExchange, "_put")}
    place, name = killed[when]
    work = getattr(place, name)

    def dies(*given: Any) -> None:
        if name == "_put":
            work(*given)
        raise OSError("killed")

    with b.served(), a.served() as mine:
        monkeypatch.setattr(place, name, dies)
        with pytest.raises(grpc.RpcError):
            mine.exchange("b")
        assert [what for what in told_by(b) if what != "damaged"] == ["received"]  # as an error it is said
        monkeypatch.undo()
    with b.served(), a.served() as mine:
        mine.exchange("b")
        mine.exchange("b")
    told = {site.name: [what for what in told_by(site) if what != "damaged"] for site in (a, b)}
    crossed_twice = name == "write_bytes"  # its body was there without its head, and was pushed again
    assert told == {"a": ["sent"], "b": ["received"] * (2 if crossed_twice else 1)}
    assert b.box.has(1, "a")


def test_both_logs_count_the_same_and_hold_each_others_signatures(tmp_path: Path) -> None:
    a, b = crossed(tmp_path)
    for site, other, out, back in ((a, b, 3, 2), (b, a, 2, 3)):
        found = verify(log_of(site), site.name, site.keys.certificates)
        assert found.chain.crossed[other.name] == {
            "out": {"contribution": (out, out * SIZE)},
            "in": {"contribution": (back, back * SIZE)},
        }
        assert found.own[other.name].crossed == found.chain.crossed[other.name]
        assert found.theirs[other.name].crossed["in"] == found.chain.crossed[other.name]["out"]
        assert found.unsigned(other.name) == 0
        assert compare(log_of(site), site.name, log_of(other), other.name, site.keys.certificates) == 2


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_byte_or_a_line_that_is_gone_is_named(tmp_path: Path, seed: int) -> None:
    a, _ = crossed(tmp_path)
    draw, lines = random.Random(seed), lines_of(a)
    place = draw.randrange(len(lines) - 1)
    if seed % 2:
        del lines[place]
        first = place
    else:
        raw = bytearray(lines[place].encode())
        at = draw.randrange(len(raw))
        raw[at] ^= 1
        lines[place], first = raw.decode(errors="replace"), place
    log_of(a).write_text("\n".join(lines) + "\n")
    with pytest.raises(DamageError, match=r"audit.jsonl:\d+: ") as error:
        checked(a)
    assert int(str(error.value).split("audit.jsonl:")[1].split(":")[0]) in (first + 1, first + 2)


def test_a_log_that_was_cut_off_is_found_by_what_the_other_site_holds(tmp_path: Path) -> None:
    a, b = crossed(tmp_path)
    lines = lines_of(a)
    log_of(a).write_text("\n".join(lines[:3]) + "\n")
    checked(a)  # by itself it is whole
    with pytest.raises(DamageError, match=r"has 3 lines, and b holds a signature of a under line \d"):
        compare(log_of(a), "a", log_of(b), "b", a.keys.certificates)
    with (
        a.served() as mine,
        b.served(),
        pytest.raises(Exception, match=r"the audit log of a has \d lines, and it has signed \d"),
    ):
        sign(mine, "b")


def changed_count(lines: list[dict[str, Any]], key: str) -> None:
    lines[0]["bytes"] = 7


def changed_signature(lines: list[dict[str, Any]], key: str) -> None:
    signed = next(line for line in lines if line["what"] == "signed")
    other = [line for line in lines if line["what"] == "signed"][1]
    signed[key]["signature"] = other[key]["signature"]


def changed_statement(lines: list[dict[str, Any]], key: str) -> None:
    last = [line for line in lines if line["what"] == "signed"][-1]
    last[key]["statement"]["crossed"]["in"]["contribution"] = [1, 1]


@pytest.mark.parametrize(
    ("change", "key", "problem"),
    [
        (changed_count, "", r":\d+: a has signed other lines before"),
        (changed_signature, "own", r":\d+: the signature of a is not by its certificate"),
        (changed_signature, "theirs", r":\d+: the signature of b is not by its certificate"),
        (changed_statement, "own", r":\d+: the signature of a is not by its certificate"),
        (changed_statement, "theirs", r":\d+: the signature of b is not by its certificate"),
    ],
)
def test_a_log_that_was_written_anew_is_not_what_was_signed(
    tmp_path: Path, change: Callable[[list[dict[str, object]], str], None], key: str, problem: str
) -> None:
    """Whoever changes a line can make the chain anew; the signatures are of the old one."""
    a, _ = crossed(tmp_path)
    documents = [json.loads(line) for line in lines_of(a)]
    change(documents, key)
    log_of(a).write_text(chained(documents))
    with pytest.raises(DamageError, match=problem):
        checked(a)


def test_signatures_that_were_all_made_anew_are_not_what_the_other_site_holds(tmp_path: Path) -> None:
    """A site has its own key: without the lines that need another's it can only be found out by that."""
    a, b = crossed(tmp_path)
    documents = [json.loads(line) for line in lines_of(a) if '"signed"' not in line]
    documents[0]["bytes"] = 7
    log_of(a).write_text(chained(documents))
    checked(a)
    with pytest.raises(DamageError, match=r"audit.jsonl.*a signed for b|holds a signature of a"):
        compare(log_of(a), "a", log_of(b), "b", a.keys.certificates)


def test_a_stranger_signs_nothing(tmp_path: Path) -> None:
    a, _ = crossed(tmp_path)
    stranger = Site(tmp_path / "x", "b")  # of the same name, with another key
    stranger.trust(a)
    with (
        a.served() as mine,
        stranger.served() as other,
        pytest.raises(NotTaken, match=r"a statement of b for a, and b sends it"),
    ):
        answer(mine, other._signing._own("a"), "b")


def test_a_statement_with_a_certificate_that_is_trusted_and_a_signature_of_another_key_is_not_taken(
    tmp_path: Path,
) -> None:
    a, b = crossed(tmp_path)
    with a.served() as mine, b.served() as theirs:
        before, real = lines_of(a), theirs._signing._own("a")
        forged = signed_by(real.statement, a.keys.key)
        raw = base64.b64decode(real.signature)
        flipped = base64.b64encode(raw[:-1] + bytes([raw[-1] ^ 1])).decode()
        for signature in (forged.signature, flipped, "", "no base64"):
            said = real.model_copy(update={"signature": signature})
            with pytest.raises(DamageError, match=r"^b: the signature of b is not by its certificate$"):
                answer(mine, said, "b")
        assert lines_of(a) == before
        answer(mine, real, "b")
        with pytest.raises(DamageError, match="is not by its certificate"):  # nor where it comes again
            answer(mine, forged, "b")
        assert len(lines_of(a)) == len(before) + 1


def test_what_was_signed_before_a_key_was_changed_can_be_verified(tmp_path: Path) -> None:
    a, b = crossed(tmp_path)
    a.keys.rotate()
    b.trust(a)
    for site in (a, b):
        checked(site)
    b.keys.revoke("a")
    checked(b)
    (former,) = (b.keys.folder / "former").glob(f"{a.keys.card.digest}*")
    former.unlink()
    with a.served() as mine, b.served() as theirs:
        a.trust(b)
        b.trust(a)
        a.send(4, b"x")
        mine.exchange("b")
        sign(mine, "b")
        assert theirs.site == "b"
    checked(b)


def test_an_agent_asks_when_nothing_came_for_a_while_and_at_least_so_often(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    with a.served() as mine, b.served():
        put, signing = put_by(mine, "b"), mine._signing
        clock = 100.0

        def signatures() -> int:
            return sum('"what": "signed"' in line for line in lines_of(a))

        def send(number: int) -> None:
            mine._audit.add("sent", who="b", kind="contribution", round=number, bytes=1)

        send(1)
        signing.ask_if_due(put, "b", lambda: clock)
        signing.ask_if_due(put, "b", lambda: clock + 0.9 * REST_S)
        assert not signatures()
        signing.ask_if_due(put, "b", lambda: clock + 1.1 * REST_S)
        assert signatures() == 1
        signing.ask_if_due(put, "b", lambda: clock + 100 * MOST_S)
        assert signatures() == 1  # nothing came
        number, at, clock = 2, 100_000.0, 100_000.0
        while signatures() == 1:  # something comes all the time
            send(number)
            signing.ask_if_due(put, "b", lambda at=at: at)
            number, at = number + 1, at + 0.6 * REST_S
        assert MOST_S <= at - clock <= MOST_S + 2 * REST_S


def test_a_kind_that_a_peer_has_signed_is_shown_as_a_terminal_may_show_it() -> None:
    crossed = {"out": {"x\x1b[2J": (1, 1)}}
    about = {"site": "b", "peer": "a", "lines": 1, "digest": "0" * 64, "certificate": "0" * 64}
    rows = table(Verified(Chain(), {}, {"b": Statement.model_validate(about | {"crossed": crossed})}))
    assert "x\\x1b[2J" in rows[1] and "\x1b" not in rows[1]


def test_site_audit_prints_kinds_and_bytes_and_names_a_broken_line(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    with ExitStack() as stack:
        for site in (a, b):
            process = site.begin()
            stack.callback(process.wait)
            stack.callback(process.terminate)
            site.send(1, os.urandom(SIZE))
        until(lambda: all(map(is_signed, (a, b))), "an audit log is not signed", a, b)

    found = site_audit(a, str(log_of(b)))
    assert found.returncode == 0, found.stderr
    assert "signed with b up to line" in found.stdout and "signatures of a, all match" in found.stdout
    rows = [line.split() for line in found.stdout.splitlines() if "contribution" in line]
    assert rows == [["b", way, "contribution", "1", "10,001", "1", "10,001"] for way in ("out", "in")]
    lines = lines_of(a)
    log_of(a).write_text("\n".join([*lines[:1], *lines[2:]]) + "\n")
    broken = site_audit(a)
    assert broken.returncode == 1 and f"{log_of(a)}:2: does not follow" in broken.stderr
