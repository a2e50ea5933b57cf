"""A payment provider's replies, held against what was asked of it.

What could go wrong: an error page where an answer was expected, a payment page that stands
elsewhere, another session than the one that was asked for. Each ends as Failed, in words for the
person; the provider's own words go no further, for they can hold parts of a key.
"""

import re
from typing import Annotated, TypeVar

import httpx
import msgspec
from msgspec import Meta, Struct

from flows.checkout_seller import Seller, charge_amount, charged
from flows.checkout_session import Id, Malformed, Mismatch, Session, read_session, require_terms
from flows.elicitation import Elicitation, Json
from flows.errors import Failed, InvalidQuestion
from flows.receipt import Payment, Refund, RefundStatus
from flows.visit import origin_of

T = TypeVar("T")
_ERROR_CODE = re.compile(r"[a-z][a-z0-9_]{0,63}")


class _Error(Struct, frozen=True, kw_only=True):
    code: str | None = None
    type: str | None = None


class _ErrorReply(Struct, frozen=True, kw_only=True):
    error: _Error


class _Refund(Struct, frozen=True, kw_only=True):
    id: Id
    amount: Annotated[int, Meta(ge=0)]
    currency: Annotated[str, Meta(pattern=r"^[a-z]{3}\Z")]
    status: str | None = None

    @property
    def stands(self) -> bool:
        return self.status in ("pending", "requires_action", "succeeded")


class _Refunds(Struct, frozen=True, kw_only=True):
    data: tuple[_Refund, ...]


def session_in(reply: httpx.Response, seller: Seller, *, doing: str) -> Session:
    """Raises Failed."""
    data = _decode(reply, seller, dict[str, Json], doing=doing)
    try:
        return read_session(data)
    except Malformed:
        raise _unreadable(seller, doing=doing) from None


def same_session(session: str, reply: httpx.Response, seller: Seller) -> Session:
    """The session that was asked for, and no other. Raises Failed."""
    doing = "say what became of the payment"
    found = session_in(reply, seller, doing=doing)
    if found.id != session:
        raise _unreadable(seller, doing=doing)
    return found


def payment_page(elicitation: Elicitation, session: Session, seller: Seller) -> str:
    """The address of a page where just what was asked is paid. Raises Failed."""
    try:
        require_terms(elicitation, session, seller=seller)
    except Mismatch as error:
        raise Failed(
            f"{seller.label} opened a payment page for another {error.what} than was asked, "
            "so you are not sent there. Nothing was charged."
        ) from error
    try:
        origin = origin_of(session.url or "")
    except InvalidQuestion:
        origin = None
    if session.url is None or origin not in seller.checkout_origins:
        raise Failed(
            f"{seller.label} named a payment page that does not stand at "
            f"{seller.checkout_origin}, so you are not sent there. Nothing was charged."
        )
    return session.url


def read_refund(reply: httpx.Response, payment: Payment, seller: Seller) -> Refund:
    """Raises Failed, also where the provider tried in vain."""
    doing = "give the money back"
    found = _decode(reply, seller, _Refund, doing=doing)
    if not found.stands:
        raise Failed(f"{seller.label} could not {doing} (refund {found.id} is {found.status}).")
    try:
        price = charged(found.amount, found.currency.upper())
    except InvalidQuestion:
        raise _unreadable(seller, doing=doing) from None
    if price.currency != payment.currency or price.minor_units > payment.amount:
        raise _unreadable(seller, doing=doing)
    return Refund(id=found.id, price=price, status=_status(found))


def standing_refund(
    reply: httpx.Response, payment: Payment, seller: Seller, *, refused: httpx.Response
) -> Refund:
    """The refund of all of it that is there, though `refused` made none. Raises Failed."""
    doing = "give the money back"
    listed = _decode(reply, seller, _Refunds, doing=doing)
    standing = [
        one for one in listed.data if one.stands and one.currency.upper() == payment.currency
    ]
    if not standing or sum(one.amount for one in standing) < charge_amount(payment.price):
        raise Failed(f"{seller.label} could not {doing} ({_problem(refused)}).")
    are_done = all(_status(one) is RefundStatus.SUCCEEDED for one in standing)
    return Refund(
        id=standing[0].id,
        price=payment.price,
        status=RefundStatus.SUCCEEDED if are_done else RefundStatus.PENDING,
    )


def _status(refund: _Refund) -> RefundStatus:
    return RefundStatus.SUCCEEDED if refund.status == "succeeded" else RefundStatus.PENDING


def _decode(reply: httpx.Response, seller: Seller, shape: type[T], *, doing: str) -> T:
    if reply.status_code != 200:
        raise Failed(f"{seller.label} could not {doing} ({_problem(reply)}).")
    try:
        return msgspec.json.decode(reply.content, type=shape)
    except (ValueError, RecursionError):
        raise _unreadable(seller, doing=doing) from None


def _problem(reply: httpx.Response) -> str:
    """The status and the provider's code for it, never its sentence."""
    status = f"HTTP {reply.status_code}"
    try:
        error = msgspec.json.decode(reply.content, type=_ErrorReply).error
    except (ValueError, RecursionError):
        return status
    code = error.code or error.type or ""
    return f"{status}, {code}" if _ERROR_CODE.fullmatch(code) else status


def _unreadable(seller: Seller, *, doing: str) -> Failed:
    return Failed(f"{seller.label} could not {doing}: its answer is not what was asked for.")
