"""Certificates for tests: a root, the certificates that it issued, and their keys."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flows.payments.paypal.gateway import PAYPAL
from tests.support.clock import NOON

YEAR = timedelta(days=365)
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: Key

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)


def issued(
    name: str,
    *,
    by: Holder | None = None,
    key: Key | None = None,
    since: datetime = NOON - YEAR,
    until: datetime = NOON + YEAR,
    is_authority: bool = False,
    purpose: x509.ObjectIdentifier = ExtendedKeyUsageOID.SERVER_AUTH,
) -> Holder:
    """Issue a certificate with DigiCert's extensions, self-signed if `by` is None."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    signer = by.key if by else key
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, name),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, f"{name} and Sons"),
        ]
    )
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by.certificate.subject if by else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(identifier, critical=False)
    )
    if is_authority:
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.add_extension(usage, critical=True).add_extension(own, critical=False)
    else:
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        uses = x509.ExtendedKeyUsage([purpose])
        builder = builder.add_extension(names, critical=False).add_extension(uses, critical=False)
    return Holder(certificate=builder.sign(signer, SHA256()), key=key)


@cache
def rsa_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@cache
def root() -> Holder:
    return issued("Root", is_authority=True)


@cache
def between() -> Holder:
    return issued("Between", by=root(), is_authority=True)


@cache
def signer() -> Holder:
    return issued(PAYPAL.certificate_name, by=between(), key=rsa_key())
