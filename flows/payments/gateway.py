"""A gateway: what this server asks of a payment provider, whichever it is.

What could go wrong: each provider counts, names and signs otherwise, and a check that one of them
lacks is the one that is exploited. So a gateway only translates: what it found is a Session in
neutral words, and one function here holds that against what was asked. A notice that nobody signed
is another type than one that somebody did: it names a session to ask about and settles nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

import msgspec
from msgspec.structs import replace

from flows.elicitation.flow import Redirect, RedirectContext, Talk
from flows.elicitation.states import Attempt, Elicitation, Json
from flows.errors import Failed
from flows.payments import receipt as receipts
from flows.payments.claims import ProviderClaim, charged_back, claimed, restated
from flows.payments.money import Money
from flows.payments.receipt import Payment, PaymentChange, Refund
from flows.payments.session import (
    CheckoutTerms,
    Mismatch,
    SessionStatus,
    StoredCheckout,
    kept_of,
    sessions_of,
    terms_of,
)
from flows.webhooks.certificates import CertificateScheme
from flows.webhooks.signatures import Delivery, Scheme

CLOCKS_DIFFER = timedelta(minutes=2)  # between ours and the provider's, with the way there


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSession:
    """What a provider says of a session; amounts in minor units of ISO 4217.

    `reference` is the elicitation that it claims to be for. `payment` is what a refund names,
    `account` who gets the money, where the provider says so. `refunded` was given back of it in
    all, `charged_back` a bank has taken; None: it does not say. `claims` are banks' claims by their
    ids, where it tells each. `url` is where it is paid, while it can be, and `closes_at` until
    when. One that is not `is_now` is in a notice, of when that was made: what it does not tell may
    have come before it or after. `is_made_by_us`: it carries our reference where only a holder of
    our key can write it. `unknown_word` is one of the provider's that this version does not know.
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
    is_made_by_us: bool = False
    unknown_word: str | None = None

    @property
    def gone(self) -> int:
        """How much of it is no longer ours, as far as it says."""
        return self.refunded + (self.charged_back or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What a provider has signed: `session`, as it was then, settles by itself.

    `news` is what became of the `payment` afterwards; without either there is nothing to act on.
    `reference` is the elicitation that it claims to be about: anybody who makes a payment at our
    account can claim one. Two notices with the same `transition` say the same thing.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsignedNotice:
    """What somebody says who may be anybody: ask the provider about this session of ours.

    `session` may be missing, then any of the elicitation's is meant. `payment` is what it names
    besides, or instead. `id` is the provider's for the message, where it has one.
    """

    type: str
    reference: str | None
    session: str | None
    payment: str | None = None
    id: str | None = None


class MerchantAccount(Protocol):
    """Our registration at a payment provider: what is shown of it, and what is compared.

    `checkout_origins` are where its payment pages stand; people are shown the first.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupFinding:
    """What an operator is told of a registration; `fix` is what to do, with the setting's name.

    Where it has a fix and is not wrong, it could not be found out.
    """

    says: str
    fix: str | None = None
    is_wrong: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupReport:
    """What a provider says of our registration there, and when by its clock (HTTP's Date)."""

    findings: tuple[SetupFinding, ...]
    told_at: str | None = None


class Gateway(Protocol):
    """One provider, with our registration there; it implements flows.elicitation.flow.Flow."""

    @property
    def seller(self) -> MerchantAccount: ...
    @property
    def pace(self) -> Sequence[timedelta]:
        """The pauses at which it is asked about an open page; see flows.payments.pace."""
        ...

    def check(self, price: Money) -> None:
        """Raises InvalidQuestion for a price that this provider cannot charge."""
        ...

    def prepare(self, elicitation: Elicitation, trip: RedirectContext) -> Json:
        """The whole request as it will be sent, or the page that is open already: a Kept."""
        ...

    def begin(self, elicitation: Elicitation, trip: RedirectContext) -> Talk[Redirect]:
        """Open the payment page. Raises Failed, with a sentence for the person."""
        ...

    def repeat(self, elicitation: Elicitation, attempt: Attempt) -> Talk[StoredCheckout]:
        """Send an attempt's request as it was stored, under its key, and learn its session.

        Raises Failed.
        """
        ...

    def fetch(self, elicitation: Elicitation, session: str) -> Talk[ProviderSession]:
        """What the provider says now; it moves nothing. Raises Failed."""
        ...

    def collect(self, elicitation: Elicitation, session: str) -> Talk[ProviderSession]:
        """The same, after taking what the person has approved, where that is left to us.

        Nothing is taken for an elicitation that is over. Raises Failed, and Mismatch before
        anything is taken that was not asked for.
        """
        ...

    def close(self, elicitation: Elicitation, session: str) -> Talk[bool]:
        """True if nobody can pay there now, False if somebody has, or is about to.

        Raises Failed when the provider says neither.
        """
        ...

    def refund(
        self, payment: Payment, *, reason: str | None, up_to: int | None = None
    ) -> Talk[Refund]:
        """Give back what is left of it, or tell the refund that is there.

        `up_to`: only so much of it, in minor units, with what went back before. Raises Failed; the
        same call may then be made again, and gives nothing back twice.
        """
        ...


@runtime_checkable
class Signs(Gateway, Protocol):
    """A gateway whose provider signs its webhooks with a shared secret."""

    @property
    def scheme(self) -> Scheme: ...
    @property
    def webhook_secrets(self) -> tuple[str, ...]: ...

    def read_notice(self, delivery: Delivery) -> Notice:
        """Raises Malformed; of one that is ignored, only id and type must be readable."""
        ...

    def kept_notice(self, body: bytes) -> Notice:
        """The same, of a delivery that was verified when it came."""
        ...

    def trace(self, payment: str) -> Talk[str | None]:
        """The elicitation that a payment was begun for; None: something else. Raises Failed."""
        ...


@runtime_checkable
class NoticesOnly(Gateway, Protocol):
    """A gateway whose provider's webhooks only say what to ask about."""

    def read_unsigned(self, body: bytes, *, query: str) -> UnsignedNotice | None:
        """None for a kind that nothing follows from. Raises Malformed or Unverified."""
        ...


@runtime_checkable
class Traces(NoticesOnly, Protocol):
    """A gateway whose notices may name no more than a payment, of which its provider tells more."""

    def trace(self, payment: str) -> Talk[str | None]:
        """The elicitation that a payment was begun for; None: something else. Raises Failed."""
        ...

    def revisit(self, payment: Payment) -> Talk[ProviderSession]:
        """What the provider says now of what was paid, also if its question is erased by now.

        Raises Failed.
        """
        ...


@runtime_checkable
class Certifies(NoticesOnly, Protocol):
    """A gateway whose notices are signed with a certificate, for one of our webhooks there.

    Without `webhook_ids` they are unsigned like any other's.
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
    """What the session says, now, about the elicitation.

    Of a former attempt's session only PAID says anything about the elicitation as a whole. What
    was paid and is gone again by now has FAILED. Raises Mismatch.
    """
    if session.id not in sessions_of(elicitation):
        raise Mismatch("session", session=session.id)
    require_terms(elicitation, session, seller=seller)
    is_gone = session.gone >= terms_of(elicitation).amount
    if session.state is SessionStatus.PAID and is_gone:
        return SessionStatus.FAILED
    return session.state


def verify_notice(
    elicitation: Elicitation, notice: Notice, *, seller: MerchantAccount
) -> SessionStatus:
    """What a signed notice says about the elicitation, as of when it was made.

    Raises Mismatch, for a notice of another account or mode or without a session too.
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
    """Raises Mismatch where the session is not for what was asked, or not to be paid to us."""
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
    id: str,
    at: str,
    now: datetime,
    unused: timedelta | None,
) -> Payment:
    """The ledger's row of a paid session, with what it says became of it; not written yet.

    `at` is the address of the API. It is given back after `unused`, if nobody uses it; None: never.
    """
    terms, asked = terms_of(elicitation), elicitation.asked
    payment = Payment(
        id=id,
        owner=elicitation.owner,
        elicitation_id=elicitation.id,
        join=id,
        server=asked.server,
        tool=asked.tool,
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
        refund_at=None if unused is None else now + unused,
        asked=elicitation.join,
    )
    return heard(payment, session, now=now)


def heard(payment: Payment, session: ProviderSession, *, now: datetime) -> Payment:
    """The ledger's row with what became of the payment afterwards, as its provider says.

    Of what it has forgotten, which is closed for us, it says nothing. What was taken and is back
    is believed only where it is said now: a picture in a notice may be an old one, and adds.
    """
    if session.state is SessionStatus.CLOSED:
        return payment
    asked_at = now if session.is_now else None
    payment = claimed(payment, session.claims, now=now)
    if session.charged_back is not None:
        amount = session.charged_back
        payment = charged_back(payment, session.id, amount=amount, now=asked_at)
    if not session.refunded:
        return payment
    return restated(receipts.partly_refunded(payment, now, amount=session.refunded))


def terms_for(elicitation: Elicitation, seller: MerchantAccount) -> CheckoutTerms:
    """What was asked, if this seller is who was to be paid, in this mode. Raises Failed."""
    terms = terms_of(elicitation)
    if (terms.seller, terms.is_live) != (seller.name, seller.is_live):
        raise Failed(
            f"{seller.label} is set up for another mode than when this was asked.",
            elicitation_id=elicitation.id,
        )
    return terms


def payment_of(payment: Payment, seller: MerchantAccount) -> str:
    """What the provider calls the payment of a receipt. Raises Failed if it holds none."""
    is_theirs = (payment.seller, payment.is_live) == (seller.name, seller.is_live)
    if payment.payment_intent is None or not is_theirs:
        raise Failed(f"{seller.label} holds no payment for this receipt.")
    return payment.payment_intent


def open_page(elicitation: Elicitation, *, now: datetime) -> StoredCheckout | None:
    """What the latest attempt keeps, if its page can still be paid at: nobody pays twice."""
    kept = kept_of(elicitation.attempt)
    if kept is None or kept.url is None:
        return None
    return kept if kept.expires_at > (now + CLOCKS_DIFFER).timestamp() else None


def stands_in_the_way(elicitation: Elicitation, *, browser: str, now: datetime) -> bool:
    """Whether the latest attempt may hold a page open that is not the one for this browser.

    No two browsers share one: whoever pays there would come back as somebody else.
    """
    attempt = elicitation.attempt
    kept = kept_of(attempt)
    if attempt is None or kept is None or kept.expires_at <= now.timestamp():
        return False
    if kept.session is None:
        return attempt.trouble != "refused"  # else nobody knows what became of what was asked for
    is_theirs = attempt.browser == browser and open_page(elicitation, now=now) is not None
    return kept.url is not None and not is_theirs


def forget_page(elicitation: Elicitation, session: str) -> Elicitation:
    """The provider has closed this page early: the next press of Continue opens another."""
    attempt = elicitation.attempt
    kept = kept_of(attempt)
    if attempt is None or kept is None or kept.session != session or kept.url is None:
        return elicitation
    closed: Json = msgspec.to_builtins(replace(kept, url=None))
    return replace(elicitation, attempt=replace(attempt, kept=closed))


@runtime_checkable
class Examinable(Protocol):
    """A gateway whose provider can be asked about our registration, for `elicit doctor`."""

    def examine(self, url: str | None) -> Talk[SetupReport]:
        """`url` is where its webhooks are to go; None where they cannot. Raises Failed."""
        ...
