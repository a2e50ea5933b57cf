"""PayPal's certificates: which certificates are trusted.

The certificate's URL comes from a header of the webhook, so an attacker can choose the URL.
"""

import base64
import zlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import certifi
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import Store
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.errors import Unverified
from flows.payments.paypal.gateway import PAYPAL, PAYPAL_SANDBOX
from flows.webhooks.certificates import (
    CERTIFICATE_BYTES_AT_MOST,
    CERTIFICATES_AT_MOST,
    CertificateScheme,
    certificate_url,
    roots_of,
    sign_certified,
    verify_certified,
)
from flows.webhooks.signatures import BODY_BYTES_AT_MOST, Delivery
from tests.support.certificates import between, issued, root, rsa_key, signer
from tests.support.clock import NOON

BODY = b'{"id":"WH-1","event_type":"CHECKOUT.ORDER.APPROVED"}'
WEBHOOK_ID = "1JE4291016473214C"
TRANSMISSION_ID = "aac5ed50-2fcb-11f0-a48d-0737b43c836c"
HOST = "https://api.paypal.com/v1/notifications/certs/"
# pytest's filter for a warning about negative serial numbers, which a changed byte can cause.
SERIAL_NUMBER = "ignore:Parsed a serial number:cryptography.utils.CryptographyDeprecationWarning"
Headers = list[tuple[str, str]]


@cache
def chain() -> bytes:
    return signer().pem + between().pem


def signed(
    body: bytes = BODY,
    *,
    scheme: CertificateScheme = PAYPAL,
    webhook_id: str = WEBHOOK_ID,
    now: datetime = NOON,
) -> Headers:
    return sign_certified(
        scheme,
        body=body,
        id=TRANSMISSION_ID,
        webhook_id=webhook_id,
        certificate_id="CERT-360caa42-fca2a594-90621ecd",
        key=rsa_key(),
        now=now,
    )


def with_header(name: str, *values: str) -> Headers:
    return [
        *((key, value) for key, value in signed() if key != name),
        *((name, value) for value in values),
    ]


def received(
    headers: Headers,
    body: bytes = BODY,
    *,
    scheme: CertificateScheme = PAYPAL,
    webhook_ids: tuple[str, ...] = (WEBHOOK_ID,),
    certificate: bytes | None = None,
    roots: Store | None = None,
    now: datetime = NOON,
) -> Delivery:
    return verify_certified(
        scheme,
        body=body,
        headers=headers,
        webhook_ids=webhook_ids,
        certificate=chain() if certificate is None else certificate,
        roots=roots or Store([root().certificate]),
        now=now,
    )


def refusal(headers: Headers, body: bytes = BODY, **options: Any) -> str:
    with pytest.raises(Unverified) as refused:
        received(headers, body, **options)
    assert str(refused.value) == "The server could not verify this webhook."
    return refused.value.reason


def refusal_of_a_url(headers: Headers, *, now: datetime = NOON) -> str:
    """Return the reason why `certificate_url` refuses the headers, before any fetch.

    Check that the delivery is refused for the same reason.
    """
    with pytest.raises(Unverified) as refused:
        certificate_url(PAYPAL, body=BODY, headers=headers, now=now)
    assert refusal(headers, now=now) == refused.value.reason
    return refused.value.reason


def with_one_bit_changed(text: str) -> Iterator[str]:
    """Yield a copy of the text for each character, with one bit of that character changed.

    Changing every bit would take too long.
    """
    for index, character in enumerate(text):
        yield text[:index] + chr(ord(character) ^ 1 << index % 8) + text[index + 1 :]


def test_delivery_signed_with_paypal_certificate_is_accepted() -> None:
    headers = [(name.upper(), value) for name, value in signed()]
    url = certificate_url(PAYPAL, body=BODY, headers=headers, now=NOON)
    assert url == HOST + "CERT-360caa42-fca2a594-90621ecd"
    delivery = received(headers)
    assert (delivery.scheme, delivery.body, delivery.sent_at) == ("paypal", BODY, NOON)
    assert delivery.id is None


def test_signed_message_contains_decimal_checksum() -> None:
    [signature] = [value for name, value in signed() if name == "paypal-transmission-sig"]
    message = f"{TRANSMISSION_ID}|2026-03-01T12:00:00Z|{WEBHOOK_ID}|{zlib.crc32(BODY)}"
    rsa_key().public_key().verify(
        base64.b64decode(signature), message.encode(), PKCS1v15(), SHA256()
    )


@settings(deadline=None)
@given(body=st.binary(max_size=300))
def test_verified_body_is_unchanged(body: bytes) -> None:
    assert received(signed(body), body).body == body


def test_sandbox_has_its_own_addresses_and_certificate_name() -> None:
    sandbox = issued(PAYPAL_SANDBOX.certificate_name, by=root(), key=rsa_key())
    headers = signed(scheme=PAYPAL_SANDBOX)
    delivery = received(headers, scheme=PAYPAL_SANDBOX, certificate=sandbox.pem)
    assert delivery.scheme == "paypal-sandbox"
    assert refusal(headers, certificate=sandbox.pem) == "foreign_url"
    assert refusal(signed(), certificate=sandbox.pem) == "bad_certificate"


def test_several_webhook_ids_can_be_configured() -> None:
    for ids in (("OTHER", WEBHOOK_ID), (WEBHOOK_ID, "OTHER")):
        assert received(signed(), webhook_ids=ids).body == BODY


def test_delivery_is_accepted_for_four_days() -> None:
    for then in (NOON, NOON - timedelta(days=4), NOON + timedelta(minutes=5)):
        assert received(signed(now=then)).sent_at == then
    for then, reason in (
        (NOON - timedelta(days=4, seconds=1), "too_old"),
        (NOON + timedelta(minutes=5, seconds=1), "too_new"),
    ):
        assert refusal_of_a_url(signed(now=then)) == reason


def test_timestamp_with_fractions_is_read() -> None:
    headers = with_header("paypal-transmission-time", "2026-03-01T12:00:00.123456789Z")
    assert certificate_url(PAYPAL, body=BODY, headers=headers, now=NOON).startswith(HOST)
    assert refusal(headers) == "bad_signature"


# The certificate: its URL, issuer, dates and key


@pytest.mark.parametrize(
    "url",
    [
        "http://api.paypal.com/v1/notifications/certs/CERT-1",
        "https://evil.example/v1/notifications/certs/CERT-1",
        "https://api.paypal.com.evil.example/v1/notifications/certs/CERT-1",
        "https://evil.example/https://api.paypal.com/v1/notifications/certs/CERT-1",
        "https://api.paypal.com@evil.example/v1/notifications/certs/CERT-1",
        "https://user@api.paypal.com/v1/notifications/certs/CERT-1",
        "https://api.paypal.com:8443/v1/notifications/certs/CERT-1",
        "https://API.paypal.com/v1/notifications/certs/CERT-1",
        "https://api.sandbox.paypal.com/v1/notifications/certs/CERT-1",
        "https://www.paypal.com/v1/notifications/certs/CERT-1",
        HOST,
        HOST + "../../oauth2/token",
        HOST + "CERT-1/../x",
        HOST + "CERT-1?redirect=https://evil.example",
        HOST + "CERT-1#x",
        HOST + "%2e%2e%2f",
        HOST + "C" * 101,
        "//api.paypal.com/v1/notifications/certs/CERT-1",
        "file:///etc/passwd",
        "CERT-1",
    ],
)
def test_certificate_url_of_foreign_origin_is_not_fetched(url: str) -> None:
    assert refusal_of_a_url(with_header("paypal-cert-url", url)) == "foreign_url"


def test_certificate_of_another_issuer_or_name_is_refused() -> None:
    name, key = PAYPAL.certificate_name, rsa_key()
    other_root = issued("Root", is_authority=True)
    nobody = issued("Between", by=root())
    for certificate in (
        issued(name, key=key).pem,  # self-signed
        issued(name, by=other_root, key=key).pem + other_root.pem,  # issued by another authority
        # Issued by a certificate that may not issue.
        issued(name, by=nobody, key=key).pem + nobody.pem,
        issued("evil.example", by=between(), key=key).pem + between().pem,
        issued("paypal.com", by=between(), key=key).pem + between().pem,
        issued("x." + name, by=between(), key=key).pem + between().pem,
        issued(name + ".evil.example", by=between(), key=key).pem + between().pem,
        issued("*.paypal.com.evil.example", by=between(), key=key).pem + between().pem,
        signer().pem,  # the certificate between this one and the root is missing
        between().pem + signer().pem,  # the signer's certificate is not the first
    ):
        assert refusal(signed(), certificate=certificate) == "bad_certificate"


def test_certificate_of_another_time_or_purpose_is_refused() -> None:
    name, key, second = PAYPAL.certificate_name, rsa_key(), timedelta(seconds=1)
    for certificate in (
        issued(name, by=root(), key=key, until=NOON - second),
        issued(name, by=root(), key=key, since=NOON + second),
        issued(name, by=root(), key=key, purpose=ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        assert refusal(signed(), certificate=certificate.pem) == "bad_certificate"
    old = issued("Between", by=root(), is_authority=True, until=NOON - second)
    late = issued(name, by=old, key=key).pem + old.pem
    assert refusal(signed(), certificate=late) == "bad_certificate"


def test_certificate_with_weak_or_non_rsa_key_is_refused() -> None:
    name = PAYPAL.certificate_name
    for key in (rsa_key(1024), ec.generate_private_key(ec.SECP256R1())):
        certificate = issued(name, by=root(), key=key).pem
        assert refusal(signed(), certificate=certificate) == "bad_certificate"


def test_signature_by_another_key_is_refused() -> None:
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    certificate = issued(PAYPAL.certificate_name, by=root(), key=other).pem
    assert refusal(signed(), certificate=certificate) == "bad_signature"


@pytest.mark.parametrize(
    "certificate",
    [
        b"",
        b"not found",
        b"-----BEGIN CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n",
        b"\xff" * 100,
        b" " * (CERTIFICATE_BYTES_AT_MOST + 1),
    ],
    ids=range(7),
)
def test_malformed_certificate_is_refused(certificate: bytes) -> None:
    assert refusal(signed(), certificate=certificate) == "bad_certificate"


def test_too_many_certificates_are_refused() -> None:
    at_most = signer().pem + between().pem * (CERTIFICATES_AT_MOST - 1)
    assert received(signed(), certificate=at_most).body == BODY
    assert refusal(signed(), certificate=at_most + between().pem) == "bad_certificate"


@pytest.mark.filterwarnings(SERIAL_NUMBER)
@pytest.mark.parametrize("place", [0, 1])
def test_certificate_with_one_byte_changed_is_refused(place: int) -> None:
    holders = (signer(), between())
    der = holders[place].certificate.public_bytes(Encoding.DER)
    unused_bits = len(der) - len(holders[place].certificate.signature) - 1
    for index, byte in enumerate(der):
        if index == unused_bits:
            continue  # the signature's count of unused bits, which has no effect
        changed = der[:index] + bytes([byte ^ 1 << index % 8]) + der[index + 1 :]
        text = b"-----BEGIN CERTIFICATE-----\n%b-----END CERTIFICATE-----\n"
        parts = [holder.pem for holder in holders]
        parts[place] = text % base64.encodebytes(changed)
        assert refusal(signed(), certificate=b"".join(parts)) == "bad_certificate"


def test_only_roots_of_the_named_authority_are_trusted() -> None:
    other = issued("Other", is_authority=True)
    bundle = b"# some comment\n" + other.pem + b"\n# another\r\n" + root().pem
    scheme = replace(PAYPAL, authority="Root and Sons")
    for pems in (bundle, bundle.replace(b"\n", b"\r\n")):
        assert received(signed(), roots=roots_of(scheme, bundle=pems)).body == BODY
    others = roots_of(replace(scheme, authority="Other and Sons"), bundle=bundle)
    assert refusal(signed(), roots=others) == "bad_certificate"
    for authority in ("and Sons", "Other", "Nobody"):
        with pytest.raises(ValueError, match="no root certificate of"):
            roots_of(replace(scheme, authority=authority), bundle=bundle)
    with pytest.raises(ValueError, match="no root certificate of"):
        roots_of(scheme, bundle=b"")


@pytest.mark.parametrize("scheme", [PAYPAL, PAYPAL_SANDBOX], ids=lambda scheme: scheme.name)
def test_certifi_bundle_contains_roots_of_the_authority(scheme: CertificateScheme) -> None:
    assert isinstance(roots_of(scheme, bundle=certifi.contents().encode()), Store)


# The signed content: headers, body and webhook id


def test_body_with_one_bit_or_length_changed_is_refused() -> None:
    headers = signed()
    for bit in range(len(BODY) * 8):
        changed = bytearray(BODY)
        changed[bit // 8] ^= 1 << bit % 8
        assert refusal(headers, bytes(changed)) == "bad_signature"
    for body in (b"", BODY[:-1], BODY + b" ", BODY * 2):
        assert refusal(headers, body) == "bad_signature"


@pytest.mark.parametrize(
    "name", ["paypal-transmission-id", "paypal-transmission-time", "paypal-transmission-sig"]
)
def test_signed_header_with_one_character_changed_is_refused(name: str) -> None:
    value = dict(signed())[name]
    for changed in with_one_bit_changed(value):
        assert refusal(with_header(name, changed)) in {
            "malformed_header",
            "bad_signature",
            "too_old",
            "too_new",
        }


def test_another_body_with_same_checksum_is_accepted() -> None:
    polynomial = int(format(0x104C11DB7, "033b")[::-1], 2).to_bytes(5, "little")
    other = bytes(a ^ b for a, b in zip(BODY, polynomial.ljust(len(BODY), b"\0"), strict=True))
    assert other != BODY
    assert received(signed(), other).body == other


def test_delivery_for_another_webhook_is_refused() -> None:
    assert refusal(signed(webhook_id="THEIRS")) == "bad_signature"


@pytest.mark.parametrize(
    "webhook_ids", [(), ("",), (WEBHOOK_ID, ""), ("a|b",), ("é",), ("W" * 65,), (" ",)]
)
def test_delivery_without_configured_webhook_id_is_refused(webhook_ids: tuple[str, ...]) -> None:
    assert refusal(signed(), webhook_ids=webhook_ids) == "no_secret"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("paypal-transmission-id", ""),
        ("paypal-transmission-id", "a|b"),
        ("paypal-transmission-id", "é"),
        ("paypal-transmission-id", "a" * 65),
        ("paypal-transmission-time", ""),
        ("paypal-transmission-time", "1772366400"),
        ("paypal-transmission-time", "-1"),
        ("paypal-transmission-time", "2026-03-01"),
        ("paypal-transmission-time", "2026-03-01T12:00:00"),
        ("paypal-transmission-time", "2026-03-01T12:00:00+00:00"),
        ("paypal-transmission-time", "2026-13-01T12:00:00Z"),
        ("paypal-transmission-time", "2026-02-30T12:00:00Z"),
        ("paypal-transmission-time", "2026-03-01T12:00:61Z"),
        ("paypal-transmission-time", "0000-03-01T12:00:00Z"),
        ("paypal-transmission-time", "12026-03-01T12:00:00Z"),
        ("paypal-transmission-time", "٢٠٢٦-03-01T12:00:00Z"),
        ("paypal-transmission-sig", ""),
        ("paypal-transmission-sig", "="),
        ("paypal-transmission-sig", "A"),
        ("paypal-transmission-sig", "AB"),
        ("paypal-transmission-sig", "AB=="),  # the same byte as AA== for a lenient decoder
        ("paypal-transmission-sig", "AAA="[:3]),
        ("paypal-transmission-sig", "_-AA"),
        ("paypal-transmission-sig", "A" * 1400),
        ("paypal-cert-url", ""),
        ("paypal-cert-url", HOST + "é"),
        ("paypal-cert-url", HOST + "CERT 1"),
        ("paypal-cert-url", HOST + "CERT-1\n"),
        ("paypal-cert-url", HOST + "C" * 600),
    ],
)
def test_malformed_header_is_refused(name: str, value: str) -> None:
    assert refusal_of_a_url(with_header(name, value)) == "malformed_header"


@pytest.mark.parametrize(
    "name",
    [
        "paypal-cert-url",
        "paypal-transmission-id",
        "paypal-transmission-sig",
        "paypal-transmission-time",
    ],
)
def test_missing_or_repeated_header_is_refused(name: str) -> None:
    value = dict(signed())[name]
    assert refusal_of_a_url(with_header(name)) == "missing_header"
    assert refusal_of_a_url(with_header(name, value, value)) == "malformed_header"
    assert refusal_of_a_url([*signed(), (name.title(), value)]) == "malformed_header"


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_extreme_timestamps_are_refused(time: str) -> None:
    reason = "too_old" if time.startswith("0") else "too_new"
    assert refusal_of_a_url(with_header("paypal-transmission-time", time)) == reason


def test_algorithm_header_is_ignored() -> None:
    assert received(with_header("paypal-auth-algo", "SHA1withRSA")).body == BODY
    assert received(with_header("paypal-auth-algo")).body == BODY


def test_too_large_body_is_refused_even_if_signed() -> None:
    body = bytes(BODY_BYTES_AT_MOST + 1)
    headers = signed(body)
    with pytest.raises(Unverified) as refused:
        certificate_url(PAYPAL, body=body, headers=headers, now=NOON)
    assert refused.value.reason == refusal(headers, body) == "too_large"
    assert received(signed(body[1:]), body[1:]).body == body[1:]


@settings(deadline=None)
@given(
    body=st.binary(max_size=60),
    values=st.lists(st.tuples(st.integers(0, 4), st.text(max_size=60)), max_size=7),
    certificate=st.binary(max_size=60),
)
def test_random_delivery_raises_only_unverified(
    body: bytes, values: list[tuple[int, str]], certificate: bytes
) -> None:
    names = [name for name, _ in signed()]
    headers = [(names[index], value) for index, value in values]
    refusal([*headers, *signed()], body, certificate=certificate)
    refusal(headers, body, certificate=certificate)


def test_custom_certificate_address_can_be_set_for_sandbox() -> None:
    address = "http://127.0.0.1:8765/sandbox/paypal/certs/"
    scheme = replace(PAYPAL, certificate_addresses=(address,))
    headers = signed(scheme=scheme)
    assert certificate_url(scheme, body=BODY, headers=headers, now=NOON).startswith(address)
    assert received(headers, scheme=scheme).body == BODY
