"""The sandbox's certificate authority. It certifies the key that signs PayPal's webhooks.

Risks: somebody trusts the root certificate elsewhere. So each sandbox makes a new root certificate
and does not store it. The name in the signer's certificate ends in `.invalid`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, cached_property

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import (
    AuthorityKeyIdentifier,
    BasicConstraints,
    CertificateBuilder,
    DNSName,
    ExtendedKeyUsage,
    KeyUsage,
    Name,
    NameAttribute,
    SubjectAlternativeName,
    SubjectKeyIdentifier,
    random_serial_number,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flows.webhooks.certificates import RSA_BITS_AT_LEAST, CertificateScheme
from webapp.payments.certificates import SandboxScheme

CERTIFICATE_ID = "CERT-SANDBOX-1"
_LIFE = timedelta(days=365)
_SINCE = timedelta(days=1)


def sandbox_scheme(url: str) -> SandboxScheme:
    """Return the scheme with which a server verifies webhooks of the sandbox at `url`."""
    return SandboxScheme(
        name="paypal",
        header_prefix="paypal-",
        certificate_addresses=(f"{url}/paypal/v1/notifications/certs/",),
        certificate_name="messageverificationcerts.paypal.sandbox.invalid",
        authority="Elicit Sandbox",
        root_url=f"{url}/paypal/root.pem",
    )


@cache
def signers_key() -> rsa.RSAPrivateKey:
    """Return the signing key. All sandboxes of a process share it: making a key takes a second."""
    return rsa.generate_private_key(public_exponent=65537, key_size=RSA_BITS_AT_LEAST)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedCertificates:
    """The root certificate to trust and the signer's certificate, both in PEM."""

    root: bytes
    certificate: bytes


class CertificateAuthority:
    """A certificate authority. It issues certificates on first use: few sandboxes need any."""

    def __init__(self, scheme: CertificateScheme, *, clock: Callable[[], datetime]) -> None:
        self.scheme = scheme
        self._clock = clock

    @property
    def key(self) -> rsa.RSAPrivateKey:
        """The private key of the signer."""
        return signers_key()

    @cached_property
    def issued(self) -> "IssuedCertificates":
        its_own = ec.generate_private_key(ec.SECP256R1())
        here = Name([NameAttribute(NameOID.ORGANIZATION_NAME, self.scheme.authority)])
        name = self.scheme.certificate_name
        identifier = SubjectKeyIdentifier.from_public_key(its_own.public_key())
        issuer = AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
        root = (
            self._builder(here, its_own.public_key(), subject=here)
            .add_extension(BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_signs_certificates(), critical=True)
            .add_extension(identifier, critical=False)
        )
        common = Name([NameAttribute(NameOID.COMMON_NAME, name)])
        signer = (
            self._builder(here, self.key.public_key(), subject=common)
            .add_extension(BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(SubjectAlternativeName([DNSName(name)]), critical=False)
            .add_extension(ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(issuer, critical=False)
        )
        pems = [each.sign(its_own, SHA256()).public_bytes(Encoding.PEM) for each in (root, signer)]
        return IssuedCertificates(root=pems[0], certificate=pems[1])

    def _builder(
        self, issuer: Name, key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey, *, subject: Name
    ) -> CertificateBuilder:
        now = self._clock()
        return (
            CertificateBuilder()
            .issuer_name(issuer)
            .subject_name(subject)
            .public_key(key)
            .serial_number(random_serial_number())
            .not_valid_before(now - _SINCE)
            .not_valid_after(now + _LIFE)
        )


def _signs_certificates() -> KeyUsage:
    return KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
