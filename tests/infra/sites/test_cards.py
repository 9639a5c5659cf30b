"""The card of a site: exactly one certificate, which is all that TLS trusts; and which sites are trusted."""

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import grpc
import pytest

from atelier.engine.config.error import ConfigError, DamageError
from atelier.infra.sites import keys
from atelier.infra.sites.keys import PEERS, TLS_NAME, Keys
from atelier.infra.sites.transfer import SERVICE
from tests.infra.sites.agents import Site, asked, connected, say, until
from tests.infra.sites.test_agent import DATA, two

BROKEN = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
WITH_MORE: dict[str, tuple[Callable[[str, str], str], str]] = {  # of its own PEM and another's
    "a second certificate": (lambda own, other: own + other, "has 2 certificates, not one"),
    "itself twice": (lambda own, other: own + own, "has 2 certificates, not one"),
    "a broken second block": (lambda own, other: own + BROKEN, "cannot be read as one certificate"),
    "no certificate": (lambda own, other: "", "cannot be read as one certificate"),
    "text before": (lambda own, other: f"of b\n{own}", "has more than the PEM of one certificate"),
    "text after": (lambda own, other: f"{own}of b", "has more than the PEM of one certificate"),
    "another block": (
        lambda own, other: own + own.replace("CERTIFICATE", "PUBLIC KEY"),
        "has more than the PEM of one certificate",
    ),
}


def sites(folder: Path) -> tuple[Keys, Keys, Keys]:
    made = [Keys.create(folder / name, name, f"127.0.0.1:{port}") for port, name in enumerate("abc", start=1)]
    return made[0], made[1], made[2]


def card(certificate: str) -> bytes:
    return json.dumps({"site": "b", "address": "127.0.0.1:2", "certificate": certificate}).encode()


@pytest.mark.parametrize("what", [*WITH_MORE])
def test_a_card_with_anything_but_one_certificate_is_not_accepted_nor_read(tmp_path: Path, what: str) -> None:
    a, b, c = sites(tmp_path)
    change, problem = WITH_MORE[what]
    data = card(change(b.card.certificate, c.card.certificate))
    with pytest.raises(
        ConfigError, match=rf"^b.json: .*{problem}.*; give the output of `atelier site card` there"
    ):
        a.accept(data, "b.json")
    assert not a.peers
    (a.folder / PEERS).mkdir()
    (a.folder / PEERS / "b.json").write_bytes(data)
    with pytest.raises(DamageError, match=problem) as damage:
        a.check_cards()
    assert not a.peers
    assert damage.value.way_out.startswith("remove the file")


@pytest.mark.parametrize(
    "spelled",
    [
        str.rstrip,
        lambda pem: pem.replace("\n", "\r\n"),
        lambda pem: f"\n{pem}\n",
    ],
    ids=["no last newline", "other line ends", "empty lines"],
)
def test_tls_is_given_a_certificate_as_it_is_written_here(
    tmp_path: Path, spelled: Callable[[str], str]
) -> None:
    """Those of all peers are joined to one text."""
    a, b, _ = sites(tmp_path)
    data = card(spelled(b.card.certificate))
    assert a.accept(data, "b.json").certificate == b.card.certificate
    assert a.peers["b"] == b.card
    (a.folder / PEERS / "b.json").write_bytes(data)
    assert a.peers["b"] == b.card and a.peer_of(b.card.certificate) == "b"


def test_who_is_not_trusted_gets_nothing_and_trust_ends_at_once(tmp_path: Path) -> None:
    """No certificate, a foreign one, one that was revoked on an open connection, the name of another."""
    a, b = two(tmp_path)
    stranger, namesake = Site(tmp_path / "x", "c"), Site(tmp_path / "y", "b")
    with a.served():
        for who in (stranger, namesake):
            who.trust(a)
            said = say(a, who.keys, "List", asked())
            assert said.startswith(("UNAVAILABLE", "PERMISSION_DENIED")) and "Hostname" not in said, said
        with grpc.insecure_channel(f"127.0.0.1:{a.port}") as channel, pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(f"/{SERVICE}/List")(asked(), timeout=10)
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE  # pyright: ignore[reportAttributeAccessIssue]
        card = a.keys.card.certificate.encode()
        with (
            grpc.secure_channel(
                f"127.0.0.1:{a.port}",
                grpc.ssl_channel_credentials(card),
                [("grpc.ssl_target_name_override", TLS_NAME)],
            ) as channel,
            pytest.raises(grpc.RpcError),
        ):
            channel.unary_unary(f"/{SERVICE}/List")(asked(), timeout=10)
        with connected(a, b.keys) as channel:
            ask = channel.unary_unary(f"/{SERVICE}/List")
            assert json.loads(ask(asked(), timeout=20)) == {"groups": []}
            a.keys.revoke("b")
            with pytest.raises(grpc.RpcError) as refused:
                ask(asked(), timeout=20)
            assert "not trusted here" in str(refused.value)
            a.trust(b)
            assert ask(asked(), timeout=20)
    refusals = a.audited()
    assert any(line["what"] == "refused" and "not trusted" in line["why"] for line in refusals)


def test_a_certificate_that_runs_out_ends_open_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whoever calls, and of who is called; both are told why."""
    a, b = two(tmp_path)
    with a.served() as agent, b.served():
        a.send(1, DATA)
        agent.exchange("b")
        with connected(a, b.keys) as channel:
            ask = channel.unary_unary(f"/{SERVICE}/List")
            assert ask(asked(), timeout=20)
            late = keys.now() + timedelta(days=3000)
            monkeypatch.setattr(keys, "now", lambda: late)
            with pytest.raises(grpc.RpcError, match="the certificate of b is not valid now"):
                ask(asked(), timeout=20)
        with pytest.raises(grpc.RpcError, match="the certificate of b is not valid now"):
            agent.exchange("b")
    refusals = a.audited()
    assert any("the certificate of b is not valid now" in line.get("why", "") for line in refusals)


@pytest.mark.parametrize("of", ["b", "a"])
def test_a_certificate_out_of_its_time_makes_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """Of whoever calls, or of who is called."""
    monkeypatch.setattr(keys, "DAYS", 0)
    early = keys.now() - timedelta(minutes=30)
    sites = {"a": "b", "b": "a"}
    with monkeypatch.context() as patch:
        patch.setattr(keys, "now", lambda: early)
        old = Site(tmp_path, of)
    monkeypatch.undo()
    new = Site(tmp_path, sites[of])
    old.trust(new)
    (new.keys.folder / keys.PEERS).mkdir()  # accepted while it was valid
    (new.keys.folder / keys.PEERS / f"{of}.json").write_bytes(old.keys.card.text)
    a, b = (old, new) if of == "a" else (new, old)
    with a.served(), connected(a, b.keys) as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary(f"/{SERVICE}/List")(asked(), timeout=20)


def test_a_new_certificate_is_taken_without_a_restart(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    with a.served() as agent:
        b.keys.rotate()
        assert say(a, b.keys, "List", asked())
        a.trust(b)
        assert say(a, b.keys, "List", asked()) == ""
        a.keys.rotate()
        b.trust(a)
        assert say(a, b.keys, "List", asked()) == ""
        a.send(1, DATA)  # to an agent that is not there
        said: list[str] = []
        stop = threading.Event()
        asking = threading.Thread(target=agent.run, args=(stop, said.append))
        asking.start()
        until(lambda: bool(said), "nothing is said of a peer that does not answer")
        stop.set()
        asking.join()
        assert said[0].startswith("b: unavailable") and len(said) == 1
