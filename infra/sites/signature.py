"""Signatures of sites: ECDSA over P-256 with SHA-256, by the key of a certificate."""

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

SIGNATURE = ec.ECDSA(hashes.SHA256())


def private_key(key: bytes) -> ec.EllipticCurvePrivateKey:
    """`key`: in PEM."""
    found = serialization.load_pem_private_key(key, password=None)
    assert isinstance(found, ec.EllipticCurvePrivateKey)  # as Keys makes it
    return found


def public_key(certificate: str) -> ec.EllipticCurvePublicKey:
    """`certificate`: in PEM. Raises ValueError unless its key is of the curve P-256."""
    key = x509.load_pem_x509_certificate(certificate.encode()).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("has no key of the curve P-256")
    return key


def sign(key: bytes, data: bytes) -> bytes:
    return private_key(key).sign(data, SIGNATURE)


def is_signed(certificate: str, data: bytes, signature: bytes) -> bool:
    """Whether the key of this certificate has signed the data; it may be outside its period of validity."""
    try:
        public_key(certificate).verify(signature, data, SIGNATURE)
    except (InvalidSignature, ValueError):
        return False
    return True
