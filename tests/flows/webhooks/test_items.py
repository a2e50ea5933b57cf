"""Adyen's items: each is verified alone, and only its signed fields are read."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.errors import Unverified
from flows.payments.declared.catalog.adyen_items import ITEMS_AT_MOST, Item, item_in, verify_items
from flows.webhooks.signatures import BODY_BYTES_AT_MOST, Delivery
from tests.support import signing
from tests.support.clock import NOON
from tests.support.signers import adyens

KEY = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056"
OTHER_KEY = "00112233445566778899aabbccddeeff"
ITEM = Item(
    psp_reference="7914073381342284",
    merchant_account="TestMerchant",
    merchant_reference="elc_1",
    amount=1130,
    currency="EUR",
    event="AUTHORISATION",
    is_success=True,
)
REFUND = replace(ITEM, original_reference=ITEM.psp_reference, psp_reference="8", event="REFUND")


def signed(item: Item) -> bytes:
    """Return the body in which Adyen would send the item."""
    return signing.adyen([adyens(item)], secret=KEY)


BODY = signed(ITEM)


def verification(body: bytes, *keys: str) -> tuple[Item | str, ...]:
    """Return each item's content, or why the item was refused."""
    return tuple(
        item_in(result.body) if isinstance(result, Delivery) else result.reason
        for result in verify_items(body=body, secrets=keys or (KEY,), now=NOON)
    )


def refusal(body: bytes, *keys: str) -> str:
    with pytest.raises(Unverified) as refused:
        verify_items(body=body, secrets=keys, now=NOON)
    return refused.value.reason


def changed(path: str, value: object) -> bytes:
    """Return the signed item with one field set, or without the field if the value is None."""
    notice = msgspec.json.decode(BODY)
    place = notice["notificationItems"][0]["NotificationRequestItem"]
    *above, name = path.split(".")
    for step in above:
        place = place[step]
    if value is None:
        del place[name]
    else:
        place[name] = value
    return msgspec.json.encode(notice)


def test_one_bad_item_spoils_no_other_and_a_good_one_vouches_for_none() -> None:
    forged = changed("amount.value", 1)
    parts = [
        body.removeprefix(b'{"live":"false","notificationItems":[').removesuffix(b"]}")
        for body in (BODY, forged, b"{}", signed(REFUND))
    ]
    body = b'{"live":"true","notificationItems":[' + b",".join(parts) + b"]}"
    assert verification(body) == (ITEM, "bad_signature", "malformed_body", REFUND)


def test_while_a_key_rolls_both_are_accepted() -> None:
    for keys in ((KEY, OTHER_KEY), (OTHER_KEY, KEY)):
        assert verification(BODY, *keys) == (ITEM,)
    assert verification(BODY, OTHER_KEY) == ("bad_signature",)


def test_what_is_not_signed_is_not_in_the_delivery() -> None:
    for path in ("paymentMethod", "reason", "additionalData.cardSummary"):
        [delivery] = verify_items(body=changed(path, "made up"), secrets=[KEY], now=NOON)
        assert isinstance(delivery, Delivery)
        assert (delivery.scheme, delivery.id, delivery.sent_at) == ("adyen", None, None)
        assert delivery.body == (
            b"7914073381342284::TestMerchant:elc_1:1130:EUR:AUTHORISATION:true"
        )


def test_an_item_that_comes_again_has_the_same_id_until_its_outcome_changes() -> None:
    ids = {ITEM.id, replace(ITEM, amount=1).id, replace(ITEM, is_success=False).id, REFUND.id}
    assert ids == {
        "7914073381342284:AUTHORISATION:true",
        "7914073381342284:AUTHORISATION:false",
        "8:REFUND:true",
    }


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("pspReference", "7914073381342285"),
        ("originalReference", "7914073381342284"),
        ("merchantAccountCode", "testMerchant"),
        ("merchantReference", "elc_2"),
        ("amount.value", 1),
        ("amount.currency", "USD"),
        ("eventCode", "CANCELLATION"),
        ("success", "false"),
        ("additionalData.hmacSignature", "coqCmt/IZ4E3CzPvMY8zTjQVL5hYJUiBRg8UU+iCWo0="),
    ],
)
def test_no_signed_field_can_change(path: str, value: object) -> None:
    assert verification(changed(path, value)) == ("bad_signature",)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("pspReference", None),
        ("pspReference", ""),
        ("pspReference", 7914073381342284),
        ("merchantAccountCode", None),
        ("merchantReference", None),
        ("amount", None),
        ("amount", 1130),
        ("amount.value", "1130"),
        ("amount.value", 1130.5),
        ("amount.value", True),
        ("amount.value", 10**18),
        ("amount.currency", "eur"),
        ("eventCode", "AUTHORISATION:true"),
        ("success", True),
        ("success", "TRUE"),
        ("additionalData", None),
        ("additionalData.hmacSignature", None),
        ("additionalData.hmacSignature", 1),
    ],
)
def test_a_field_of_another_form_is_refused(path: str, value: object) -> None:
    assert verification(changed(path, value)) == ("malformed_body",)


@pytest.mark.parametrize("signature", ["", "é", "=" * 5000])
def test_a_signature_that_is_none_is_refused(signature: str) -> None:
    assert verification(changed("additionalData.hmacSignature", signature)) == ("malformed_header",)


def test_a_border_cannot_be_moved() -> None:
    """A colon is allowed in one field only, so no second item can have the same signed text."""
    item = replace(ITEM, merchant_reference="TestMerchant:elc_1")
    body = signed(item)
    assert verification(body) == (item,)
    moved = body.replace(b'"TestMerchant"', b'"TestMerchant:TestMerchant"').replace(
        b'"TestMerchant:elc_1"', b'"elc_1"'
    )
    assert moved != body
    assert verification(moved) == ("malformed_body",)


@settings(deadline=None)
@given(reference=st.text(max_size=100))
def test_our_own_reference_may_be_any_text(reference: str) -> None:
    item = replace(ITEM, merchant_reference=reference)
    assert verification(signed(item)) == (item,)


@pytest.mark.parametrize(
    "fields",
    [
        {"psp_reference": ""},
        {"psp_reference": "a:b"},
        {"merchant_account": ""},
        {"merchant_reference": "m" * 256},
        {"amount": 10**18},
        {"currency": "euro"},
        {"event": "authorised"},
    ],
)
def test_what_is_never_sent_is_refused_though_it_is_signed(fields: dict[str, Any]) -> None:
    assert verification(signed(replace(ITEM, **fields))) == ("malformed_body",)


@pytest.mark.parametrize("secret", ["", "  ", "00", "0000", "no hex", "abc", "é"])
def test_what_is_no_key_opens_no_door(secret: str) -> None:
    assert refusal(BODY, secret) == "no_secret"
    assert refusal(BODY, KEY, secret) == "no_secret"


def test_without_any_key_nothing_is_accepted() -> None:
    assert refusal(BODY) == "no_secret"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b"\xff\xfe",
        b"\xef\xbb\xbf" + BODY,
        BODY + BODY,
        b'{"notificationItems":null}',
        b'{"notificationItems":{}}',
        b'{"notificationItems":[]}',
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b',"notificationItems":[{}]}',
        b'{"notificationItems":[' + b",".join([b"{}"] * (ITEMS_AT_MOST + 1)) + b"]}",
    ],
    ids=range(13),
)
def test_a_body_that_holds_no_items_is_refused(body: bytes) -> None:
    assert refusal(body, KEY) == "malformed_body"


@pytest.mark.parametrize(
    "item",
    [b"null", b"1", b'"x"', b"[]", b"{}", b'{"NotificationRequestItem":{}}', b"[" * 50_000],
    ids=range(7),
)
def test_an_item_that_is_none_is_refused(item: bytes) -> None:
    closing = b"]" * 50_000 if item.startswith(b"[[") else b""
    nested = b'{"notificationItems":[{"NotificationRequestItem":{"x":' + item + closing + b"}}]}"
    plain = b'{"notificationItems":[' + item + closing + b"]}"
    for body in (nested, plain):
        try:
            assert verification(body) == ("malformed_body",)
        except Unverified as error:
            assert error.reason == "malformed_body"  # noqa: PT017 - either of the two will do


def test_too_large_a_body_is_refused_before_it_is_read() -> None:
    assert refusal(b"[" * (BODY_BYTES_AT_MOST + 1), KEY) == "too_large"
    padded = BODY + b" " * (BODY_BYTES_AT_MOST - len(BODY))
    assert verification(padded) == (ITEM,)


@settings(deadline=None)
@given(body=st.binary(max_size=200))
def test_whatever_bytes_are_sent_nothing_but_unverified_is_raised(body: bytes) -> None:
    refusal(body, KEY)


@pytest.mark.parametrize("text", [b"", b"x", b"a:b", b"7::T:e:1:EUR:A:yes"])
def test_another_text_is_no_item(text: bytes) -> None:
    with pytest.raises(ValueError, match="no item"):
        item_in(text)
