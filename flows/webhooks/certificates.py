"""Webhooks signed with a certificate that the sender's header links to, as at PayPal.

Risks: a forger who can choose the certificate can sign anything. The certificate is therefore
fetched only from the sender's own addresses, must have the sender's name, and must lead to a given
root. Only the CRC-32 of the body is signed, and anyone can find a second body with the same CRC-32.
A Delivery from this module therefore only says which object to fetch: amount and payment status are
read from the fetched object.

Experimental: written from PayPal's documentation, not yet tested with a certificate of PayPal's.
"""

import base64
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509 import (
    DNSName,
    DuplicateExtension,
    InvalidVersion,
    UnsupportedGeneralNameType,
    load_der_x509_certificate,
    load_pem_x509_certificates,
)
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from flows.errors import Unverified
from flows.webhooks.signatures import BODY_BYTES_AT_MOST, PROOF, Delivery, header_once

CERTIFICATE_BYTES_AT_MOST: Final = 64 * 1024
CERTIFICATES_AT_MOST: Final = 8
RSA_BITS_AT_LEAST: Final = 2048
WEBHOOK_ID: Final = re.compile(r"[0-9A-Za-z]{1,64}")

_ID = re.compile(r"[0-9A-Za-z-]{1,64}")
_TIME = re.compile(r"[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}(\.[0-9]{1,9})?Z")
_SIGNATURE = re.compile(r"[0-9A-Za-z+/]{1,1366}={0,2}")
_ADDRESS = re.compile(r"[!-~]{1,512}")
_NAME = re.compile(r"[0-9A-Za-z_-]{1,100}")
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----\s+([0-9A-Za-z+/=\s]+)-----END CERTIFICATE-----")
# The errors of a certificate that is unreadable or does not lead to a root.
_CERTIFICATE_ERRORS = (
    ValueError,
    DuplicateExtension,
    InvalidVersion,
    UnsupportedAlgorithm,
    UnsupportedGeneralNameType,
    VerificationError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateScheme:
    """A sender: the addresses, name and issuer of its certificates.

    A repeated delivery has the time of the first attempt. `header_prefix` is the prefix of all the
    sender's headers. `authority` is the organization that issues the certificates.
    """

    name: str
    header_prefix: str
    certificate_addresses: tuple[str, ...]
    certificate_name: str
    authority: str
    age_at_most: timedelta = timedelta(days=4)
    tolerance: timedelta = timedelta(
        minutes=5
    )  # the provider's clock can be ahead of this server's


def roots_of(scheme: CertificateScheme, *, bundle: bytes) -> Store:
    """Return the roots of the scheme's authority from a PEM bundle of common roots.

    Raises ValueError if there are none.
    """
    # Roots of other authorities are skipped: some are so old that reading them causes warnings.
    ders = [base64.b64decode(text) for text in _PEM.findall(bundle)]
    found = [load_der_x509_certificate(der) for der in ders if scheme.authority.encode() in der]
    of_authority = [
        root
        for root in found
        if scheme.authority
        in [name.value for name in root.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    ]
    if not of_authority:
        raise ValueError(f"{scheme.name}: the bundle has no root certificate of {scheme.authority}")
    return Store(of_authority)


def certificate_url(
    scheme: CertificateScheme,
    *,
    body: bytes,
    headers: Sequence[tuple[str, str]],
    now: datetime,
) -> str:
    """Return the address of the certificate, if the headers are acceptable.

    Nothing is verified yet.

    Raises Unverified with the reason too_large, missing_header, malformed_header, foreign_url,
    too_old or too_new.
    """
    return _read(scheme, body=body, headers=headers, now=now).url


def verify_certified(
    scheme: CertificateScheme,
    *,
    body: bytes,
    headers: Sequence[tuple[str, str]],
    webhook_ids: Sequence[str],
    certificate: bytes,
    roots: Store,
    now: datetime,
) -> Delivery:
    """Return the delivery if the sender's certificate signed it for one of our webhooks.

    `certificate` is the PEM fetched from `certificate_url`: the signer's certificate first, then
    the intermediates up to one of the `roots`. Raises Unverified like `certificate_url`, and with
    the reason no_secret for a missing webhook id, bad_certificate or bad_signature.
    """
    if not webhook_ids or not all(map(WEBHOOK_ID.fullmatch, webhook_ids)):
        raise Unverified("no_secret")
    received = _read(scheme, body=body, headers=headers, now=now)
    key = _key(scheme, certificate, roots=roots, now=now)
    for webhook_id in webhook_ids:
        message = _message(received.id, received.time, webhook_id, body)
        try:
            key.verify(received.signature, message, PKCS1v15(), SHA256())
        except InvalidSignature:
            continue
        return Delivery(
            scheme=scheme.name, id=None, body=body, sent_at=received.sent_at, proof=PROOF
        )
    raise Unverified("bad_signature")


def sign_certified(
    scheme: CertificateScheme,
    *,
    body: bytes,
    id: str,
    webhook_id: str,
    certificate_id: str,
    key: RSAPrivateKey,
    now: datetime,
) -> list[tuple[str, str]]:
    """Return the headers with which the scheme's sender would send the body."""
    prefix, time = scheme.header_prefix, now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    signature = key.sign(_message(id, time, webhook_id, body), PKCS1v15(), SHA256())
    return [
        (prefix + "auth-algo", "SHA256withRSA"),
        (prefix + "cert-url", scheme.certificate_addresses[0] + certificate_id),
        (prefix + "transmission-id", id),
        (prefix + "transmission-sig", base64.b64encode(signature).decode()),
        (prefix + "transmission-time", time),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Received:
    """The parsed but not yet verified header values."""

    id: str
    time: str
    sent_at: datetime
    signature: bytes
    url: str


def _read(
    scheme: CertificateScheme, *, body: bytes, headers: Sequence[tuple[str, str]], now: datetime
) -> _Received:
    if len(body) > BODY_BYTES_AT_MOST:
        raise Unverified("too_large")
    prefix = scheme.header_prefix
    id = header_once(headers, prefix + "transmission-id", pattern=_ID)
    time = header_once(headers, prefix + "transmission-time", pattern=_TIME)
    text = header_once(headers, prefix + "transmission-sig", pattern=_SIGNATURE)
    url = header_once(headers, prefix + "cert-url", pattern=_ADDRESS)
    try:
        sent_at = datetime.fromisoformat(time)
        signature = base64.b64decode(text, validate=True)
    except ValueError:
        raise Unverified("malformed_header") from None
    if base64.b64encode(signature).decode() != text:
        raise Unverified("malformed_header")
    # Compare texts: an allowed address plus a plain file name cannot be parsed in two ways.
    if not any(
        url.startswith(address) and _NAME.fullmatch(url, len(address))
        for address in scheme.certificate_addresses
    ):
        raise Unverified("foreign_url")
    if now - sent_at > scheme.age_at_most:
        raise Unverified("too_old")
    if sent_at - now > scheme.tolerance:
        raise Unverified("too_new")
    return _Received(id=id, time=time, sent_at=sent_at, signature=signature, url=url)


def _key(
    scheme: CertificateScheme, certificate: bytes, *, roots: Store, now: datetime
) -> RSAPublicKey:
    if len(certificate) > CERTIFICATE_BYTES_AT_MOST:
        raise Unverified("bad_certificate")
    try:
        signer, *others = load_pem_x509_certificates(certificate)
        if len(others) >= CERTIFICATES_AT_MOST:
            raise Unverified("bad_certificate")
        verifier = (
            PolicyBuilder()
            .store(roots)
            .time(now)
            .build_server_verifier(DNSName(scheme.certificate_name))
        )
        verifier.verify(signer, others)
        key = signer.public_key()
    except _CERTIFICATE_ERRORS:
        raise Unverified("bad_certificate") from None
    if not isinstance(key, RSAPublicKey) or key.key_size < RSA_BITS_AT_LEAST:
        raise Unverified("bad_certificate")
    return key


def _message(id: str, time: str, webhook_id: str, body: bytes) -> bytes:
    return f"{id}|{time}|{webhook_id}|{zlib.crc32(body)}".encode()
