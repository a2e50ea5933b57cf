"""The interface of a payment gateway, and the checks that are the same for all providers.

Risks: providers use different units, names and signatures. If one gateway lacks a check, attackers
will use that gateway. A gateway therefore only translates the provider's data to a ProviderSession,
and functions in this module compare the session with the question. An unsigned notice has its own
type: it only names a session to fetch, and never settles a question.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_other
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

import msgspec
from msgspec.structs import replace

from flows.elicitation.flow import Redirect, RedirectContext, SetupReport, Talk
from flows.elicitation.states import Attempt, Elicitation, Json
from flows.errors import Failed
from flows.payments.claims import ProviderClaim, charged_back, claimed
from flows.payments.money import Money
from flows.payments.receipt import Payment, PaymentChange, Refund
from flows.payments.refunds import with_total
from flows.payments.session import (
    CheckoutTerms,
    Mismatch,
    SessionStatus,
    StoredCheckout,
    checkout_of,
    sessions_of,
    terms_of,
)
from flows.webhooks.certificates import CertificateScheme
from flows.webhooks.signatures import Scheme

# allowed difference between our clock and the provider's, including network delay
CLOCKS_DIFFER = timedelta(minutes=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSession:
    """A checkout session as the provider reports it, with amounts in ISO 4217 minor units.

    - `reference`: id of the elicitation that the session claims to be for.
    - `payment`: the provider's id of the payment, which a refund needs.
    - `account`: the account that receives the money, if the provider reports it.
    - `refunded`: total amount refunded so far.
    - `charged_back`: total amount that banks reversed; None if the provider does not report it.
    - `claims`: disputes by id, if the provider lists them.
    - `url`, `closes_at`: the payment page and its expiry, while the page can be paid.
    - `is_now`: False if the data comes from a notice. The data then describes the session at the
      time of the notice. Changes that it does not mention may have happened before or after.
    - `asked_at`: when the server asked for the session, if the caller says so.
    - `is_made_by_us`: the session carries our reference where only a holder of our API key can
      write it.
    - `unknown_word`: a provider status that this version does not know.
    """

    id: str
    state: SessionStatus
    amount: int | None
    currency: str | None
    reference: str | None
    is_live: bool
    payment: str | None = None
    account: str | None = None
    refunded: int = 0
    charged_back: int | None = None
    claims: tuple[ProviderClaim, ...] = ()
    url: str | None = field(default=None, repr=False)
    closes_at: datetime | None = None
    is_now: bool = True
    asked_at: datetime | None = None
    is_made_by_us: bool = False
    unknown_word: str | None = None

    def answered(self, asked_at: datetime) -> "ProviderSession":
        """Return the session as the answer to a question that the server asked at `asked_at`."""
        return with_other(self, asked_at=asked_at)

    @property
    def total_returned(self) -> int:
        """The amount that was refunded or charged back, as far as the provider reports it."""
        return self.refunded + (self.charged_back or 0)

    @property
    def is_returned(self) -> bool:
        """True if the session was paid, and the whole amount was refunded or charged back."""
        return self.state is SessionStatus.PAID and self.total_returned >= (self.amount or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A webhook that the provider has signed.

    `session` is the session at the time of the notice, and is enough to settle the question.
    `news` is a later change of the payment, such as a refund. A notice that has neither of them,
    but has `subject` and `reference`, only names a session to fetch. Any other notice without
    `session` and `news` needs no action.
    `reference` is the elicitation that the notice claims to be for: anyone who pays at our account
    can set it. Two notices with the same `transition` report the same change.
    """

    id: str
    type: str
    is_live: bool
    account: str | None = None
    session: ProviderSession | None = None
    news: PaymentChange | None = None
    subject: str | None = None
    reference: str | None = None
    payment: str | None = None
    transition: str | None = None

    @property
    def without_address(self) -> "Notice":
        """The notice without the payment page's URL, which may be long and is not needed again."""
        session = self.session
        return self if session is None else with_other(self, session=with_other(session, url=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsignedNotice:
    """A webhook that anyone could have sent: it only says which session to fetch.

    If `session` is None, fetch the sessions of the elicitation `reference`. `payment` is a payment
    id that the notice names in addition or instead. `id` is the provider's id of the message, if it
    has one.
    """

    type: str
    reference: str | None
    session: str | None
    payment: str | None = None
    id: str | None = None


class MerchantAccount(Protocol):
    """The operator's account at a payment provider.

    Sessions are compared with `name`, `is_live` and `account`. Pages show `label`, and the first of
    `checkout_origins`, which are the origins of the provider's payment pages. `statement` is the
    text of a payment on the person's bank statement, if the operator has set it.
    """

    @property
    def name(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def api(self) -> str: ...
    @property
    def checkout_origins(self) -> tuple[str, ...]: ...
    @property
    def is_live(self) -> bool: ...
    @property
    def account(self) -> str | None: ...
    @property
    def statement(self) -> str | None: ...


class Gateway(Protocol):
    """A payment provider with the operator's account. Implements flows.elicitation.flow.Flow."""

    @property
    def seller(self) -> MerchantAccount: ...
    @property
    def pace(self) -> Sequence[timedelta]:
        """The intervals for polling the provider about an open page, as in `checkout_page`."""
        ...

    def check(self, price: Money) -> None:
        """Raise InvalidQuestion if the provider cannot charge this price."""
        ...

    def prepare(self, elicitation: Elicitation, context: RedirectContext) -> Json:
        """Return the data to store before anything is sent: a new request, or the open page."""
        ...

    def begin(self, elicitation: Elicitation, context: RedirectContext) -> Talk[Redirect]:
        """Open the payment page. Raises Failed with a sentence for the person."""
        ...

    def repeat(self, elicitation: Elicitation, attempt: Attempt) -> Talk[StoredCheckout]:
        """Send an attempt's stored request again with its idempotency key, and return its session.

        Raises Failed.
        """
        ...

    def fetch(self, elicitation: Elicitation, session: str) -> Talk[ProviderSession]:
        """Fetch the session's current state without changing anything. Raises Failed."""
        ...

    def collect(self, elicitation: Elicitation, session: str) -> Talk[ProviderSession]:
        """Fetch the session's state. First capture an approved payment if the provider does not.

        Nothing is captured for an elicitation that has ended.

        Raises:
            Failed: The provider refused or could not be reached.
            Mismatch: The session differs from the question. Nothing was captured.
        """
        ...

    def close(self, elicitation: Elicitation, session: str) -> Talk[bool]:
        """Close the payment page. Raises Failed if it may still be open.

        Return True if the page is closed without a payment, False if one was or will be made.
        """
        ...

    def refund(
        self, payment: Payment, *, reason: str | None, up_to: int | None = None
    ) -> Talk[Refund]:
        """Refund the rest of the payment, or return the refund that already exists.

        With `up_to`, refund at most that much in minor units, including earlier refunds. Raises
        Failed. Repeating the same call is safe: nothing is refunded twice.
        """
        ...


@runtime_checkable
class Signs(Gateway, Protocol):
    """A gateway whose provider signs its webhooks with a shared secret."""

    @property
    def scheme(self) -> Scheme: ...
    @property
    def webhook_secrets(self) -> tuple[str, ...]: ...

    def read_notice(self, body: bytes) -> Notice:
        """Parse the body of a delivery that is verified, or was verified when it arrived.

        Raises Malformed.

        A notice of an ignored type only needs a readable id and type.
        """
        ...

    def trace(self, payment: str) -> Talk[str | None]:
        """Return a payment's elicitation id, or None if it is not ours. Raises Failed."""
        ...


@runtime_checkable
class NoticesOnly(Gateway, Protocol):
    """A gateway whose provider's webhooks only say which session to fetch."""

    def read_unsigned(self, body: bytes, *, query: str) -> UnsignedNotice | None:
        """Parse a webhook; None if its type needs no action. Raises Malformed or Unverified."""
        ...


@runtime_checkable
class Traces(NoticesOnly, Protocol):
    """A gateway whose notices may name only a payment, so the provider has to be asked for more."""

    def trace(self, payment: str) -> Talk[str | None]:
        """Return a payment's elicitation id, or None if it is not ours. Raises Failed."""
        ...

    def revisit(self, payment: Payment) -> Talk[ProviderSession]:
        """Fetch the state of a past payment, even if its question is erased. Raises Failed."""
        ...


@runtime_checkable
class Certifies(NoticesOnly, Protocol):
    """A gateway whose notices are signed with a certificate, for one of our registered webhooks.

    Without `webhook_ids`, its notices are treated as unsigned.
    """

    @property
    def certificates(self) -> CertificateScheme: ...
    @property
    def webhook_ids(self) -> tuple[str, ...]: ...


def fits_a_header(key: str) -> bool:
    return key.isascii() and key.isprintable() and bool(key) and " " not in key


def verify_session(
    elicitation: Elicitation, session: ProviderSession, *, seller: MerchantAccount
) -> SessionStatus:
    """Check the session against the elicitation and return the session's status.

    If the session belongs to an earlier attempt, use the status only if it is PAID. A paid session
    whose money was fully refunded or charged back counts as FAILED. Raises Mismatch.
    """
    if session.id not in sessions_of(elicitation):
        raise Mismatch("session", session=session.id)
    require_terms(elicitation, session, seller=seller)
    return SessionStatus.FAILED if session.is_returned else session.state


def verify_notice(
    elicitation: Elicitation, notice: Notice, *, seller: MerchantAccount
) -> SessionStatus:
    """Check a signed notice against the elicitation and return the status of its session.

    Raises Mismatch, also if the notice has no session or is for another account or mode.
    """
    if notice.session is None:
        raise Mismatch("session", session=notice.subject or notice.id)
    if notice.account != seller.account:
        raise Mismatch("account", session=notice.session.id)
    if notice.is_live != seller.is_live:
        raise Mismatch("mode", session=notice.session.id)
    return verify_session(elicitation, notice.session, seller=seller)


def require_terms(
    elicitation: Elicitation, session: ProviderSession, *, seller: MerchantAccount
) -> None:
    """Raise Mismatch if the session differs from what was asked, or pays another account."""
    terms = terms_of(elicitation)
    expected = {
        "reference": (elicitation.id, session.reference),
        "currency": (terms.currency, session.currency),
        "amount": (terms.amount, session.amount),
        "mode": ((terms.seller, terms.is_live), (seller.name, session.is_live)),
    }
    for what, (asked, found) in expected.items():
        if asked != found:
            raise Mismatch(what, session=session.id)
    if seller.is_live != session.is_live:
        raise Mismatch("mode", session=session.id)
    if None not in (seller.account, session.account) and seller.account != session.account:
        raise Mismatch("account", session=session.id)


def paid_row(
    elicitation: Elicitation,
    session: ProviderSession,
    *,
    terms: CheckoutTerms,
    id: str,
    at: str,
    refunded_after: timedelta | None,
    now: datetime,
) -> Payment:
    """Build the ledger row of a paid session, including refunds and disputes.

    The row is not stored here.

    `at` is the base URL of the provider's API. A payment that no call uses is refunded
    automatically after `refunded_after`, or never if that is None.
    """
    asked = elicitation.request
    payment = Payment(
        id=id,
        owner=elicitation.owner,
        elicitation_id=elicitation.id,
        dedupe_key=id,
        server=asked.server,
        tool=asked.tool,
        tool_title=asked.tool_title,
        seller=terms.seller,
        session=session.id,
        payment_intent=session.payment,
        amount=terms.amount,
        currency=terms.currency,
        what=terms.what,
        is_live=terms.is_live,
        once=terms.once,
        paid_at=now,
        at=at,
        refund_at=None if refunded_after is None else now + refunded_after,
        question_key=elicitation.dedupe_key,
    )
    return with_returns(payment, session, now=now)


def with_returns(payment: Payment, session: ProviderSession, *, now: datetime) -> Payment:
    """Update the ledger row with refunds and disputes that the provider reports.

    A session that the provider no longer knows (CLOSED) changes nothing. A notice may be
    outdated, so it can only add charge-backs: only a fetched session can end a charge-back. The
    reply of a fetched session may be delayed, so it changes nothing that was reported after the
    server had asked.
    """
    if session.state is SessionStatus.CLOSED:
        return payment
    at = session.asked_at or now
    if session.claims:
        payment = claimed(payment, session.claims, asked_at=at)
    if session.charged_back is not None:
        amount, is_answer = session.charged_back, session.is_now
        payment = charged_back(payment, session.id, amount=amount, at=at, is_answer=is_answer)
    if not session.refunded:
        return payment
    return with_total(payment, session.refunded, at=at if session.is_now else None, now=now)


def terms_for(elicitation: Elicitation, seller: MerchantAccount) -> CheckoutTerms:
    """Return the terms of the question. Raises Failed if they are for another provider or mode."""
    terms = terms_of(elicitation)
    if (terms.seller, terms.is_live) != (seller.name, seller.is_live):
        raise Failed(
            f"{seller.label} is now configured for another mode (live or test) than when the "
            "payment was requested.",
            elicitation_id=elicitation.id,
        )
    return terms


def payment_of(payment: Payment, seller: MerchantAccount) -> str:
    """Return the provider's id of the payment. Raises Failed if the provider has none."""
    is_of_seller = (payment.seller, payment.is_live) == (seller.name, seller.is_live)
    if payment.payment_intent is None or not is_of_seller:
        raise Failed(f"{seller.label} has no payment for this receipt.")
    return payment.payment_intent


def open_page(elicitation: Elicitation, *, now: datetime) -> StoredCheckout | None:
    """Return the latest attempt's checkout if its page can still be paid, or None."""
    stored = checkout_of(elicitation.attempt)
    if stored is None or stored.url is None:
        return None
    return stored if stored.expires_at > (now + CLOCKS_DIFFER).timestamp() else None


def has_open_page_elsewhere(elicitation: Elicitation, *, browser: str, now: datetime) -> bool:
    """Return True if the latest attempt may have an open page that is not for this browser.

    Two browsers never share a page: otherwise the person who pays could return as another person.
    """
    attempt = elicitation.attempt
    stored = checkout_of(attempt)
    if attempt is None or stored is None or stored.expires_at <= now.timestamp():
        return False
    if stored.session is None:
        # The session does not exist if the provider refused it; otherwise we don't know.
        return attempt.trouble != "refused"
    is_of_browser = attempt.browser == browser and open_page(elicitation, now=now) is not None
    return stored.url is not None and not is_of_browser


def forget_page(elicitation: Elicitation, session: str) -> Elicitation:
    """Drop a page that the provider closed early, so the next press of Continue opens a new one."""
    attempt = elicitation.attempt
    stored = checkout_of(attempt)
    if attempt is None or stored is None or stored.session != session or stored.url is None:
        return elicitation
    closed: Json = msgspec.to_builtins(replace(stored, url=None))
    return replace(elicitation, attempt=replace(attempt, kept=closed))


@runtime_checkable
class Examinable(Protocol):
    """A gateway that can check the operator's account at the provider, for `elicit doctor`."""

    def examine(self, url: str | None) -> Talk[SetupReport]:
        """Check the account. `url` is the webhook address, None if there is none. Raises Failed."""
        ...
