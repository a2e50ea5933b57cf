"""Adyen's webhooks: several items in one delivery, each signed separately inside the body.

Risks: only eight fields of an item are signed, joined by colons. An item's Delivery therefore
contains only their text. Only one of these fields may contain a colon, otherwise the borders
between fields could be moved. A valid item does not verify any other item.
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

# Only the fourth field, the merchant's reference, may contain colons, so parsing is unambiguous.
_SIGNED = re.compile(
    r"([^:]{1,80}):([^:]{0,80}):([^:]{1,80}):(.{0,255}):(-?[0-9]{1,18}):([A-Z]{3}):([A-Z0-9_]{1,80})"
    r":(true|false)",
    re.DOTALL | re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """The signed fields of an item. `amount` is in minor units."""

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
        """The item's id. It is the same for a repeated item, and differs for another outcome."""
        return f"{self.psp_reference}:{self.event}:{_word(is_success=self.is_success)}"


def verify_items(
    *, body: bytes, secrets: Sequence[str], now: datetime
) -> tuple[Delivery | Unverified, ...]:
    """Return, for each item of a body in order, its Delivery or the reason it is rejected.

    Raises Unverified for the whole body with the reason too_large, malformed_body or no_secret.
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
            # without its traceback, which references this frame
            results.append(Unverified(error.reason))
    return tuple(results)


def item_in(signed: bytes) -> Item:
    """Parse an item's verified text. Raises ValueError if the text is not an item."""
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
    """Return the item as JSON for a declaration.

    The JSON's event type contains the success flag.

    Its `payment` is the payment that the item is about, also for later events such as refunds.
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
    """A scheme in which each item of a body is signed separately."""

    def deliveries(
        self,
        *,
        body: bytes,
        headers: Sequence[tuple[str, str]],  # the headers are not signed
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
    """An item in Adyen's format. Other fields are not signed, so they are not read."""

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
    except (ValueError, RecursionError):  # invalid UTF-8 raises ValueError too
        raise Unverified("malformed_body") from None
