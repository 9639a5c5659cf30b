"""Sign and seal objects in a bucket that others can read and write: signed with the sender's key (ECDSA over
P-256 with SHA-256), then sealed for the recipient's certificate (HPKE in base mode, RFC 9180: DHKEM(P-256),
HKDF-SHA256, AES-256-GCM). Both cover the `Context` of an object.

A site's key both signs and agrees on keys. There is no forward secrecy, unlike in TLS: a stolen key opens
recorded objects for this site.
"""

import struct
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from pydantic import Field

from atelier.engine.config.base import Spec, canonical
from atelier.engine.config.document import parse_as
from atelier.engine.config.error import AtelierError
from atelier.engine.config.record import Digest
from atelier.infra.sites.keys import Card, Keys
from atelier.infra.sites.signature import is_signed, private_key, public_key, sign

SUITE = Suite(KEM.P256, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
VERSION = 2  # of the exchange between sites
LABEL = f"atelier object {VERSION}".encode()
SIZES = struct.Struct(">IH")  # bytes of the head and of the signature, which follow; the rest is the body


def other_version(peer: str) -> str:
    """The text of a refusal for another version of the exchange."""
    return (
        f"this agent speaks version {VERSION} of the exchange between sites and that of {peer} another one:"
        " install the same Atelier at both"
    )


class NotOpened(AtelierError):
    """A refused object, with the reason. `sender`: its site, '' = unknown."""

    def __init__(self, problem: str, sender: str = "") -> None:
        super().__init__(problem)
        self.sender = sender


class Context(Spec):
    """The place of an object. It is opened only for the same call, block and recipient."""

    kind: Literal["request", "answer"]
    recipient: Digest = Field(description="of the certificate that it is sealed for")
    call: str
    block: int = Field(ge=0)
    request: str = Field(default="", description="digest of the call's first object; '' = it is that one")

    @property
    def text(self) -> bytes:
        return LABEL + canonical(self.model_dump(mode="json"))


class ObjectHead(Spec):
    """The head of an object."""

    sender: Digest = Field(description="of the sender's certificate")


HeadType = TypeVar("HeadType", bound=ObjectHead)


@dataclass(frozen=True)
class Opened(Generic[HeadType]):
    """An opened object of a trusted site."""

    card: Card
    head: HeadType
    body: bytes

    @property
    def peer(self) -> str:
        return self.card.site


def seal(head: ObjectHead, body: bytes, context: Context, keys: Keys, recipient: Card) -> bytes:
    """Sign with this site's key and seal for a card. Raises NotOpened if its certificate is not valid now."""
    _check_time(recipient)
    text = head.model_dump_json().encode()
    signature = sign(keys.key, _signed(context, text, body))
    plain = b"".join((SIZES.pack(len(text), len(signature)), text, signature, body))
    try:
        key = public_key(recipient.certificate)
    except ValueError as problem:
        raise NotOpened(f"the certificate of {recipient.site} {problem}") from None
    return SUITE.encrypt(plain, key, info=context.text)


def unseal(data: bytes, kind: type[HeadType], context: Context, keys: Keys) -> Opened[HeadType]:
    """Open an object for this site. Raises NotOpened unless a currently trusted site has signed it for this
    context.
    """
    try:
        plain = SUITE.decrypt(data, private_key(keys.key), info=context.text)
        size, signature_size = SIZES.unpack_from(plain)
    except (InvalidTag, ValueError, struct.error):
        raise NotOpened("it is not sealed for this site and this place, or it was changed") from None
    start = SIZES.size + size
    text, signature = plain[SIZES.size : start], plain[start : start + signature_size]
    body = plain[start + signature_size :]
    try:
        head = parse_as(kind, text, "an object", f"the head of a {context.kind}")
    except AtelierError as error:
        raise NotOpened(str(error)) from None
    card = next((one for one in keys.peers.values() if one.digest == head.sender), None)
    if card is None:
        raise NotOpened("its certificate is not trusted")
    verify(card, signature, _signed(context, text, body))
    return Opened(card, head, body)


def verify(card: Card, signature: bytes, data: bytes) -> None:
    """Raise NotOpened unless the key of this card, whose certificate is valid now, has signed the data."""
    _check_time(card)
    if not is_signed(card.certificate, data, signature):
        raise NotOpened(f"the signature is not by the certificate of {card.site}")


def _signed(context: Context, head: bytes, body: bytes) -> bytes:
    """Join parts with their lengths, so that no other parts give the same bytes."""
    parts = (context.text, head, body)
    return b"".join(piece for part in parts for piece in (struct.pack(">Q", len(part)), part))


def _check_time(card: Card) -> None:
    if problem := card.out_of_time:
        raise NotOpened(problem)
