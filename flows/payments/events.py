"""The table of payment events: the change that follows from each statement of the provider.

A statement comes in a signed webhook or in the response to a poll. It is about a checkout session,
or about a payment that was made. Risks: a statement arrives twice, late or before an earlier one.
So each change depends only on the statement and on what this store knows, and CHANGES has all
cases. The code that applies a change decides again if another process has written first.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from msgspec.structs import replace

from flows.elicitation.states import Elicitation, Status
from flows.payments.claims import disputed, restated
from flows.payments.gateway import (
    MerchantAccount,
    Notice,
    ProviderSession,
    forget_page,
    with_returns,
)
from flows.payments.receipt import Payment
from flows.payments.refunds import refund_changed, with_total
from flows.payments.session import is_paid_otherwise, sessions_of

ON_ITS_WAY = "a payment is on its way: call again later, and nobody pays twice"


class Statement(StrEnum):
    """A provider's statement. The first six are the states of a session."""

    OPEN = "open"
    PENDING = "pending"
    PAID = "paid"
    RETURNED = "returned"  # the session was paid, and all of the money was returned
    FAILED = "failed"
    CLOSED = "closed"
    CHANGED = "changed"  # a payment was refunded or disputed
    NAMED = "named"  # an event about a session, without the session's state
    NOTHING = "nothing"  # not about a payment of this server


class LedgerState(StrEnum):
    """The stored state of the question or payment that a statement is about.

    For the statement CHANGED, only the ledger (the stored payments) is read.
    """

    OPEN = "open"  # the question is open, and the session is its latest one
    EARLIER = "earlier"  # the question is open, and the person has opened a newer session
    ENDED = "ended"  # the question has ended without an answer
    ACCEPTED = "accepted"  # the question has its answer
    NO_PAYMENT = "no payment"  # the question is of another kind
    RECORDED = "recorded"  # the ledger has the payment, and its question is erased or not read
    UNKNOWN = "unknown"  # neither the question nor the payment is stored


class Change(StrEnum):
    """The change that follows from a statement.

    In every case, the event is stored and a paid session is recorded.
    """

    ACCEPT = "accept"  # the payment answers the question, even if the question has ended
    SECOND = "second"  # the question has its answer already: the ledger gets an additional payment
    FAIL = "fail"  # the question fails, as the payment did not arrive
    GIVE_UP = "give up"  # the ended question no longer expects a payment
    EXPECT = "expect"  # the question says that a payment is on its way
    POLL = "poll"  # the session is polled until its state is final
    NEW_PAGE = "new page"  # the next press of Continue opens a new page
    UPDATE = "update"  # the payment's row shows the refunds and disputes
    WAIT = "wait"  # the event waits until its payment is recorded
    ASK = "ask"  # the event waits, and the provider is polled now
    LIST = "list"  # the event is refused, and its money is listed for the operator
    UNRELATED = "unrelated"  # the event is about a payment that this server did not ask for
    IGNORE = "ignore"  # the event is about something else


_SESSIONS = (
    *(Statement.OPEN, Statement.PENDING, Statement.PAID, Statement.RETURNED),
    *(Statement.FAILED, Statement.CLOSED),
)
# Statements that are not listed change nothing.
CHANGES: Mapping[LedgerState, Mapping[Statement, Change]] = {
    LedgerState.OPEN: {
        Statement.PENDING: Change.EXPECT,
        Statement.PAID: Change.ACCEPT,
        Statement.RETURNED: Change.FAIL,
        Statement.FAILED: Change.FAIL,
        Statement.CLOSED: Change.NEW_PAGE,
        Statement.NAMED: Change.ASK,
    },
    LedgerState.EARLIER: {
        Statement.PAID: Change.ACCEPT,
        Statement.NAMED: Change.ASK,
    },
    LedgerState.ENDED: {
        Statement.PENDING: Change.POLL,
        Statement.PAID: Change.ACCEPT,
        Statement.RETURNED: Change.GIVE_UP,
        Statement.FAILED: Change.GIVE_UP,
        Statement.NAMED: Change.ASK,
    },
    LedgerState.ACCEPTED: {
        Statement.PENDING: Change.POLL,
        Statement.PAID: Change.SECOND,
        Statement.RETURNED: Change.GIVE_UP,
        Statement.FAILED: Change.GIVE_UP,
        Statement.NAMED: Change.ASK,
    },
    LedgerState.NO_PAYMENT: dict.fromkeys((*_SESSIONS, Statement.NAMED), Change.UNRELATED),
    LedgerState.RECORDED: dict.fromkeys((*_SESSIONS, Statement.CHANGED), Change.UPDATE),
    LedgerState.UNKNOWN: {
        **dict.fromkeys(_SESSIONS, Change.UNRELATED),
        Statement.PAID: Change.LIST,
        Statement.CHANGED: Change.WAIT,
        Statement.NAMED: Change.LIST,
        Statement.NOTHING: Change.IGNORE,
    },
}


def stated(session: ProviderSession) -> Statement:
    return Statement.RETURNED if session.is_returned else Statement(session.state.value)


def stated_in(event: Notice) -> Statement:
    """Return the statement of a signed event.

    Only an event that names its question is about a session of this server. An event about a bank's
    claim, or about a refund made at the provider's dashboard, names only the payment.
    """
    change = event.news
    if event.reference is not None and event.session is not None:
        return stated(event.session)
    if change is not None and event.payment is not None:
        names_payment = change.dispute is not None or change.refund is not None
        if names_payment or event.reference is not None:
            return Statement.CHANGED
    is_named = event.subject is not None and event.reference is not None
    return Statement.NAMED if is_named else Statement.NOTHING


def ledger_state(question: Elicitation | None, session: str | None = None) -> LedgerState:
    """Return the stored state of the question, and of this session if one is given."""
    if question is None:
        return LedgerState.UNKNOWN
    if question.kind != "payment":
        return LedgerState.NO_PAYMENT
    if question.status.is_final:
        return LedgerState.ACCEPTED if question.status is Status.ACCEPTED else LedgerState.ENDED
    return (
        LedgerState.OPEN
        if session is None or _is_latest(question, session)
        else LedgerState.EARLIER
    )


def changed_question(question: Elicitation, change: Change | None, *, session: str) -> Elicitation:
    """Return the question after a change that does not end it."""
    match change:
        case Change.NEW_PAGE:
            return forget_page(question, session)
        case Change.EXPECT if not is_paid_otherwise(question.progress):
            return replace(question, progress=ON_ITS_WAY)
        case Change.GIVE_UP if question.progress == ON_ITS_WAY and _is_latest(question, session):
            return replace(question, progress=None)
        case _:
            return question


def changed_payment(payment: Payment, event: Notice, *, now: datetime) -> Payment:
    """Return the payment after an event. A repeated event changes nothing."""
    change = event.news
    if event.session is not None:
        return with_returns(payment, event.session, now=now)
    assert change is not None
    if change.refund is not None:
        return restated(refund_changed(payment, change.refund, at=change.at or now))
    if change.dispute is not None:
        id = event.subject or event.id
        amount = change.claimed if change.claimed_currency == payment.currency else None
        about = {"at": change.at, "received_at": now}
        return disputed(payment, id, change.dispute, amount=amount, event=event.id, **about)
    return with_total(payment, change.returned, at=change.at, now=now)


def contradiction(payment: Payment, event: Notice, *, seller: MerchantAccount) -> str | None:
    """Return the first difference between the event and the payment, or None if they match."""
    stated = event.session or event.news
    currency = None if stated is None else stated.currency
    if event.account != seller.account:
        return "account"
    if not event.is_live == seller.is_live == payment.is_live:
        return "mode"
    if currency not in (None, payment.currency):
        return "currency"
    if event.session is not None and event.session.amount != payment.amount:
        return "amount"
    return None


def _is_latest(question: Elicitation, session: str) -> bool:
    return session == next(iter(sessions_of(question)), None)
