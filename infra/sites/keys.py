"""A site's key and certificate, and the sites that it trusts: files of a folder. The key never leaves it."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Annotated

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from atelier.engine.config.base import Spec
from atelier.engine.config.document import parse_as
from atelier.engine.config.error import AtelierError, ConfigError, DamageError
from atelier.engine.config.site_name import ANY, NOBODY, SITE, SiteName
from atelier.engine.io.storage import sync_folder, write_bytes
from atelier.engine.io.user_folders import expanded
from atelier.infra.store.file_lock import file_lock

KEY, CARD, PEERS, AUDIT, MAILBOX = "key.pem", "site.json", "peers", "audit.jsonl", "mailbox"
MAILBOX_AT, LOCK, FORMER = "mailbox.txt", "agent.lock", "former"
FOLDER = "ATELIER_SITE"  # environment variable
TLS_NAME = "atelier-site"  # in all certificates: TLS sends the server's name unencrypted
CERTIFICATE = b"-----BEGIN CERTIFICATE-----"  # where it begins, behind the key
DAYS = 825  # for which a certificate is valid
MOST_CARD = 100_000  # bytes
LISTENS = r"[A-Za-z0-9_.:\[\]-]+:\d+"  # host:port
BUCKET = r"[a-z][a-z0-9+.-]*://[A-Za-z0-9_./:~+=-]+"  # no user, password or query


def now() -> datetime:
    return datetime.now(UTC)


def is_listened_at(place: str) -> bool:
    """Whether a text is host:port; port 0 is any."""
    return re.fullmatch(LISTENS, place) is not None and int(place.rpartition(":")[2]) < 1 << 16


def _leads_nowhere_else(address: str) -> str:
    if address and "://" not in address and not is_listened_at(address):
        raise ValueError("no port")
    if "://" in address and ("::" in address or ".." in address.split("/")):
        raise ValueError("a URL that leads elsewhere")
    return address


def _one_certificate(text: str) -> str:
    """The PEM of the certificate in a text. Raises ValueError unless the text is exactly one: TLS would trust
    each of several, but the digest is that of the first.
    """
    try:
        found = [_pem(each) for each in x509.load_pem_x509_certificates(text.encode())]
    except ValueError:
        raise ValueError("cannot be read as one certificate in PEM") from None
    if len(found) != 1:
        raise ValueError(f"has {len(found)} certificates, not one")
    if "".join(text.split()) != "".join(found[0].split()):  # white space apart, as PEM allows it
        raise ValueError("has more than the PEM of one certificate")
    return found[0]


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


Address = Annotated[
    str, Field(pattern=rf"^$|^{LISTENS}$|^{BUCKET}$", max_length=500), AfterValidator(_leads_nowhere_else)
]
Certificate = Annotated[str, Field(max_length=MOST_CARD), AfterValidator(_one_certificate)]


class Card(Spec):
    """A site's card for others: its name, the address of its agent (host:port, or the URL of a folder or
    bucket; '' = it only calls others), and its certificate in PEM.
    """

    site: SiteName
    address: Address = ""
    certificate: Certificate

    @property
    def digest(self) -> str:
        """sha256 of the certificate, by which it is looked up at every call; not of the address."""
        return certificate_digest(self.certificate)

    @property
    def tls_name(self) -> str:
        """The TLS name of its certificate. Certificates made before `TLS_NAME` have the site's name."""
        extensions = x509.load_pem_x509_certificate(self.certificate.encode()).extensions
        try:
            names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return TLS_NAME
        return next(iter(names.get_values_for_type(x509.DNSName)), TLS_NAME)

    @property
    def end(self) -> datetime:
        """When its certificate ends."""
        return x509.load_pem_x509_certificate(self.certificate.encode()).not_valid_after_utc

    @property
    def out_of_time(self) -> str:
        """Why its certificate is not valid now; '' = it is."""
        found = x509.load_pem_x509_certificate(self.certificate.encode())
        begin, end = found.not_valid_before_utc, found.not_valid_after_utc
        if begin <= now() <= end:
            return ""
        return f"the certificate of {self.site} is not valid now: {begin:%Y-%m-%d} to {end:%Y-%m-%d}"

    @property
    def is_in_bucket(self) -> bool:
        """Whether others reach it through a bucket."""
        return "://" in self.address

    @property
    def text(self) -> bytes:
        return (self.model_dump_json(indent=1) + "\n").encode()


def keys_folder() -> Path:
    """The folder of this site's keys."""
    return expanded(os.environ.get(FOLDER) or "~/.config/atelier/site", FOLDER).absolute()


@dataclass(frozen=True)
class Keys:
    """The folder of a site's keys."""

    folder: Path

    @staticmethod
    def create(folder: Path, site: str, address: str = "") -> "Keys":
        """Make a key and its certificate. Raises ConfigError for an invalid name, or a folder
        that has a key.
        """
        if not re.fullmatch(SITE, site) or site in (ANY, NOBODY):
            raise ConfigError(
                "site create",
                f"{site!r} is not a site name",
                f"use small letters, digits and -, but not {ANY} or {NOBODY}",
            )
        check_address(address)
        keys = Keys(folder)
        if (folder / CARD).exists():  # written last
            raise ConfigError("site create", f"{folder} has a key already", "site rotate makes a new one")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        keys._renew(site, address)
        return keys

    @property
    def card_path(self) -> Path:
        return self.folder / CARD

    @property
    def mailbox(self) -> Path:
        """The mailbox folder of its agent."""
        said = self.folder / MAILBOX_AT
        return Path(said.read_text().strip()) if said.exists() else self.folder / MAILBOX

    def set_mailbox(self, folder: str) -> None:
        """Store the mailbox folder of its agent."""
        write_bytes(str(self.folder / MAILBOX_AT), f"{folder}\n".encode())

    def alone(self, what: str) -> IO[str]:
        """Lock the keys for one agent, until the returned file is closed. Raises ConfigError if another agent
        has them.
        """
        file = file_lock(self.folder / LOCK)
        if file is None:
            raise ConfigError(what, f"{self.folder}: another agent runs with these keys")
        return file

    def rotate(self, address: str | None = None) -> None:
        """Make a new key and certificate and, if given, another address. Peers must accept the new card.
        After a kill the site has either the old ones or the new ones.
        """
        card = self.card
        self._renew(card.site, card.address if address is None else address)

    def _renew(self, site: str, address: str) -> None:
        if self.card_path.exists():
            self._keep_former(self.card)
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, site)])
        begin = now()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin - timedelta(hours=1))
            .not_valid_after(begin + timedelta(days=DAYS))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(TLS_NAME)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        plain = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        card = Card(site=site, address=address, certificate=_pem(certificate))
        _write_private(self.folder / KEY, plain + card.certificate.encode())  # both, or neither
        write_bytes(str(self.folder / CARD), card.text)

    @property
    def key(self) -> bytes:
        return self.pair[1]

    @property
    def card(self) -> Card:
        return self.pair[0]

    @property
    def pair(self) -> tuple[Card, bytes]:
        """The card and the key of its certificate, as a consistent pair. The certificate is the one beside
        the key; older keys have it only in the card.
        """
        place = str(self.folder / CARD)
        try:
            card = parse_as(Card, (self.folder / CARD).read_bytes(), place, "a site's card")
            text = (self.folder / KEY).read_bytes()  # after the card: a new key has its certificate with it
        except FileNotFoundError:
            raise _none(self.folder) from None
        key, begin, rest = text.partition(CERTIFICATE)
        certificate = (begin + rest).decode(errors="replace")
        if begin and certificate != card.certificate:
            about = card.model_copy(update={"certificate": certificate}).text
            card = parse_as(Card, about, str(self.folder / KEY), "a key and its certificate")
        return card, key

    def accept(self, card: bytes, place: str, *, replace: bool = False) -> Card:
        """Trust a site by its card; its policy stays. Raises ConfigError for an invalid card, this site's own
        name, the certificate of another site, one that is not valid now, or, without `replace`, another
        certificate than the site has here.
        """
        try:
            found = parse_as(Card, card[: MOST_CARD + 1], place, "a site's card")
        except DamageError as error:
            raise ConfigError(
                place, str(error).removeprefix(f"{place}: "), "give the output of `atelier site card` there"
            ) from None
        owner, _ = self.certificates.get(found.digest, (found.site, ""))
        if found.site == self.card.site:
            raise ConfigError(
                place, f"is of {found.site}, the name of this site", "give one of them another name"
            )
        if owner != found.site:
            raise ConfigError(place, f"has the certificate of {owner}", f"give a card that {found.site} made")
        if found.out_of_time:
            raise ConfigError(place, found.out_of_time, f"atelier site rotate at {found.site}")
        former = self.peers.get(found.site)
        if former is not None and former.digest != found.digest and not replace:
            raise ConfigError(
                place,
                f"has another certificate ({found.digest[:32]}) than {found.site} has here"
                f" ({former.digest[:32]})",
                f"if {found.site} has made a new key, use --replace; else give one of the two another name",
            )
        if former is not None:
            self._keep_former(former)
        write_bytes(str(self.folder / PEERS / f"{found.site}.json"), found.text)
        return found

    def check_trusted(self, site: str, what: str) -> None:
        """Raise ConfigError unless a site is trusted. `what`: the command, for the error."""
        if not re.fullmatch(SITE, site) or not self.trusts(site):
            known = ", ".join(self.peers) or "none"
            raise ConfigError(what, f"{site!r} is not trusted", f"trusted: {known}")

    def revoke(self, site: str) -> None:
        """Trust a site no longer. Raises ConfigError if it is not trusted."""
        self.check_trusted(site, "site revoke")
        path = self.folder / PEERS / f"{site}.json"
        with suppress(DamageError):  # one that cannot be read has signed nothing
            self._keep_former(_read_card(path))
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        sync_folder(path.parent)

    def _keep_former(self, card: Card) -> None:
        """Keep a card that is trusted no longer, to verify its earlier signatures."""
        write_bytes(str(self.folder / FORMER / f"{card.digest}.json"), card.text)

    @property
    def certificates(self) -> dict[str, tuple[str, str]]:
        """Site and PEM of certificates, by digest: this site's, its peers', and former ones. The first site
        of one keeps it. Former ones are read last, so that a card that is replaced meanwhile is found.
        """
        found: dict[str, tuple[str, str]] = {}
        for card in (self.card, *self._cards(), *self._cards(FORMER)):
            found.setdefault(card.digest, (card.site, card.certificate))
        return found

    @property
    def peers(self) -> dict[str, Card]:
        """The sites that are trusted now, by name."""
        return {card.site: card for card in self._cards()}

    def peer(self, site: str) -> Card:
        """The card of a site that is trusted now. Raises AtelierError for any other."""
        path = self.folder / PEERS / f"{site}.json"
        try:
            return _read_card(path)
        except FileNotFoundError:
            raise AtelierError(f"{site} is no longer trusted") from None

    def _cards(self, where: str = PEERS) -> Iterator[Card]:
        """The readable cards of a folder; a damaged one blocks no other site."""
        for path in sorted((self.folder / where).glob("*.json")):
            with suppress(DamageError, FileNotFoundError):
                yield _read_card(path)

    def trusts(self, site: str) -> bool:
        """Whether a site is trusted, even if its card cannot be read."""
        return (self.folder / PEERS / f"{site}.json").exists()

    def check_cards(self) -> None:
        """Raise DamageError for a card of another site, or a former one, that cannot be read."""
        for where in (PEERS, FORMER):
            for path in sorted((self.folder / where).glob("*.json")):
                with suppress(FileNotFoundError):
                    _read_card(path)

    def peer_of(self, certificate: str) -> str:
        """The trusted site whose certificate this is; '' = none."""
        digest = certificate_digest(certificate)
        return next((name for name, card in self.peers.items() if card.digest == digest), "")


def _read_card(path: Path) -> Card:
    """Read a peer's card, or a former one. Raises FileNotFoundError, and DamageError, also if it cannot be
    read.
    """
    try:
        return parse_as(Card, path.read_bytes(), str(path), "a site's card")
    except FileNotFoundError:
        raise
    except (DamageError, OSError) as error:
        problem = f"{path}: cannot be read ({error.strerror})" if isinstance(error, OSError) else str(error)
        raise DamageError(problem, "remove the file, and accept the card of that site again") from None


def check_address(address: str) -> None:
    """Raise ConfigError for an invalid address. The error omits it, since it may have a password."""
    try:
        TypeAdapter(Address).validate_python(address)
    except ValidationError:
        raise ConfigError(
            "--address",
            "is not a site address",
            "give host:port, or the URL of a folder or bucket (file:///shared/mail, s3://bucket/mail) without"
            " credentials, which are taken from the environment",
        ) from None


def certificate_digest(pem: str) -> str:
    """sha256 of a certificate. Raises ConfigError if it is invalid."""
    try:
        found = x509.load_pem_x509_certificate(pem.encode())
    except ValueError:
        raise ConfigError(
            "certificate", "cannot be read", "give a card that `atelier site card` printed"
        ) from None
    return hashlib.sha256(found.public_bytes(serialization.Encoding.DER)).hexdigest()


def _write_private(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".new")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def _none(folder: Path) -> ConfigError:
    return ConfigError("site", f"{folder} has no site", "atelier site create <name>")
