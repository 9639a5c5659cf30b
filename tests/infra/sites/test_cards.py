"""The card of a site: exactly one certificate, which is all that TLS trusts."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from atelier.engine.config.error import ConfigError, DamageError
from atelier.infra.sites.keys import PEERS, Keys

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
    with pytest.raises(ConfigError, match=rf"^b.json: .*{problem}.*; what `site card` printed there"):
        a.accept(data, "b.json")
    assert not a.peers
    (a.folder / PEERS).mkdir()
    (a.folder / PEERS / "b.json").write_bytes(data)
    with pytest.raises(DamageError, match=problem) as damage:
        _ = a.peers
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
