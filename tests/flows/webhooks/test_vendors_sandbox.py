"""Signatures of the sandbox: the vendor's own library accepts them, and rejects changed ones."""

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
import stripe
from hypothesis import given, settings
from hypothesis import strategies as st
from standardwebhooks import Webhook as StandardWebhook
from standardwebhooks import WebhookVerificationError
from svix.webhooks import Webhook as SvixWebhook

from flows.errors import Unverified
from flows.payments.stripe.gateway import STRIPE
from flows.webhooks.signatures import STANDARD_WEBHOOKS, Scheme, verify
from tests.support import signing
from tests.support.signers import SIGNERS, URL
from tests.support.signing import Headers

STRIPE_SECRET = "whsec_5tripe5tripe5tripe5tripe5tripe55"
STANDARD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
alphanumeric = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1)
keys = st.binary(min_size=24, max_size=64).filter(any)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """A signature scheme, and the vendor's own library that verifies its signatures."""

    scheme: Scheme
    secret: str
    secrets: st.SearchStrategy[str] = alphanumeric  # other valid secrets
    accepts: Callable[[bytes, Headers, str], bool]  # raises or returns False for a bad signature
    signs: Callable[[str, str, datetime], str]  # the library's signing function
    # The vendor's own way to sign, if it differs from the scheme's.
    sign: Callable[[bytes, str, datetime], Headers] | None = None
    refuses_clock: Callable[[timedelta], bool] = bool  # True if it refuses this difference

    def signed(self, body: bytes, now: datetime, *, secret: str | None = None) -> Headers:
        """Return the headers that the sandbox sends, which have a signature like the vendor's."""
        return (self.sign or SIGNERS[self.scheme])(body, secret or self.secret, now)


def stripe_accepts(body: bytes, headers: Headers, secret: str) -> bool:
    [(_, value)] = headers
    stripe.Webhook.construct_event(body, value, secret)
    return True


def standard_accepts(body: bytes, headers: Headers, secret: str) -> bool:
    StandardWebhook(secret).verify(body, dict(headers), json_parse=False)
    return True


def svix_accepts(body: bytes, headers: Headers, secret: str) -> bool:
    SvixWebhook(secret).verify(body, dict(headers))
    return True


in_base64 = keys.map(lambda key: "whsec_" + base64.b64encode(key).decode())
VENDORS = {
    "stripe": Vendor(
        scheme=STRIPE,
        secret=STRIPE_SECRET,
        accepts=stripe_accepts,
        signs=lambda body, secret, now: stripe.WebhookSignature.generate_signature_header(
            body, secret, timestamp=int(now.timestamp())
        ),
        # the library accepts any time in the future
        refuses_clock=lambda error: error < timedelta(0),
    ),
    "standard-webhooks": Vendor(
        scheme=STANDARD_WEBHOOKS,
        secret=STANDARD_SECRET,
        secrets=in_base64,
        accepts=standard_accepts,
        signs=lambda body, secret, now: StandardWebhook(secret).sign("msg_1", now, body),
    ),
    "svix": Vendor(
        scheme=STANDARD_WEBHOOKS,
        secret=STANDARD_SECRET,
        secrets=in_base64,
        accepts=svix_accepts,
        signs=lambda body, secret, now: SvixWebhook(secret).sign("msg_1", now, body),
        sign=lambda body, secret, now: signing.svix(body, secret=secret, now=now, id="msg_1"),
    ),
}
each = pytest.mark.parametrize("vendor", VENDORS.values(), ids=VENDORS)


def event(id: str) -> bytes:
    """Return a body that all of the libraries can read."""
    about = {"id": id, "object": "event", "event": {"id": id}}
    return json.dumps(about, ensure_ascii=False).encode()


def vendor_accepts(
    vendor: Vendor, body: bytes, headers: Headers, secret: str | None = None
) -> bool:
    """Return True if the vendor's library accepts the body. Each library rejects in its own way."""
    refusals = (
        stripe.SignatureVerificationError,
        WebhookVerificationError,
        ValueError,  # a value that is not text, base64 or a number
        TypeError,  # a comparison in constant time of text that is not ASCII
        KeyError,
    )
    try:
        return vendor.accepts(body, headers, secret or vendor.secret)
    except refusals:
        return False


def is_accepted(
    vendor: Vendor, body: bytes, headers: Headers, *, now: datetime, secret: str | None = None
) -> bool:
    secrets = [secret or vendor.secret]
    try:
        delivery = verify(
            vendor.scheme, body=body, headers=headers, secrets=secrets, now=now, url=URL
        )
    except Unverified:
        return False
    return delivery.body == body


def with_one_bit_changed(body: bytes) -> Iterator[bytes]:
    for bit in range(len(body) * 8):
        changed = bytearray(body)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)


def is_another_spelling(changed: str, value: str) -> bool:
    """Return True if both values have the same label and decode to the same bytes."""
    label, _, text = value.partition(",")
    changed_label, _, changed_text = changed.partition(",")
    same = base64.b64decode(changed_text) == base64.b64decode(text)
    return label == changed_label and same


@each
@settings(deadline=None)
@given(id=st.text(max_size=40), text=st.text(min_size=1), data=st.data())
def test_vendor_and_our_code_accept_each_others_signatures(
    vendor: Vendor, id: str, text: str, data: st.DataObject
) -> None:
    now = datetime.now(UTC).replace(microsecond=0)  # the vendors' libraries read the real clock
    secret, body = data.draw(vendor.secrets), event(id)
    headers = vendor.signed(body, now, secret=secret)
    assert vendor.accepts(body, headers, secret)
    assert not vendor_accepts(vendor, body + b" ", headers, secret)
    assert is_accepted(vendor, body, headers, now=now, secret=secret)
    *others, (name, value) = vendor.signed(text.encode(), now, secret=secret)
    assert vendor.signs(text, secret, now) == value
    secrets, vendor_headers = [secret], [*others, (name, value)]
    delivery = verify(
        vendor.scheme, body=text.encode(), headers=vendor_headers, secrets=secrets, now=now
    )
    assert (delivery.scheme, delivery.body) == (vendor.scheme.name, text.encode())
    assert delivery.sent_at == now
    assert delivery.id == ("msg_1" if vendor.scheme.id_header else None)


@each
def test_body_with_one_bit_changed_is_refused_by_vendor_and_by_us(vendor: Vendor) -> None:
    body, now = event("evt_1"), datetime.now(UTC)
    headers = vendor.signed(body, now)
    for changed in with_one_bit_changed(body):
        assert not vendor_accepts(vendor, changed, headers)
        assert not is_accepted(vendor, changed, headers, now=now)


@each
def test_header_with_one_bit_changed_is_refused_except_respellings_by_vendor(
    vendor: Vendor,
) -> None:
    body, now = event("evt_1"), datetime.now(UTC)
    headers = vendor.signed(body, now)
    for index, (name, value) in enumerate(headers):
        for raw in with_one_bit_changed(value.encode()):
            text = raw.decode("latin-1")
            changed = [*headers[:index], (name, text), *headers[index + 1 :]]
            assert not is_accepted(vendor, body, changed, now=now)
            if vendor_accepts(vendor, body, changed):
                assert is_another_spelling(text, value), text


@each
def test_signature_with_another_secret_is_refused_by_vendor_and_by_us(vendor: Vendor) -> None:
    body, now = event("evt_1"), datetime.now(UTC)
    headers = vendor.signed(body, now, secret="whsec_c2VjcmV0IHNlY3JldCBzZWNyZXQ=")
    assert not vendor_accepts(vendor, body, headers)
    assert not is_accepted(vendor, body, headers, now=now)


@pytest.mark.parametrize("direction", [-1, 1], ids=["old", "future"])
@each
def test_signature_of_another_time_is_refused_by_vendor_and_by_us(
    vendor: Vendor, direction: int
) -> None:
    body, now = event("evt_1"), datetime.now(UTC)
    error = direction * timedelta(minutes=6)
    headers = vendor.signed(body, now + error)
    assert vendor_accepts(vendor, body, headers) is not vendor.refuses_clock(error)
    assert not is_accepted(vendor, body, headers, now=now)
    assert is_accepted(vendor, body, headers, now=now + error)


# Published examples

STANDARD_PRIVATE = (
    "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
)
STANDARD_V1A = (
    "hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="
)


@pytest.mark.parametrize(
    ("secret", "signature"),
    [
        (STANDARD_SECRET, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
        (STANDARD_PRIVATE, f"v1a,{STANDARD_V1A}"),
    ],
    ids=["v1", "v1a"],
)
def test_published_standard_webhooks_example_is_reproduced(secret: str, signature: str) -> None:
    then, id = datetime.fromtimestamp(1614265330, UTC), "msg_p5jXN8AQM9LWM0D4loKWxJek"
    assert signing.standard_webhooks(b'{"test": 2432232314}', secret=secret, now=then, id=id) == [
        ("webhook-id", id),
        ("webhook-timestamp", "1614265330"),
        ("webhook-signature", signature),
    ]


def test_published_paddle_square_and_github_examples_are_reproduced() -> None:
    mac = "d96299976a6eb066f484d7fde011ac56fc32b38fc9940bc419d6e537fdc6ef02"
    assert signing.paddle(
        b"hello-world",
        secret="pdl_ntf_01hbpjmytsa32fhr36nqgc3kgb_WvRO0eL4Bj9rgYYIBZY6wZhG4EHy9jzh",
        now=datetime.fromtimestamp(1696195954, UTC),
    ) == [("Paddle-Signature", f"ts=1696195954;h1={mac}")]
    assert signing.square(
        b'{"data":{"type":"webhooks","id":"fake_id"}}',
        secret="signature-key",
        url="https://webhook.site/webhooks",
    ) == [("x-square-hmacsha256-signature", "W3FlCNk5IA3ZQ2LHTWoajvzfaDu/OwY2tNHIHC3IUOA=")]
    mac = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert signing.github(b"Hello, World!", secret="It's a Secret to Everybody") == [
        ("X-Hub-Signature-256", f"sha256={mac}")
    ]
