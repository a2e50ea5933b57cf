"""The reader of a declared provider's responses and events.

Risks: an unknown status is treated as harmless, or a response is about another session. A value for
which the declaration has no rule is an error, and causes no change.
"""

import hashlib
import re
from dataclasses import replace
from datetime import UTC, datetime

import httpx
import msgspec

from flows.elicitation.states import Json
from flows.errors import Failed
from flows.payments.declared.declaration import DeclaredAccount
from flows.payments.declared.mapping import Holding, Reading
from flows.payments.declared.templates import at, first_of, text_at
from flows.payments.gateway import Notice, ProviderSession
from flows.payments.money import Money
from flows.payments.receipt import CLAIM, Payment, PaymentChange, Refund, RefundStatus
from flows.payments.responses import GIVING_BACK, decode, minor_units, problem, unreadable
from flows.payments.session import Malformed

_CURRENCY = re.compile(r"[A-Z]{3}")
_WHOLE = re.compile(r"[0-9]{1,15}", re.ASCII)
_REFERENCE = re.compile(r"[A-Za-z0-9_-]{1,200}")
_KEY = re.compile(r"([A-Za-z0-9_-]{1,200}):[0-9]{1,6}")
_ID = re.compile(r"(?!\.{1,2}\Z)[!-~]{1,255}")  # an id becomes part of URL paths
_TYPE = re.compile(r"[A-Za-z0-9_.:-]{1,200}")
_EPOCH = re.compile(r"[0-9]{9,11}")
_MINOR = Reading()


def answer_in(reply: httpx.Response, seller: DeclaredAccount, *, doing: str) -> Json:
    """Return the response's JSON. Raises Failed."""
    path = seller.declaration.trouble
    found: dict[str, Json] = decode(
        reply,
        dict[str, Json],
        seller=seller,
        doing=doing,
        code_of=lambda content: text_at(msgspec.json.decode(content), path) or "",
    )
    return found


def refusal_code_in(reply: httpx.Response, seller: DeclaredAccount) -> str:
    """Return the provider's code for the refusal, or an empty text."""
    if not reply.is_client_error:
        return ""
    try:
        return text_at(msgspec.json.decode(reply.content), seller.declaration.trouble) or ""
    except (ValueError, RecursionError):
        return ""


def session_in(data: Json, reading: Reading, seller: DeclaredAccount) -> ProviderSession:
    """Read a session. Raises Malformed."""
    state = first_of(data, reading.states)
    is_live = first_of(data, reading.live) if reading.live else seller.is_live
    id, reference = named_in(data, reading)
    currency = (text_at(data, reading.currency) or "").upper()
    if state is None or is_live is None or id is None or not _CURRENCY.fullmatch(currency):
        raise Malformed("payment session")
    return ProviderSession(
        id=id,
        state=state,
        amount=_units(data, reading.amount, reading, currency),
        currency=currency,
        reference=reference,
        is_live=is_live,
        payment=id_at(data, reading.payment),
        account=text_at(data, reading.account),
        refunded=_sum(data, reading.refunded, reading, currency),
        charged_back=(
            _sum(data, reading.charged_back, reading, currency) if reading.charged_back else None
        ),
        url=text_at(data, reading.url),
        closes_at=_time(text_at(data, reading.closes_at)),
    )


def named_in(data: Json, reading: Reading) -> tuple[str | None, str | None]:
    """Return the session and the elicitation that the data names, if any. Raises Malformed."""
    reference = text_at(data, reading.reference)
    if not reading.has_own_session_ids:
        is_known = reference is not None and _REFERENCE.fullmatch(reference)
        return id_at(data, reading.session), reference if is_known else None
    key = _KEY.fullmatch(reference or "")
    return (None, None) if key is None else (key[0], key[1])


def notice_in(body: bytes, seller: DeclaredAccount) -> Notice:
    """Read a verified event. Raises Malformed."""
    declared = seller.declaration
    try:
        data: Json = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        raise Malformed("payment event") from None
    kind = text_at(data, declared.event_type) or ""
    given = None if declared.event_id is None else text_at(data, declared.event_id)
    id = given or hashlib.sha256(body).hexdigest()  # a repeated event has the same bytes
    if not _TYPE.fullmatch(kind) or not _ID.fullmatch(id):
        raise Malformed("payment event")
    if kind in declared.news:
        return _changes(data, seller, id=id, kind=kind)
    if kind not in declared.events:
        return Notice(id=id, type=kind, is_live=seller.is_live)
    session, reference = named_in(data, declared.told)
    if not declared.settles or reference is None:
        return Notice(
            id=id, type=kind, is_live=seller.is_live, subject=session, reference=reference
        )
    read = replace(session_in(data, declared.told, seller), is_now=False)
    return Notice(
        id=id,
        type=kind,
        is_live=read.is_live,
        account=seller.account,
        session=read,
        subject=read.id,
        reference=read.reference,
        payment=read.payment,
        transition=f"{read.id} {read.state} {read.refunded} {read.charged_back}",
    )


def _changes(data: Json, seller: DeclaredAccount, *, id: str, kind: str) -> Notice:
    """Read a change of a payment: the status of a dispute, or the amount refunded.

    Events do not identify the dispute, so all dispute events of a payment count as one dispute.
    """
    reading, dispute = seller.declaration.told, seller.declaration.news[kind]
    session, reference = named_in(data, reading)
    currency, amount = None, 0
    if dispute is None:  # a dispute's currency may be the bank's
        currency = (text_at(data, reading.currency) or "").upper() or None
        amount = _sum(data, reading.refunded, reading, currency or "")
    payment = id_at(data, reading.payment)
    is_live = first_of(data, reading.live) if reading.live else seller.is_live
    if is_live is None:
        raise Malformed("payment event")
    return Notice(
        id=id,
        type=kind,
        is_live=is_live,
        account=text_at(data, reading.account) or seller.account,
        news=PaymentChange(returned=amount, currency=currency, dispute=dispute),
        subject=session or payment if dispute is None else f"{CLAIM}{payment or session}",
        reference=reference,
        payment=payment,
        transition=f"{payment} {kind} {amount}",
    )


def given_in(data: Json, holding: Holding, payment: Payment) -> tuple[int, int | None]:
    """Return the amount refunded and the amount that can still be refunded. Raises Malformed."""
    currency = (text_at(data, holding.currency) or "").upper()
    if (text_at(data, holding.id), currency) != (payment.payment_intent, payment.currency):
        raise Malformed("payment")
    remaining = _units(data, holding.left, _MINOR, currency)
    return _sum(data, holding.given, _MINOR, currency), remaining


def refund_in(reply: httpx.Response, seller: DeclaredAccount, *, price: Money) -> Refund:
    """Read a refund. Raises Failed, also if the provider could not make the refund."""
    declared = seller.declaration
    data = answer_in(reply, seller, doing=GIVING_BACK)
    try:
        id = id_at(data, declared.refund_id)
        status: RefundStatus | None = first_of(data, declared.refund_states)
    except Malformed:
        raise unreadable(seller, doing=GIVING_BACK) from None
    if id is None or status is None:
        why = problem(reply, code_of=lambda _: "")
        raise Failed(f"{seller.label} could not {GIVING_BACK} ({why}: the refund failed).")
    return Refund(id=id, price=price, status=status)


def _sum(data: Json, places: str | None, reading: Reading, currency: str) -> int:
    if places is None:
        return 0
    return sum(_units(data, path, reading, currency) or 0 for path in places.split("+"))


def _units(data: Json, path: str | None, reading: Reading, currency: str) -> int | None:
    found = None if path is None else at(data, path)
    text = text_at(data, path)
    if text is None:
        return None
    if reading.unit == "decimal":
        if isinstance(found, int):
            raise Malformed("amount")
        return minor_units(text, currency)
    if not _WHOLE.fullmatch(text):
        raise Malformed("amount")
    return int(text)


def id_at(data: Json, path: str | None) -> str | None:
    """Return the id at this path. Raises Malformed."""
    text = text_at(data, path)
    if text is not None and not _ID.fullmatch(text):
        raise Malformed("id")
    return text


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        if _EPOCH.fullmatch(text):
            return datetime.fromtimestamp(int(text), UTC)
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Malformed("time") from None
    if found.tzinfo is None:
        raise Malformed("time")
    return found
