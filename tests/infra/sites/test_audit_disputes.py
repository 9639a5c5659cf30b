"""Audit logs of two sites that do not trust each other: forged, overtaken, forked and broken off."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError, DamageError
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.infra.sites.agent import Agent
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.audit_check import DIFFERS, NOT_YET, compare, site_of, table, verify
from atelier.infra.sites.countersign import (
    MOST_ANSWERED,
    MOST_STATEMENT,
    REST_S,
    Countersigning,
    Signed,
)
from atelier.infra.sites.countersign import sign as signed_by
from atelier.infra.sites.incoming import NotTaken
from atelier.infra.sites.keys import Card
from atelier.infra.sites.transfer import BLOCK, TIMEOUT_S
from tests.infra.sites.agents import answered, asked
from tests.infra.sites.test_agent import Site, two
from tests.infra.sites.test_countersign import (
    answer,
    chained,
    checked,
    crossed,
    lines_of,
    log_of,
    put_by,
    sign,
    site_audit,
)


def signatures(site: Site) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, lines_of(site)) if line["what"] == "signed"]


def test_a_site_cannot_sign_for_another(tmp_path: Path) -> None:
    """A statement of b with the certificate of a, by the key of a: whose log would frame whom it likes."""
    a, b = crossed(tmp_path)
    documents = [json.loads(line) for line in lines_of(a)]
    place = next(number for number, line in enumerate(documents) if line["what"] == "signed")
    real = Signed.model_validate(documents[place]["theirs"]).statement
    forged = real.model_copy(update={"certificate": a.keys.card.digest})
    documents[place]["theirs"] = signed_by(forged, a.keys.key).model_dump(mode="json")
    log_of(a).write_text(chained(documents[: place + 1]))
    with pytest.raises(DamageError, match=r":2: a statement of b is signed with a certificate of a"):
        checked(a)
    with pytest.raises(DamageError, match=r":2: a statement of b is signed with a certificate of a"):
        compare(log_of(b), "b", log_of(a), "a", a.keys.certificates)


def test_a_card_with_the_certificate_of_another_site_is_not_accepted(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    for certificate, owner in ((a.keys.card.certificate, "a"), (b.keys.card.certificate, "b")):
        with pytest.raises(ConfigError, match=f"has the certificate of {owner}"):
            a.keys.accept(Card(site="c", certificate=certificate).text, "card")


def test_what_was_signed_for_one_site_says_nothing_of_the_log_of_another(tmp_path: Path) -> None:
    a, b = crossed(tmp_path)
    assert site_of(log_of(b), "a", a.keys.certificates) == "b"
    with pytest.raises(DamageError, match=r":\d: a has signed this for b, and the log is of c"):
        compare(log_of(a), "a", log_of(b), "c", a.keys.certificates)
    with pytest.raises(DamageError, match="holds no signature of a, so its owner cannot be verified"):
        site_of(log_of(a), "a", a.keys.certificates)


def test_site_audit_finds_that_the_other_log_was_changed(tmp_path: Path) -> None:
    a, b = crossed(tmp_path)
    assert site_audit(a, str(log_of(b))).returncode == 0
    documents = [json.loads(line) for line in lines_of(b)]
    documents[0]["bytes"] = 7
    log_of(b).write_text(chained(documents))
    found = site_audit(a, str(log_of(b)))
    assert found.returncode == 1 and "differs from the line that b signed for a" in found.stderr
    log_of(b).write_text(chained(documents[:2]))
    found = site_audit(a, str(log_of(b)))
    assert found.returncode == 1 and "differs from the line that b signed for a" in found.stderr


def test_a_statement_that_was_overtaken_is_early_and_an_old_one_is_refused(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    with a.served() as mine, b.served() as theirs:
        first = mine._signing._own("b")
        mine._audit.add("sent", who="b", kind="contribution", bytes=1)
        second = mine._signing._own("b")
        clock = 100.0
        answer(theirs, second, "a", lambda: clock)
        for later, when in ((0.5, "early"), (1.5, "never")):
            with pytest.raises(NotTaken, match="has 0 lines, and it has signed 1") as error:
                answer(theirs, first, "a", lambda at=clock + later * TIMEOUT_S: at)
            assert error.value.when == when
    with b.served() as theirs, pytest.raises(NotTaken) as error:
        answer(theirs, first, "a")
    assert error.value.when == "never"  # no call is under way when an agent begins
    assert "refused" not in log_of(b).read_text()


def test_a_call_that_was_overtaken_leaves_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a site is on its way when the same peer asks it."""
    a, b = two(tmp_path)
    real, asked = Countersigning.answer, list[str]()

    def late(self: Countersigning, said: Signed, peer: str) -> dict[str, Json]:
        """b's answer leaves it when b has asked a, which answers at once."""
        found = real(self, said, peer)
        if peer == "a":
            sign(theirs, "a")
            asked.append(peer)
        return found

    monkeypatch.setattr(Countersigning, "answer", late)
    with a.served() as mine, b.served() as theirs:
        mine._audit.add("sent", who="b", kind="contribution", bytes=1)
        put = put_by(mine, "b")
        for at in (100.0, 100.0 + 1.1 * REST_S):
            mine._signing.ask_if_due(put, "b", lambda at=at: at)
        assert asked == ["a"] and "refused" not in log_of(a).read_text()
    for site, other in ((a, b), (b, a)):
        checked(site)
        compare(log_of(site), site.name, log_of(other), other.name, site.keys.certificates)


def test_two_sites_that_ask_each_other_at_the_same_time_have_logs_that_verify(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    with a.served() as mine, b.served() as theirs:
        problems: list[str] = []

        def ask(agent: Agent, peer: str) -> None:
            for _ in range(15):
                agent._audit.add("sent", who=peer, kind="contribution", bytes=1)
                try:
                    sign(agent, peer)
                except NotTaken as error:
                    problems.extend([str(error)] if error.when != "early" else [])
                except grpc.RpcError as error:
                    assert isinstance(error, grpc.Call)
                    is_early = error.code() == grpc.StatusCode.ABORTED
                    problems.extend([] if is_early else [str(error.details())])

        threads = [threading.Thread(target=ask, args=pair) for pair in 3 * [(mine, "b"), (theirs, "a")]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not problems
    for site, other in ((a, b), (b, a)):
        checked(site)
        assert '"refused"' not in log_of(site).read_text()
        kept = [line["theirs"]["statement"]["lines"] for line in signatures(site)]
        assert kept == sorted(kept)  # in the order in which they were taken
        assert compare(log_of(site), site.name, log_of(other), other.name, site.keys.certificates) >= 1


def test_a_log_whose_signatures_were_kept_in_another_order_verifies(tmp_path: Path) -> None:
    """As agents may have written them before they took, signed and kept one at a time."""
    a, b = two(tmp_path)
    with a.served() as mine, b.served() as theirs:
        pairs: list[tuple[Signed, Signed]] = []
        for _ in range(2):
            theirs._audit.add("sent", who="a", kind="contribution", bytes=1)
            own = mine._signing._own("b")
            pairs.append((own, theirs._signing._own("a", own.statement.own_digest)))
        for own, other in reversed(pairs):
            mine._signing._keep("b", own, other)
    assert verify(log_of(a), "a", a.keys.certificates).theirs["b"].lines == 2


def test_two_logs_of_as_many_lines_are_refused(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    with a.served() as mine, b.served() as theirs:
        own = mine._signing._own("b")
        fork = signed_by(own.statement.model_copy(update={"digest": "1" * 64}), a.keys.key)
        answer(theirs, own, "a")
        with pytest.raises(NotTaken, match="a has signed another audit log of 0 lines"):
            answer(theirs, fork, "a")
        checked(b)
        theirs._signing._keep("a", theirs._signing._own("a", fork.statement.own_digest), fork)
    with pytest.raises(DamageError, match=r":2: a has signed two logs of 0 lines"):
        checked(b)


def test_a_statement_that_comes_again_gets_the_same_answer_and_no_line(tmp_path: Path) -> None:
    """Also of an agent that was begun again; not once this site signs with another key."""
    a, b = two(tmp_path)
    with a.served() as mine:
        own = mine._signing._own("b").statement
    answers: list[Any] = []
    for _ in range(2):
        with b.served() as theirs:
            for _ in range(3):  # each with a signature of its own
                request = signed_by(own, a.keys.key)
                answers.append(answer(theirs, request, "a"))
    assert all(each == answers[0] for each in answers) and len(signatures(b)) == 1
    b.keys.rotate()
    with b.served() as theirs:
        last = Signed.model_validate(answer(theirs, request, "a"))
    assert last.statement.certificate == b.keys.card.digest and len(signatures(b)) == 2
    checked(b)


def test_a_trusted_peer_fills_no_disk_with_what_is_signed(tmp_path: Path) -> None:
    """It may claim what it likes of its own log, each time something else."""
    a, b = two(tmp_path)
    with a.served() as mine, b.served() as theirs:
        own, now = mine._signing._own("b").statement, [100.0]

        def claim(lines: int, **more: Any) -> None:
            said = signed_by(own.model_copy(update={"lines": lines, **more}), a.keys.key)
            answer(theirs, said, "a", lambda: now[0])

        for lines in range(MOST_ANSWERED):
            claim(lines)
        with pytest.raises(NotTaken, match=f"a has signed {MOST_ANSWERED} times in a minute") as error:
            claim(MOST_ANSWERED)
        assert error.value.when == "early" and len(signatures(b)) == MOST_ANSWERED
        now[0] += 61
        claim(MOST_ANSWERED)
        with pytest.raises(DamageError):
            claim(MOST_ANSWERED + 1, crossed={"in": {"x" * MOST_STATEMENT: (1, 1)}})
    assert len(signatures(b)) == MOST_ANSWERED + 1


def test_lines_are_on_disk_before_they_are_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, _ = two(tmp_path)
    on_disk, real = [0], os.fsync

    def synced(descriptor: int) -> None:
        real(descriptor)
        if os.path.sameopenfile(descriptor, log.fileno()):
            on_disk.append(os.fstat(descriptor).st_size)

    with a.served() as mine:
        mine._audit.add("sent", who="b", kind="contribution", bytes=1)
        with log_of(a).open("rb") as log:
            monkeypatch.setattr(os, "fsync", synced)
            mine._signing._own("b")
    assert on_disk[-1] == log_of(a).stat().st_size


def test_messages_that_cross_while_a_signature_is_made_are_not_signed_yet(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    with a.served() as mine, b.served() as theirs:
        mine._audit.add("sent", who="b", kind="contribution", bytes=1)
        own = mine._signing._own("b")
        mine._audit.add("sent", who="b", kind="contribution", bytes=1)
        found = answer(theirs, own, "a")
        mine._signing._keep("b", own, Signed.model_validate(found))
        assert mine._audit.position("b").unsigned == 1
    assert verify(log_of(a), "a", a.keys.certificates).unsigned("b") == 1
    assert Audit(log_of(a)).position("b").unsigned == 1


def test_what_was_given_of_a_message_that_broke_off_has_a_line(tmp_path: Path) -> None:
    a, _ = two(tmp_path)
    data = os.urandom(2 * BLOCK + 1)
    a.box.send(1, "a", [data], {}, 0, codec=Codec())
    with a.served() as mine:
        about = json.loads((Path(a.box.folder(1, "a")) / "message.json").read_bytes())
        for blocks in (1, 2, 3):
            given = mine._exchange.answer("Get", iter((asked(head=about),)), "b")
            for _ in range(blocks):
                next(given)
            del given
        with pytest.raises(DamageError, match="offset"):
            answered(mine, "Get", asked(head=about, offset=-1), "b")
        assert answered(mine, "Get", asked(head=about, offset=BLOCK), "b") == data[BLOCK:]
    lines = [json.loads(line) for line in lines_of(a)]
    assert [(line["what"], line["bytes"]) for line in lines] == [
        ("broke off", BLOCK),
        ("broke off", 2 * BLOCK),
        ("fetched", 2 * BLOCK + 1),
        ("fetched", BLOCK + 1),
    ]
    crossed = verify(log_of(a), "a", a.keys.certificates).chain.crossed["b"]
    assert crossed == {"out": {"contribution": (4, 6 * BLOCK + 2)}}


def test_rows_where_the_sites_count_differently_are_marked(tmp_path: Path) -> None:
    a, b = crossed(tmp_path)
    assert not any(row.endswith(DIFFERS) for row in table(verify(log_of(a), "a", a.keys.certificates)))
    with a.served() as mine, b.served() as theirs:
        theirs._audit.add("received", who="a", kind="file", bytes=5)  # which a does not know of
        mine._audit.add("sent", who="b", kind="contribution", bytes=1)
        sign(mine, "b")
    rows = table(verify(log_of(a), "a", a.keys.certificates))
    assert [row.split()[1:3] for row in rows if row.endswith(DIFFERS)] == [
        ["out", "contribution"],
        ["out", "file"],
    ]
    said = site_audit(a, str(log_of(b)))
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[-1].startswith("2 rows differ from the peer's signature")


def test_what_has_come_since_is_not_called_different(tmp_path: Path) -> None:
    a, _ = crossed(tmp_path)
    log = Audit(log_of(a))
    log.add("sent", who="b", kind="order", bytes=0)
    rows = table(verify(log_of(a), "a", a.keys.certificates))
    assert [row.split()[2] for row in rows if row.endswith(NOT_YET)] == ["order"]
    assert not any(row.endswith(DIFFERS) for row in rows)
