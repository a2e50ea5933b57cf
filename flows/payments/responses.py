"""Shared conversion of providers' replies: amounts, payment pages and refusals.

Risks: an amount is read as a hundred times its value, an error page is read as a reply, or a
payment page is at another host. Amounts are parsed from digits and never rounded. Only the
code of a provider's error is used, because its sentences can contain parts of a key.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, TypeVar

import httpx
import msgspec
from msgspec import Struct

from flows.elicitation.flow import Talk
from flows.elicitation.states import Elicitation
from flows.errors import Failed, InvalidQuestion
from flows.origin import origin_of
from flows.payments.gateway import MerchantAccount, ProviderSession, require_terms
from flows.payments.money import MINOR_UNIT_DIGITS_AT_MOST, Money, digits_of
from flows.payments.receipt import Payment, Refund, RefundChange, RefundStatus
from flows.payments.refunds import remaining_total
from flows.payments.session import Id, Malformed, Mismatch, StoredCheckout

T = TypeVar("T")
GIVING_BACK = "refund the payment"
# Client errors that may succeed later: timeout, conflict, too early, too many requests.
_NOT_NOW = (408, 409, 425, 429)
# Client errors about the request itself, such as an amount that is too small, and not about
# credentials or settings.
_NEVER = (400, 402, 422)
_WRITTEN = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,6}))?", re.ASCII)
_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


class KeyUsed(Failed):
    """A create request was refused because its idempotency key was used for another request.

    So an earlier request exists and may have created a payment page.
    """

    def __init__(self, seller: MerchantAccount, *, why: str) -> None:
        super().__init__(
            f"{seller.label} has already opened a payment page for this question ({why}).",
            is_refusal=True,
        )


class ProviderRefund(Struct, frozen=True, kw_only=True):
    """A refund in its provider's format.

    `standing` are the statuses of refunds that were made or are pending, `done` is the status of a
    completed refund, and `ended` are the statuses of refunds that failed or were cancelled.
    """

    standing: ClassVar[frozenset[str]]
    done: ClassVar[str]
    ended: ClassVar[frozenset[str]]
    id: Id
    status: str | None = None

    @property
    def price(self) -> Money:
        """The amount of the refund. Raises Malformed."""
        raise NotImplementedError

    @property
    def stands(self) -> bool:
        return self.status in self.standing


RefundT = TypeVar("RefundT", bound=ProviderRefund)


def written(price: Money, *, digits: int | None = None) -> str:
    """Format a price such as "9.00", with the number of decimals that the provider expects.

    Raises InvalidQuestion if the price is zero or has more decimals.
    """
    own = digits_of(price.currency)
    wanted = own if digits is None else digits
    integer, rest = divmod(price.minor_units, 10**own)
    fraction = f"{rest:0{own}d}" if own else ""
    if price.minor_units <= 0:
        raise InvalidQuestion(f"A price of {price} cannot be paid: it must be above zero.")
    if fraction[wanted:].strip("0"):
        raise InvalidQuestion(f"{price} has more decimals than can be charged in this currency.")
    decimals = fraction[:wanted].ljust(wanted, "0")
    return f"{integer}.{decimals}" if decimals else str(integer)


def minor_units(value: str, currency: str) -> int:
    """Parse an amount to ISO 4217 minor units.

    Zero is allowed.

    Raises Malformed if `value` is not an amount in this currency.
    """
    found = _WRITTEN.fullmatch(value)
    try:
        digits = digits_of(currency)
    except InvalidQuestion:
        raise Malformed("amount") from None
    if found is None:
        raise Malformed("amount")
    integer, fraction = found[1], found[2] or ""
    units = int(integer + fraction[:digits].ljust(digits, "0"))
    if fraction[digits:].strip("0") or units >= 10**MINOR_UNIT_DIGITS_AT_MOST:
        raise Malformed("amount")
    return units


def json_request(
    method: str, url: str, *, headers: dict[str, str], body: str | None
) -> httpx.Request:
    """Build a request whose JSON body is sent exactly as it was stored."""
    if body is not None:
        headers.setdefault("Content-Type", "application/json")
    content = None if body is None else body.encode()
    return httpx.Request(method, url, headers=headers, content=content)


def decode(
    reply: httpx.Response,
    shape: type[T],
    *,
    seller: MerchantAccount,
    doing: str,
    code_of: Callable[[bytes], str],
) -> T:
    """Decode a reply. Raises Failed unless the status is 200 or 201 and the body has this shape."""
    if reply.status_code not in (200, 201):
        why = problem(reply, code_of=code_of)
        raise Failed(
            f"{seller.label} could not {doing} ({why}).",
            is_refusal=is_refusal(reply),
            is_permanent=reply.status_code in _NEVER,
        )
    try:
        return msgspec.json.decode(reply.content, type=shape)
    except (ValueError, RecursionError):
        raise unreadable(seller, doing=doing) from None


def is_refusal(reply: httpx.Response) -> bool:
    """Return True if the provider refused the request permanently (RFC 9110, 15.5)."""
    return reply.is_client_error and reply.status_code not in _NOT_NOW


def problem(reply: httpx.Response, *, code_of: Callable[[bytes], str]) -> str:
    """Return the HTTP status and the provider's error code, without its error text."""
    status = f"HTTP {reply.status_code}"
    try:
        code = code_of(reply.content)
    except (ValueError, RecursionError):
        return status
    return f"{status}, {code}" if _CODE.fullmatch(code) else status


def unreadable(seller: MerchantAccount, *, doing: str) -> Failed:
    return Failed(f"{seller.label} could not {doing}: its response is invalid.")


def refund_key(payment: Payment) -> str:
    """Return the idempotency key of the payment's refund, which changes after a failed refund."""
    failed = len(payment.failed_refunds)
    return f"refund:{payment.id}" + (f":again-{failed}" if failed else "")


def part_refund_key(
    refunds: Iterable[ProviderRefund], payment: Payment, *, price: Money, rest: Money
) -> str:
    """Return the idempotency key of a part refund up to `price`, which requests `rest`.

    The key changes after a refund that failed or was made elsewhere. It does not change when the
    list shows a recorded refund later: with another key, the provider would make the refund twice.
    """
    failed = sum(not one.stands for one in refunds)
    return f"{refund_key(payment)}:{price.minor_units}:{rest.minor_units}:{failed}"


def reported_changes(
    refunds: Iterable[ProviderRefund], seller: MerchantAccount
) -> tuple[RefundChange, ...]:
    """Return the current status of each refund. Raises Failed."""
    try:
        return tuple(
            RefundChange(
                id=one.id,
                stands=one.status not in one.ended,
                is_done=one.status == one.done,
                amount=one.price.minor_units,
            )
            for one in refunds
        )
    except Malformed:
        raise unreadable(seller, doing="report the status of a refund") from None


def refund_made(
    found: ProviderRefund, payment: Payment, seller: MerchantAccount, *, at_most: int
) -> Refund:
    """Check the reply to a refund request. Raises Failed, also if the refund was not made."""
    if not found.stands:
        raise Failed(
            f"{seller.label} could not {GIVING_BACK} (refund {found.id} failed).",
            is_refusal=True,
        )
    _, given = standing_refunds([found], payment, seller)
    if not 0 < given <= at_most:
        raise unreadable(seller, doing=GIVING_BACK)
    return as_one([found], found.price)


def standing_refunds(
    refunds: Iterable[RefundT], payment: Payment, seller: MerchantAccount
) -> tuple[list[RefundT], int]:
    """Return the made and pending refunds in the payment's currency, and their sum.

    Raises Failed.
    """
    try:
        priced = [(one, one.price) for one in refunds if one.stands]
    except Malformed:
        raise unreadable(seller, doing=GIVING_BACK) from None
    priced = [(one, price) for one, price in priced if price.currency == payment.currency]
    return [one for one, _ in priced], sum(price.minor_units for _, price in priced)


def existing_or_rest(
    refunds: Iterable[ProviderRefund], payment: Payment, seller: MerchantAccount, *, price: Money
) -> Refund | Money:
    """Return the existing refunds as one if they make up `price`, and otherwise the rest.

    The existing refunds may be more than `price`. A refund that the ledger has recorded counts even
    if the list does not show it yet. Raises Failed.
    """
    refunds = tuple(refunds)
    standing, listed = standing_refunds(refunds, payment, seller)
    given = remaining_total(payment, reported_changes(refunds, seller), listed=listed)
    if given < price.minor_units:
        return Money.from_minor_units(price.minor_units - given, payment.currency)
    total = Money.from_minor_units(min(given, payment.amount), payment.currency)
    if not standing:
        id = payment.refund_id or payment.id
        return Refund(id=id, price=total, status=RefundStatus.PENDING)
    return as_one(standing, total)


def existing_refunds(listing: Talk[Sequence[RefundT]]) -> Talk[Sequence[RefundT]]:
    """List the refunds of a payment. Raises Failed.

    If the provider refuses the list, the error is not marked as a refusal of the refund: an earlier
    request whose response was lost may have made the refund.
    """
    try:
        return (yield from listing)
    except Failed as error:
        raise Failed(str(error)) from error


def already_refunded(
    refunds: Iterable[ProviderRefund],
    payment: Payment,
    seller: MerchantAccount,
    *,
    price: Money,
    refused: httpx.Response,
    code_of: Callable[[bytes], str],
) -> Refund:
    """Return the existing refunds as one, if a new refund was refused and they add up to `price`.

    Raises:
        Failed: Less was refunded. The error says if the provider refused permanently.
    """
    standing, given = standing_refunds(refunds, payment, seller)
    if given < price.minor_units:
        why = problem(refused, code_of=code_of)
        raise Failed(
            f"{seller.label} could not {GIVING_BACK} ({why}).", is_refusal=is_refusal(refused)
        )
    return as_one(standing, price)


def as_one(refunds: Sequence[ProviderRefund], price: Money) -> Refund:
    """Combine made or pending refunds into one refund of `price`. It is done if all are done."""
    are_done = all(one.status == one.done for one in refunds)
    status = RefundStatus.SUCCEEDED if are_done else RefundStatus.PENDING
    return Refund(id=refunds[0].id, price=price, status=status)


def with_session(
    stored: StoredCheckout,
    elicitation: Elicitation,
    session: ProviderSession,
    seller: MerchantAccount,
) -> StoredCheckout:
    """Add the created session, its page and its expiry to the stored request.

    Raises Failed if the session has other terms than the question, or its page is at another
    origin.
    """
    try:
        require_terms(elicitation, session, seller=seller)
    except Mismatch as error:
        raise Failed(
            f"{seller.label} opened a payment page with another {error.what} than requested, "
            "so the server does not send you there. Nothing was charged."
        ) from error
    if session.url is not None and _origin(session.url) not in seller.checkout_origins:
        raise Failed(
            f"{seller.label} returned a payment page that is not at {seller.checkout_origins[0]}, "
            "so the server does not send you there. Nothing was charged."
        )
    until = stored.expires_at if session.closes_at is None else int(session.closes_at.timestamp())
    return msgspec.structs.replace(stored, session=session.id, url=session.url, expires_at=until)


def page_in(stored: StoredCheckout, seller: MerchantAccount) -> str:
    """Return the URL of the payment page. Raises Failed if there is none."""
    if stored.url is None:
        raise Failed(f"{seller.label} returned no payment page. Nothing was charged.")
    return stored.url


def _origin(url: str) -> str | None:
    try:
        return origin_of(url)
    except InvalidQuestion:
        return None
