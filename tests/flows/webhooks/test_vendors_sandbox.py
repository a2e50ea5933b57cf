"""Signatures of the sandbox: the vendor's own library accepts them, and rejects every change."""

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
import stripe
from Adyen.util import is_valid_hmac_notification  # type: ignore[import-untyped]
from coinbase_commerce.error import (  # type: ignore[import-untyped]
    SignatureVerificationError,
    WebhookInvalidPayload,
)
from coinbase_commerce.webhook import Webhook as CoinbaseWebhook  # type: ignore[import-untyped]
from coinbase_commerce.webhook import WebhookSignature as CoinbaseSignature
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle_billing.Notifications import (  # type: ignore[import-untyped]
    PaddleSignature,
    Secret,
    Verifier,
)
from square.utils.webhooks_helper import verify_signature as square_verifies
from standardwebhooks import Webhook as StandardWebhook
from standardwebhooks import WebhookVerificationError
from svix.webhooks import Webhook as SvixWebhook

from flows.errors import Unverified
from flows.payments.declared.catalog.adyen_items import item_in, verify_items
from flows.payments.declared.catalog.coinbase import COINBASE
from flows.payments.declared.catalog.paddle import PADDLE
from flows.payments.declared.catalog.polar import POLAR
from flows.payments.declared.catalog.square import SQUARE
from flows.payments.stripe.account import STRIPE
from flows.webhooks.signatures import STANDARD_WEBHOOKS, Delivery, Scheme, verify
from tests.support import signing
from tests.support.clock import NOON
from tests.support.signers import SIGNERS, URL
from tests.support.signing import Headers

STRIPE_SECRET = "whsec_5tripe5tripe5tripe5tripe5tripe55"
STANDARD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
POLAR_SECRET = "polar_whs_secret"
SECRET = "a secret of the vendor's"
ADYEN_KEY = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056"
ADYEN_SIGNED = (
    "pspReference",
    "originalReference",
    "merchantAccountCode",
    "merchantReference",
    "amount",
    "eventCode",
    "success",
)
ADYEN_ITEM = {
    "amount": {"value": 1130, "currency": "EUR"},
    "pspReference": "7914073381342284",
    "eventCode": "AUTHORISATION",
    "merchantAccountCode": "TestMerchant",
    "merchantReference": "TestPayment-1407325143704",
    "success": "true",
}


letters = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1)
keys = st.binary(min_size=24, max_size=64).filter(any)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """A scheme, and the vendor's own library to verify what is signed with it."""

    scheme: Scheme
    secret: str
    secrets: st.SearchStrategy[str] = letters  # other valid secrets
    accepts: Callable[[bytes, Headers, str], bool]  # raises or returns False for a bad signature
    signs: Callable[[str, str, datetime], str] | None = None  # the library's signing function
    # The vendor's own way to sign, if it differs from the scheme's.
    sign: Callable[[bytes, str, datetime], Headers] | None = None
    refuses_clock: Callable[[timedelta], bool] | None = None  # True for refused clock errors

    def signed(self, body: bytes, now: datetime, *, secret: str | None = None) -> Headers:
        """Sign in the sandbox, as the vendor does."""
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


def polars(secret: str) -> StandardWebhook:
    """Return Polar's verifier, which is Standard Webhooks' with a base64 secret."""
    return StandardWebhook(base64.b64encode(secret.encode()).decode())


def polar_accepts(body: bytes, headers: Headers, secret: str) -> bool:
    polars(secret).verify(body, dict(headers), json_parse=False)
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A request as Paddle's library reads it, with any text in its headers."""

    content: bytes
    headers: dict[str, str]


def paddle_accepts(body: bytes, headers: Headers, secret: str) -> bool:
    heard = Heard(content=body, headers=dict(headers))
    return bool(Verifier(60).verify(heard, Secret(secret)))


def paddle_signs(body: str, secret: str, now: datetime) -> str:
    time = int(now.timestamp())
    mac = PaddleSignature.calculate_hmac(secret, f"{time}:{body}".encode()).hexdigest()
    return f"ts={time};h1={mac}"


def square_accepts(body: bytes, headers: Headers, secret: str, *, url: str = URL) -> bool:
    [(_, value)] = headers
    return square_verifies(
        request_body=body.decode(),
        signature_header=value,
        signature_key=secret,
        notification_url=url,
    )


def coinbase_accepts(body: bytes, headers: Headers, secret: str) -> bool:
    [(_, value)] = headers
    CoinbaseWebhook.construct_event(body.decode(), value, secret)
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
        refuses_clock=bool,
    ),
    "svix": Vendor(
        scheme=STANDARD_WEBHOOKS,
        secret=STANDARD_SECRET,
        secrets=in_base64,
        accepts=svix_accepts,
        signs=lambda body, secret, now: SvixWebhook(secret).sign("msg_1", now, body),
        sign=lambda body, secret, now: signing.svix(body, secret=secret, now=now, id="msg_1"),
        refuses_clock=bool,
    ),
    "polar": Vendor(
        scheme=POLAR,
        secret=POLAR_SECRET,
        secrets=letters.map(lambda text: "polar_whs_" + text),
        accepts=polar_accepts,
        signs=lambda body, secret, now: polars(secret).sign("msg_1", now, body),
        refuses_clock=bool,
    ),
    "paddle": Vendor(
        scheme=PADDLE,
        secret=SECRET,
        accepts=paddle_accepts,
        signs=paddle_signs,
        refuses_clock=bool,
    ),
    "square": Vendor(scheme=SQUARE, secret=SECRET, accepts=square_accepts),
    "coinbase": Vendor(
        scheme=COINBASE,
        secret=SECRET,
        accepts=coinbase_accepts,
        signs=lambda body, secret, _: CoinbaseSignature._compute_signature(body, secret),
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
        SignatureVerificationError,
        WebhookInvalidPayload,
        ValueError,  # no text, no base64, no number
        TypeError,  # not ASCII, if two texts are compared in constant time
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
def test_what_the_vendor_signs_we_accept_and_what_the_sandbox_signs_the_vendor_accepts(
    vendor: Vendor, id: str, text: str, data: st.DataObject
) -> None:
    now = datetime.now(UTC).replace(microsecond=0)  # their libraries read the clock themselves
    secret, body = data.draw(vendor.secrets), event(id)
    headers = vendor.signed(body, now, secret=secret)
    assert vendor.accepts(body, headers, secret)
    assert not vendor_accepts(vendor, body + b" ", headers, secret)
    assert is_accepted(vendor, body, headers, now=now, secret=secret)
    if vendor.signs is None:
        return
    *others, (name, value) = vendor.signed(text.encode(), now, secret=secret)
    assert vendor.signs(text, secret, now) == value
    secrets, theirs = [secret], [*others, (name, value)]
    delivery = verify(vendor.scheme, body=text.encode(), headers=theirs, secrets=secrets, now=now)
    assert (delivery.scheme, delivery.body) == (vendor.scheme.name, text.encode())
    assert delivery.sent_at == (now if vendor.refuses_clock else None)
    assert delivery.id == ("msg_1" if vendor.scheme.id_header else None)


def test_square_accepts_what_is_signed_for_our_address_and_no_other() -> None:
    headers = VENDORS["square"].signed(event("evt_1"), NOON)
    for url in (URL, URL + "/"):
        assert square_accepts(event("evt_1"), headers, SECRET, url=url) is (url == URL)


@each
def test_a_body_with_one_bit_changed_is_refused_by_the_vendor_and_by_us(vendor: Vendor) -> None:
    body, now = event("evt_1"), datetime.now(UTC)
    headers = vendor.signed(body, now)
    for changed in with_one_bit_changed(body):
        assert not vendor_accepts(vendor, changed, headers)
        assert not is_accepted(vendor, changed, headers, now=now)


@each
def test_a_header_with_one_bit_changed_is_refused_by_us_and_but_for_spellings_by_the_vendor(
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
def test_what_another_secret_signs_is_refused_by_the_vendor_and_by_us(vendor: Vendor) -> None:
    body, now = event("evt_1"), datetime.now(UTC)
    headers = vendor.signed(body, now, secret="whsec_c2VjcmV0IHNlY3JldCBzZWNyZXQ=")
    assert not vendor_accepts(vendor, body, headers)
    assert not is_accepted(vendor, body, headers, now=now)


@pytest.mark.parametrize("direction", [-1, 1], ids=["old", "future"])
@pytest.mark.parametrize("name", [name for name, each in VENDORS.items() if each.refuses_clock])
def test_what_is_signed_at_another_time_is_refused_by_the_vendor_and_by_us(
    name: str, direction: int
) -> None:
    vendor, body, now = VENDORS[name], event("evt_1"), datetime.now(UTC)
    assert vendor.refuses_clock is not None
    error = direction * timedelta(minutes=6)
    headers = vendor.signed(body, now + error)
    assert vendor_accepts(vendor, body, headers) is not vendor.refuses_clock(error)
    assert not is_accepted(vendor, body, headers, now=now)
    assert is_accepted(vendor, body, headers, now=now + error)


# Adyen, whose signatures are in the body


def test_what_the_sandbox_signs_adyen_accepts_and_so_do_we() -> None:
    for item in (ADYEN_ITEM, {**ADYEN_ITEM, "originalReference": "1", "success": "false"}):
        body = signing.adyen([item], secret=ADYEN_KEY)
        assert is_valid_hmac_notification(json.loads(body), ADYEN_KEY)
        assert not is_valid_hmac_notification(json.loads(body), "00" * 31 + "01")
        [delivery] = verify_items(body=body, secrets=[ADYEN_KEY], now=NOON)
        assert isinstance(delivery, Delivery)
        assert item_in(delivery.body).psp_reference == ADYEN_ITEM["pspReference"]


def test_several_items_are_each_signed_by_themselves() -> None:
    items = [{**ADYEN_ITEM, "pspReference": str(number)} for number in range(3)]
    body = signing.adyen(items, secret=ADYEN_KEY)
    for entry in json.loads(body)["notificationItems"]:
        assert is_valid_hmac_notification(entry["NotificationRequestItem"], ADYEN_KEY)
    results = verify_items(body=body, secrets=[ADYEN_KEY], now=NOON)
    assert [type(result) for result in results] == [Delivery] * 3


def adyen_reads(body: bytes) -> object:
    """Return what Adyen's library has verified of the body's item, or None."""
    try:
        notice = json.loads(body)
        if not is_valid_hmac_notification(notice, ADYEN_KEY):
            return None
        item = notice["notificationItems"][0]["NotificationRequestItem"]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None
    return {name: item[name] for name in ADYEN_SIGNED if name in item}


def test_of_an_item_with_one_bit_changed_nothing_else_is_believed() -> None:
    body = signing.adyen([ADYEN_ITEM], secret=ADYEN_KEY)
    [good] = verify_items(body=body, secrets=[ADYEN_KEY], now=NOON)
    assert isinstance(good, Delivery)
    refused = 0
    for changed in with_one_bit_changed(body):
        assert adyen_reads(changed) in (None, ADYEN_ITEM)
        try:
            [result] = verify_items(body=changed, secrets=[ADYEN_KEY], now=NOON)
        except Unverified:
            result = None
        if isinstance(result, Delivery):
            assert (item_in(result.body), result.body) == (item_in(good.body), good.body)
        else:
            refused += 1
    # Most changes are refused. The others are in the JSON around the item, which is not signed.
    assert refused > len(body) * 7


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
def test_the_example_of_standard_webhooks_is_signed_as_it_is_published(
    secret: str, signature: str
) -> None:
    then, id = datetime.fromtimestamp(1614265330, UTC), "msg_p5jXN8AQM9LWM0D4loKWxJek"
    assert signing.standard_webhooks(b'{"test": 2432232314}', secret=secret, now=then, id=id) == [
        ("webhook-id", id),
        ("webhook-timestamp", "1614265330"),
        ("webhook-signature", signature),
    ]


def test_the_examples_of_paddle_square_and_github_are_signed_as_they_are_published() -> None:
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


def test_the_example_of_adyen_is_signed_as_it_is_published() -> None:
    [entry] = json.loads(signing.adyen([ADYEN_ITEM], secret=ADYEN_KEY))["notificationItems"]
    assert entry["NotificationRequestItem"]["additionalData"] == {
        "hmacSignature": "coqCmt/IZ4E3CzPvMY8zTjQVL5hYJUiBRg8UU+iCWo0="
    }
