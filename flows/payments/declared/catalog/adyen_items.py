"""Adyen's webhooks: several items in one delivery, each signed by itself inside the body.

What could go wrong: of each item eight fields are signed and no more, joined by colons. So an
item's Delivery holds their text and nothing that stands beside it; one field alone may have a colon
in it, or a border could be moved; and a good item vouches for no other.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeVar

import msgspec

from flows.elicitation.states import Json
from flows.errors import Unverified
from flows.webhooks.signatures import BODY_BYTES_AT_MOST, Delivery, Scheme, verify

ITEMS_AT_MOST: Final = 64

_StructT = TypeVar("_StructT", bound=msgspec.Struct)

# Only the merchant's own reference, the fourth, may have colons: there is one way to read it.
_SIGNED = re.compile(
    r"([^:]{1,80}):([^:]{0,80}):([^:]{1,80}):(.{0,255}):(-?[0-9]{1,18}):([A-Z]{3}):([A-Z0-9_]{1,80})"
    r":(true|false)",
    re.DOTALL | re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What Adyen signs of an item; `amount` is in minor units."""

    psp_reference: str
    original_reference: str = ""
    merchant_account: str
    merchant_reference: str
    amount: int
    currency: str
    event: str
    is_success: bool

    @property
    def id(self) -> str:
        """The same when the item is sent again, another one if its outcome changes."""
        return f"{self.psp_reference}:{self.event}:{_word(is_success=self.is_success)}"


def verify_items(
    *, body: bytes, secrets: Sequence[str], now: datetime
) -> tuple[Delivery | Unverified, ...]:
    """For each item of a body, in order: its Delivery, or why it is none.

    Raises Unverified for all of them with the reason too_large, malformed_body or no_secret.
    """
    if len(body) > BODY_BYTES_AT_MOST:
        raise Unverified("too_large")
    items = _decoded(body, _Notice).notification_items
    if not 1 <= len(items) <= ITEMS_AT_MOST:
        raise Unverified("malformed_body")
    results: list[Delivery | Unverified] = []
    for item in items:
        try:
            results.append(_verified(item, secrets=secrets, now=now))
        except Unverified as error:
            if error.reason == "no_secret":
                raise
            results.append(Unverified(error.reason))  # without its traceback, which holds us
    return tuple(results)


def item_in(signed: bytes) -> Item:
    """What an item's signed text says, once it was verified. Raises ValueError for other text."""
    fields = _SIGNED.fullmatch(signed.decode())
    if fields is None:
        raise ValueError("That is no item of Adyen's.")
    psp, original, account, reference, amount, currency, event, success = fields.groups()
    return Item(
        psp_reference=psp,
        original_reference=original,
        merchant_account=account,
        merchant_reference=reference,
        amount=int(amount),
        currency=currency,
        event=event,
        is_success=success == "true",
    )


def as_json(item: Item) -> Json:
    """The item for a declaration to read; its type says whether it succeeded.

    `payment` is what the item is about: of what comes after a payment, that payment.
    """
    return {
        "id": item.id,
        "type": f"{item.event}:{_word(is_success=item.is_success)}",
        "payment": item.original_reference or item.psp_reference,
        "account": item.merchant_account,
        "reference": item.merchant_reference,
        "amount": item.amount,
        "currency": item.currency,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemScheme(Scheme):
    """Each item of a body is signed by itself."""

    def deliveries(
        self,
        *,
        body: bytes,
        headers: Sequence[tuple[str, str]],  # nothing is signed in them
        secrets: Sequence[str],
        now: datetime,
        url: str,
    ) -> Sequence[Delivery | Unverified]:
        return verify_items(body=body, secrets=secrets, now=now)

    def decode(self, body: bytes) -> Json:
        return as_json(item_in(body))


ADYEN: Final = ItemScheme(
    name="adyen",
    signature_header="hmacsignature",
    encoding="base64",
    key="hex",
    accepted="[accepted]",
)


class _Amount(msgspec.Struct, frozen=True, kw_only=True):
    value: int
    currency: str


class _Signature(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    hmac_signature: str


class _Fields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An item in Adyen's words; what else it has is not signed, and not read."""

    additional_data: _Signature
    psp_reference: str
    original_reference: str | None = None
    merchant_account_code: str
    merchant_reference: str
    amount: _Amount
    event_code: str
    success: Literal["true", "false"]


class _Entry(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    notification_request_item: _Fields


class _Notice(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    notification_items: list[msgspec.Raw]


def _verified(raw: msgspec.Raw, *, secrets: Sequence[str], now: datetime) -> Delivery:
    fields = _decoded(bytes(raw), _Entry).notification_request_item
    headers = [(ADYEN.signature_header, fields.additional_data.hmac_signature)]
    return verify(ADYEN, body=_text(fields), headers=headers, secrets=secrets, now=now)


def _text(fields: _Fields) -> bytes:
    values = (
        fields.psp_reference,
        fields.original_reference or "",
        fields.merchant_account_code,
        fields.merchant_reference,
        str(fields.amount.value),
        fields.amount.currency,
        fields.event_code,
        fields.success,
    )
    text = ":".join(values)
    found = _SIGNED.fullmatch(text)
    if found is None or found.groups() != values:
        raise Unverified("malformed_body")
    return text.encode()


def _word(*, is_success: bool) -> Literal["true", "false"]:
    return "true" if is_success else "false"


def _decoded(data: bytes, type_: type[_StructT]) -> _StructT:
    try:
        return msgspec.json.decode(data, type=type_)
    except (ValueError, RecursionError):  # what is not UTF-8 too
        raise Unverified("malformed_body") from None
