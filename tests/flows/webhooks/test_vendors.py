"""Published examples of vendors are accepted, and signatures of Adyen's own library too.

test_vendors_sandbox.py has the tests with the sandbox's signatures.
"""

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from Adyen.util import (  # type: ignore[import-untyped]
    generate_notification_sig,
    is_valid_hmac_notification,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.errors import Unverified
from flows.payments.declared.catalog.adyen_items import Item, item_in, verify_items
from flows.payments.declared.catalog.paddle import PADDLE
from flows.payments.declared.catalog.square import SQUARE
from flows.webhooks.signatures import Delivery, verify
from tests.support import signing
from tests.support.clock import NOON
from tests.support.declared_env import ADYEN_KEY
from tests.support.signers import URL, adyens

references = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=80)
items = st.builds(
    Item,
    psp_reference=references,
    original_reference=references | st.just(""),
    merchant_account=references,
    merchant_reference=st.text(max_size=80),
    amount=st.integers(-(10**12), 10**12),
    currency=st.from_regex(r"\A[A-Z]{3}\Z"),
    event=st.from_regex(r"\A[A-Z_]{1,40}\Z"),
    is_success=st.booleans(),
)


def adyens_body(*items: dict[str, Any]) -> bytes:
    entries = [{"NotificationRequestItem": item} for item in items]
    return httpx.Request("POST", URL, json={"live": "false", "notificationItems": entries}).content


# Paddle


def test_paddles_own_example_is_accepted_while_its_secrets_roll() -> None:
    then = datetime.fromtimestamp(1696195954, UTC)
    value = (
        "ts=1696195954;h1=dummy;h1=d96299976a6eb066f484d7fde011ac56fc32b38fc9940bc419d6e537fdc6ef02"
    )
    endpoint = "pdl_ntf_01hbpjmytsa32fhr36nqgc3kgb_"
    retired, current = (
        endpoint + "TjIG2BXbm83HPXqNfziwe506sBEdqL/4",
        endpoint + "WvRO0eL4Bj9rgYYIBZY6wZhG4EHy9jzh",
    )
    delivery = verify(
        PADDLE,
        body=b"hello-world",
        headers=[("Paddle-Signature", value)],
        secrets=[retired, current],
        now=then,
    )
    assert (delivery.body, delivery.sent_at) == (b"hello-world", then)


# Square


@pytest.mark.parametrize(
    ("body", "signature"),
    [
        (
            b'{"data":{"type":"webhooks","id":"fake_id"}}',
            "W3FlCNk5IA3ZQ2LHTWoajvzfaDu/OwY2tNHIHC3IUOA=",
        ),
        (
            b'{"data":{"type":"webhooks","id":">id<"}}',
            "Cxt7+aTi4rKgcA0bC4g9EHdVtLSDWdqccmL5MvihU4U=",
        ),
    ],
)
def test_squares_own_examples_are_accepted(body: bytes, signature: str) -> None:
    delivery = verify(
        SQUARE,
        body=body,
        headers=[("X-Square-HmacSha256-Signature", signature)],
        secrets=["signature-key"],
        now=NOON,
        url="https://webhook.site/webhooks",
    )
    assert delivery.body == body


# Adyen


@settings(deadline=None)
@given(item=items, key=st.binary(min_size=16, max_size=64).filter(any))
def test_what_adyen_signs_is_accepted_and_what_is_signed_adyen_accepts(
    item: Item, key: bytes
) -> None:
    theirs = adyens(item)
    signature = generate_notification_sig(theirs, key.hex()).decode()
    body = adyens_body(theirs | {"additionalData": {"hmacSignature": signature}})
    [delivery] = verify_items(body=body, secrets=[key.hex().upper()], now=NOON)
    assert isinstance(delivery, Delivery)
    assert item_in(delivery.body) == item
    ours = httpx.Response(200, content=signing.adyen([adyens(item)], secret=key.hex())).json()
    assert is_valid_hmac_notification(ours, key.hex())
    ours["notificationItems"][0]["NotificationRequestItem"]["amount"]["value"] += 1
    assert not is_valid_hmac_notification(ours, key.hex())


def test_adyens_published_example_is_accepted() -> None:
    example = {
        "additionalData": {"hmacSignature": "coqCmt/IZ4E3CzPvMY8zTjQVL5hYJUiBRg8UU+iCWo0="},
        "amount": {"value": 1130, "currency": "EUR"},
        "pspReference": "7914073381342284",
        "eventCode": "AUTHORISATION",
        "eventDate": "2019-05-06T17:15:34.121+02:00",
        "merchantAccountCode": "TestMerchant",
        "operations": ["CANCEL", "CAPTURE", "REFUND"],
        "merchantReference": "TestPayment-1407325143704",
        "paymentMethod": "visa",
        "success": "true",
    }
    [delivery] = verify_items(body=adyens_body(example), secrets=[ADYEN_KEY], now=NOON)
    assert isinstance(delivery, Delivery)
    assert delivery.body == (
        b"7914073381342284::TestMerchant:TestPayment-1407325143704:1130:EUR:AUTHORISATION:true"
    )
    item = item_in(delivery.body)
    assert (item.id, item.amount, item.currency) == (
        "7914073381342284:AUTHORISATION:true",
        1130,
        "EUR",
    )
    [refused] = verify_items(body=adyens_body(example), secrets=["00" * 31 + "01"], now=NOON)
    assert isinstance(refused, Unverified)
    assert refused.reason == "bad_signature"
